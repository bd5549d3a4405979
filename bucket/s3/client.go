package s3

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// firstBackoff is the longest wait after the first attempt; each is twice as long.
const firstBackoff = 250 * time.Millisecond

// newClient is the client of everything that the SDK asks, with connections that do
// not stall.
func newClient(stall time.Duration) *awshttp.BuildableClient {
	dialer := &net.Dialer{Timeout: 30 * time.Second}
	return awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
		t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &conn{c, stall}, nil
		}
		t.IdleConnTimeout = stall / 2 // before the conn has enough of it
		t.MaxIdleConnsPerHost = 64
		t.ForceAttemptHTTP2 = false // a connection is one request's at a time
	})
}

// newHTTP is the client of the service, which trusts the certificates in the file ca
// too. It follows no redirect: what is signed is for one host.
func newHTTP(base aws.HTTPClient, ca string) (*http.Client, error) {
	built, ok := base.(*awshttp.BuildableClient)
	if !ok {
		return nil, fmt.Errorf("unexpected client %T", base)
	}
	transport := built.GetTransport()
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, err
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has none", ca)
		}
		transport.TLSClientConfig.RootCAs = pool
	}
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}, nil
}

// checkEndpoint says whether the service may be asked there.
func checkEndpoint(text string, plain bool) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return fmt.Errorf("endpoint: %w", err)
	case u.User != nil:
		return errors.New("endpoint: has credentials in it: set them apart")
	case (u.Scheme != "https" && u.Scheme != "http") || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("endpoint %q: write it like https://host:port", text)
	case u.Scheme == "http" && !plain && !isLocal(u.Hostname()):
		return fmt.Errorf("endpoint %s: without TLS everybody on the way can read what is stored: use https, or allow plain HTTP", text)
	}
	return nil
}

// isLocal reports whether host is spelt as one on the loopback interface.
func isLocal(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// A conn fails when neither direction has moved for a while. While one does the other
// may rest: a request is sent before it is answered.
type conn struct {
	net.Conn
	stall time.Duration
}

func (c *conn) Read(b []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(c.stall)); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

func (c *conn) Write(b []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(c.stall)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// signBodies has the SHA-256 of what is sent signed over TLS, too, where the SDK leaves
// it out.
func signBodies(stack *middleware.Stack) error {
	sum := &v4.ComputePayloadSHA256{}
	if _, ok := stack.Finalize.Get(sum.ID()); !ok {
		return nil
	}
	_, err := stack.Finalize.Swap(sum.ID(), sum)
	return err
}

// newRetryer tries again what may work then, as long as there are attempts left:
// the SDK's own would give up all requests when many have failed.
func newRetryer(opts Options) aws.Retryer {
	return retry.NewStandard(func(o *retry.StandardOptions) {
		o.MaxAttempts = opts.Attempts
		o.RateLimiter = ratelimit.None
		o.Backoff = retry.BackoffDelayerFunc(func(attempt int, _ error) (time.Duration, error) {
			return backoff(attempt, opts.Backoff), nil
		})
		o.Retryables = append([]retry.IsErrorRetryable{retry.IsErrorRetryableFunc(retryable)}, o.Retryables...)
	})
}

// backoff is how long to wait after so many attempts: from half of what it may be.
func backoff(attempt int, most time.Duration) time.Duration {
	d := min(most, firstBackoff<<min(max(attempt-1, 0), 20))
	return d/2 + rand.N(d/2+1)
}

// retryable adds to what the SDK knows.
func retryable(err error) aws.Ternary {
	var reader *readerError
	var creds *credentialsError
	var sent *smithyhttp.RequestSendError
	switch {
	case errors.As(err, &reader), errors.As(err, &creds), isCertificate(err), isNoTLS(err), errors.Is(err, context.Canceled):
		return aws.FalseTernary
	case errors.Is(err, io.ErrUnexpectedEOF): // an answer that was cut short
		return aws.TrueTernary
	case statusOf(err) == http.StatusTooManyRequests, statusOf(err) == http.StatusRequestTimeout:
		return aws.TrueTernary
	}
	if code := codeOf(err); code == codeBusy || code == "OperationAborted" {
		return aws.TrueTernary
	}
	var dns *net.DNSError
	if errors.As(err, &sent) && !(errors.As(err, &dns) && dns.IsNotFound) {
		return aws.TrueTernary // also resets and EOFs, which the SDK takes for final
	}
	return aws.UnknownTernary
}
