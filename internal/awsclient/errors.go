package awsclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// A CredentialsError is why there are no credentials.
type CredentialsError struct{ err error }

func (e *CredentialsError) Error() string { return e.err.Error() }
func (e *CredentialsError) Unwrap() error { return e.err }

// Advice says what to do about it, at a service that is called where.
func (e *CredentialsError) Advice(where string) string {
	return fmt.Sprintf("no credentials for %s: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile, or configure references to them (%v)", where, e.err)
}

// Code is the service's own name of an error, "" if it has none.
func Code(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

// Status is that of the answer that an error is from, 0 if there was none.
func Status(err error) int {
	var r *smithyhttp.ResponseError
	if errors.As(err, &r) && r.Response != nil {
		return r.HTTPStatusCode()
	}
	return 0
}

// Unreached says why a service, which is called where, was not reached, "" if it was.
func Unreached(err error, where string) string {
	var sent *smithyhttp.RequestSendError
	var dns *net.DNSError
	switch {
	case isCertificate(err):
		return fmt.Sprintf("the certificate of %s cannot be trusted: if an authority of your own has signed it, set its file as CA (%v)", where, Root(err))
	case isNoTLS(err):
		return fmt.Sprintf("%s does not speak TLS: write http:// if it is on this machine", where)
	case errors.As(err, &dns) && dns.IsNotFound:
		return fmt.Sprintf("there is no host %s: correct the endpoint or the region", dns.Name)
	case errors.As(err, &sent):
		return fmt.Sprintf("%s does not answer: see that it runs, and that the endpoint and the network are right: %v", where, Root(err))
	}
	return ""
}

func isCertificate(err error) bool {
	var verify *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	return errors.As(err, &verify) || errors.As(err, &authority)
}

// isNoTLS reports whether the other side does not speak TLS.
func isNoTLS(err error) bool {
	return errors.Is(err, http.ErrSchemeMismatch) || strings.Contains(err.Error(), http.ErrSchemeMismatch.Error())
}

// Root is the innermost error, which says what the SDK's around it only wrap.
func Root(err error) error {
	var response *awshttp.ResponseError
	if errors.As(err, &response) {
		err = response.Err
	}
	var sent *smithyhttp.RequestSendError
	if errors.As(err, &sent) {
		err = sent.Err
	}
	var at *url.Error
	if errors.As(err, &at) {
		err = at.Err
	}
	return err
}

// newRetryer tries again what may work then, as long as there are attempts left:
// the SDK's own would give up all requests when many have failed.
func newRetryer(opts Options) aws.Retryer {
	return retry.NewStandard(func(o *retry.StandardOptions) {
		o.MaxAttempts = opts.Attempts
		o.RateLimiter = ratelimit.None
		o.Backoff = retry.BackoffDelayerFunc(func(attempt int, _ error) (time.Duration, error) {
			return Backoff(attempt, opts.Backoff), nil
		})
		first := []retry.IsErrorRetryable{retry.IsErrorRetryableFunc(retryable)}
		if opts.Retryable != nil {
			first = []retry.IsErrorRetryable{retry.IsErrorRetryableFunc(opts.Retryable), first[0]}
		}
		o.Retryables = append(first, o.Retryables...)
	})
}

// retryable adds to what the SDK knows.
func retryable(err error) aws.Ternary {
	var creds *CredentialsError
	var sent *smithyhttp.RequestSendError
	var dns *net.DNSError
	switch {
	case errors.As(err, &creds), isCertificate(err), isNoTLS(err), errors.Is(err, context.Canceled):
		return aws.FalseTernary
	case errors.Is(err, io.ErrUnexpectedEOF): // an answer that was cut short
		return aws.TrueTernary
	case Status(err) == http.StatusTooManyRequests, Status(err) == http.StatusRequestTimeout:
		return aws.TrueTernary
	case errors.As(err, &sent) && !(errors.As(err, &dns) && dns.IsNotFound):
		return aws.TrueTernary // also resets and EOFs, which the SDK takes for final
	}
	return aws.UnknownTernary
}
