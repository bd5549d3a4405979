// Package awsclient is what clients of AWS's services, and of those that speak like
// them, have in common: configuration, endpoints that are safe to ask, connections that
// do not stall, what is tried again, and what errors of the way there mean.
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
	"net/url"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/smithy-go/logging"
)

// Options say how a service is asked. What is left out is found as the tools of AWS
// find it: in the environment, its configuration files, and the machine's role.
type Options struct {
	Region string
	CA     string // a file with certificates in PEM that are trusted too; "" is those of the system
	// Credentials returns what to sign requests with, and is asked again every few
	// minutes. Nil is what AWS's tools would use.
	Credentials func(context.Context) (Credentials, error)

	Attempts int           // of each request
	Backoff  time.Duration // the longest wait between two
	Stall    time.Duration // a connection on which nothing moves for so long is given up
	// Retryable is asked first whether what failed may work the next time. Nil leaves it
	// to what is so of all services.
	Retryable func(error) aws.Ternary
	Log       *slog.Logger // what the SDK has to say besides its errors; nil means nowhere
}

// Credentials sign requests.
type Credentials struct {
	AccessKey, SecretKey string
	SessionToken         string // of temporary ones
}

// credentialsAge is for how long credentials are used that do not say it.
const credentialsAge = 5 * time.Minute

// Load reads the configuration of a client, and asks nobody but files and the
// environment. Its HTTP client is the caller's to close the connections of.
func Load(ctx context.Context, opts Options) (aws.Config, *http.Client, error) {
	cfg, err := config.LoadDefaultConfig(ctx, config.WithHTTPClient(newClient(opts.Stall)))
	if err != nil {
		return aws.Config{}, nil, fmt.Errorf("configuration of AWS: %w", err)
	}
	client, err := newHTTP(cfg.HTTPClient, opts.CA)
	if err != nil {
		return aws.Config{}, nil, fmt.Errorf("certificates: %w", err)
	}
	if opts.Region != "" {
		cfg.Region = opts.Region
	}
	cfg.HTTPClient = client
	cfg.Credentials = credentials(opts.Credentials, cfg.Credentials)
	cfg.Logger = logging.LoggerFunc(func(_ logging.Classification, format string, args ...any) {
		if opts.Log != nil {
			opts.Log.Debug(fmt.Sprintf(format, args...))
		}
	})
	retryer := newRetryer(opts)
	cfg.Retryer = func() aws.Retryer { return retryer }
	return cfg, client, nil
}

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

// credentials are those that get returns, or else the SDK's own.
func credentials(get func(context.Context) (Credentials, error), own aws.CredentialsProvider) aws.CredentialsProvider {
	return aws.NewCredentialsCache(aws.CredentialsProviderFunc(func(ctx context.Context) (aws.Credentials, error) {
		if get == nil && own == nil {
			return aws.Credentials{}, &CredentialsError{errors.New("there are none")}
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
			CanExpire: true, Expires: time.Now().Add(credentialsAge),
		}, nil
	}))
}

// CheckEndpoint says whether the service may be asked there: "https://host:port", or,
// where plain is set or on the loopback interface, "http://host:port".
func CheckEndpoint(text string, plain bool) error {
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

// firstBackoff is the longest wait after the first attempt; each is twice as long.
const firstBackoff = 250 * time.Millisecond

// Backoff is how long to wait after so many attempts: from half of what it may be,
// which is most in the end.
func Backoff(attempt int, most time.Duration) time.Duration {
	d := min(most, firstBackoff<<min(max(attempt-1, 0), 20))
	return d/2 + rand.N(d/2+1)
}
