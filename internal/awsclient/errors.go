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

// A CredentialsError says why no credentials are available.
type CredentialsError struct{ err error }

func (e *CredentialsError) Error() string { return e.err.Error() }
func (e *CredentialsError) Unwrap() error { return e.err }

// Advice returns a message that says how to set credentials for the service called where.
func (e *CredentialsError) Advice(where string) string {
	return fmt.Sprintf("no credentials for %s: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile, or configure references to them (%v)", where, e.err)
}

// Code returns the service's own code of an error, "" if it has none.
func Code(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

// Status returns the HTTP status of the response that caused an error, 0 if there was none.
func Status(err error) int {
	var r *smithyhttp.ResponseError
	if errors.As(err, &r) && r.Response != nil {
		return r.HTTPStatusCode()
	}
	return 0
}

// DescribeUnreachable returns a message that says why the service called where cannot be
// reached, "" if err has another cause.
func DescribeUnreachable(err error, where string) string {
	var sent *smithyhttp.RequestSendError
	var dns *net.DNSError
	switch {
	case isCertificate(err):
		return fmt.Sprintf("the certificate of %s is not trusted: if your own authority has signed it, set its file as CA (%v)", where, Root(err))
	case isNoTLS(err):
		return fmt.Sprintf("%s does not speak TLS: write http:// if it is on this machine", where)
	case errors.As(err, &dns) && dns.IsNotFound:
		return fmt.Sprintf("host %s not found: correct the endpoint or the region", dns.Name)
	case errors.As(err, &sent):
		return fmt.Sprintf("%s does not answer: check that it runs, and check the endpoint and the network: %v", where, Root(err))
	}
	return ""
}

func isCertificate(err error) bool {
	var verify *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	return errors.As(err, &verify) || errors.As(err, &authority)
}

// isNoTLS reports whether the server does not speak TLS.
func isNoTLS(err error) bool {
	return errors.Is(err, http.ErrSchemeMismatch) || strings.Contains(err.Error(), http.ErrSchemeMismatch.Error())
}

// Root returns the innermost error, without the wrappers of the SDK.
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

// newRetryer returns a retryer that retries transient errors until the attempts are used
// up. The SDK's own retryer would stop all retries after many failures.
func newRetryer(opts Options) aws.Retryer {
	return retry.NewStandard(func(o *retry.StandardOptions) {
		o.MaxAttempts = opts.Attempts
		o.RateLimiter = ratelimit.None
		o.Backoff = retry.BackoffDelayerFunc(func(attempt int, _ error) (time.Duration, error) {
			return Backoff(attempt, opts.Backoff), nil
		})
		first := []retry.IsErrorRetryable{retry.IsErrorRetryableFunc(isRetryable)}
		if opts.Retryable != nil {
			first = []retry.IsErrorRetryable{retry.IsErrorRetryableFunc(opts.Retryable), first[0]}
		}
		o.Retryables = append(first, o.Retryables...)
	})
}

// isRetryable reports whether a request may succeed when repeated, for errors that the SDK
// does not classify correctly.
func isRetryable(err error) aws.Ternary {
	var creds *CredentialsError
	var sent *smithyhttp.RequestSendError
	var dns *net.DNSError
	switch {
	case errors.As(err, &creds), isCertificate(err), isNoTLS(err), errors.Is(err, context.Canceled):
		return aws.FalseTernary
	case errors.Is(err, io.ErrUnexpectedEOF): // a truncated response
		return aws.TrueTernary
	case Status(err) == http.StatusTooManyRequests, Status(err) == http.StatusRequestTimeout:
		return aws.TrueTernary
	case errors.As(err, &sent) && !(errors.As(err, &dns) && dns.IsNotFound):
		return aws.TrueTernary // also resets and EOFs, which the SDK does not retry
	}
	return aws.UnknownTernary
}
