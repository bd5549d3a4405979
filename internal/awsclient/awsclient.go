// Package awsclient has the common parts of clients of AWS and of compatible services:
// configuration, the check of endpoints, connections that do not stall, retries, and
// messages for errors of the network.
package awsclient

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/smithy-go/logging"
)

// Options configure a client. Load takes missing settings from the sources that AWS's tools
// use: the environment, the configuration files, and the machine's role.
type Options struct {
	Region string
	CA     string // a PEM file with additional trusted certificates; "" trusts those of the system only
	// Credentials returns the credentials to sign requests with. The client calls it
	// again every few minutes. Nil means the credentials that AWS's tools would use.
	Credentials func(context.Context) (Credentials, error)

	Attempts int           // of each request
	Backoff  time.Duration // the longest wait between two attempts
	Stall    time.Duration // the client gives up a connection without any bytes for so long
	// Retryable decides first whether to retry a failed request. Nil means the rules for
	// all services only.
	Retryable func(error) aws.Ternary
	Log       *slog.Logger // receives the SDK's log at debug level; nil discards
}

// Credentials sign requests.
type Credentials struct {
	AccessKey, SecretKey string
	SessionToken         string // of temporary credentials
}

// credentialsTTL is the lifetime of credentials without an expiry.
const credentialsTTL = 5 * time.Minute

// Load returns the configuration of a client, from files and the environment, without a
// request. The caller closes the idle connections of the HTTP client.
func Load(ctx context.Context, opts Options) (aws.Config, *http.Client, error) {
	cfg, err := config.LoadDefaultConfig(ctx, config.WithHTTPClient(newSDKClient(opts.Stall)))
	if err != nil {
		return aws.Config{}, nil, fmt.Errorf("configuration of AWS: %w", err)
	}
	client, err := newServiceClient(cfg.HTTPClient, opts.CA)
	if err != nil {
		return aws.Config{}, nil, fmt.Errorf("certificates: %w", err)
	}
	if opts.Region != "" {
		cfg.Region = opts.Region
	}
	cfg.HTTPClient = client
	cfg.Credentials = newCredentials(opts.Credentials, cfg.Credentials)
	cfg.Logger = logging.LoggerFunc(func(_ logging.Classification, format string, args ...any) {
		if opts.Log != nil {
			opts.Log.Debug(fmt.Sprintf(format, args...))
		}
	})
	retryer := newRetryer(opts)
	cfg.Retryer = func() aws.Retryer { return retryer }
	return cfg, client, nil
}

// newSDKClient returns the client for all requests of the SDK, with connections that do not
// stall.
func newSDKClient(stall time.Duration) *awshttp.BuildableClient {
	dialer := &net.Dialer{Timeout: 30 * time.Second}
	return awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
		t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &stallConn{c, stall}, nil
		}
		t.IdleConnTimeout = stall / 2 // before the stallConn fails
		t.MaxIdleConnsPerHost = 64
		t.ForceAttemptHTTP2 = false // a stallConn expects one request at a time
	})
}

// newServiceClient returns the client of the service, which also trusts the certificates in
// the file ca. It follows no redirect: a signature is valid for one host.
func newServiceClient(base aws.HTTPClient, ca string) (*http.Client, error) {
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

// newCredentials returns a provider of the credentials from get, or of own if get is nil.
func newCredentials(get func(context.Context) (Credentials, error), own aws.CredentialsProvider) aws.CredentialsProvider {
	return aws.NewCredentialsCache(aws.CredentialsProviderFunc(func(ctx context.Context) (aws.Credentials, error) {
		if get == nil && own == nil {
			return aws.Credentials{}, &CredentialsError{errors.New("none are configured")}
		}
		if get == nil {
			c, err := own.Retrieve(ctx)
			if err != nil {
				err = &CredentialsError{err}
			}
			return c, err
		}
		c, err := get(ctx)
		if err != nil {
			return aws.Credentials{}, &CredentialsError{err}
		}
		return aws.Credentials{
			AccessKeyID: c.AccessKey, SecretAccessKey: c.SecretKey, SessionToken: c.SessionToken,
			CanExpire: true, Expires: time.Now().Add(credentialsTTL),
		}, nil
	}))
}

// A stallConn fails if neither direction has transferred bytes for the time stall. One
// direction alone may rest: the response follows the request.
type stallConn struct {
	net.Conn
	stall time.Duration
}

func (c *stallConn) Read(b []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(c.stall)); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

func (c *stallConn) Write(b []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(c.stall)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// firstBackoff is the longest wait after the first attempt; it doubles with each attempt.
const firstBackoff = 250 * time.Millisecond

// Backoff returns the time to wait after that many attempts: a random time between half of
// the limit and the limit, which grows to most.
func Backoff(attempt int, most time.Duration) time.Duration {
	d := min(most, firstBackoff<<min(max(attempt-1, 0), 20))
	return d/2 + rand.N(d/2+1)
}
