// Package dynamo stores conversations in DynamoDB or a compatible service, for servers on many machines.
//
// There are three tables, whose names begin with a prefix:
//
//	conversations  by account and id; those with a turn in the index "running"
//	messages       by conversation and key; by time in the index "newest"
//	sandboxes      by account and id; those that are not deleted in the index "live"
//
// The indexes of messages and sandboxes are local ones, which support consistent reads. In return, the messages of
// one conversation, and the sandboxes of one account, are limited to 10 GB. The index of turns is global, and updated
// with a delay.
//
// An item of DynamoDB has room for 400 KB, of which an index takes half. The texts of a larger message are in parts:
// items of their own, which are in no index. They are written before the message, and read with it.
//
// The package uses no transactions. AddMessage first records in the conversation that a message is about to be added,
// and its time. Then it puts the message, unless one with the key exists. Then it counts the message and clears the
// record. If the program is killed in between, the message remains uncounted until it is added again.
//
//	s, err := dynamo.Open(ctx, dynamo.Options{Region: "eu-central-1"})
//	...
//	err = s.EnsureTables(ctx)
package dynamo

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/awsclient"
	"github.com/seed46cd37a8/atoll/storage/store"
	"github.com/seed46cd37a8/atoll/storage/store/dynamo/settings"
)

// Options describe where the tables are. Missing values come from the places that AWS tools use: the environment,
// configuration files, and the role of the machine.
type Options struct {
	Prefix   string // prefix of table names; default settings.DefaultPrefix
	Endpoint string // "https://host:port" of the service; "" means AWS
	Region   string // region of the service; default us-east-1 if Endpoint is set
	// PlainHTTP allows an endpoint on another machine without TLS. Anybody on the network path can then read and
	// forge everything. Endpoints on the loopback interface never need TLS.
	PlainHTTP bool
	// CA is a PEM file with the certificates that may have signed the service's; "" means those of the system.
	CA string
	// Credentials returns the keys that sign requests. The store calls it every few minutes. Nil means the
	// credentials that AWS tools would use.
	Credentials func(context.Context) (Credentials, error)

	Attempts int           // attempts per request while the service is busy or unreachable; default 6
	Backoff  time.Duration // longest wait between two attempts; default 10 s
	Stall    time.Duration // time without data after which a connection is closed; default 30 s
	Log      *slog.Logger  // nil discards log lines
}

// Credentials sign requests.
type Credentials struct {
	AccessKey, SecretKey string
	SessionToken         string // of temporary credentials
}

// A Store is the tables with one prefix. Programs on many machines may use it at once.
type Store struct {
	prefix   string
	client   *dynamodb.Client
	http     *http.Client
	endpoint string // "" means AWS
	opts     Options
	closed   atomic.Bool
}

// Open returns a Store, which must be closed. It reads configuration, but sends no request. Kinds: ErrInvalid.
func Open(ctx context.Context, opts Options) (*Store, error) {
	opts.setDefaults()
	invalid := func(format string, args ...any) (*Store, error) {
		return nil, atoll.Errorf("open store", "dynamodb", atoll.ErrInvalid, format, args...)
	}
	if err := settings.CheckPrefix(opts.Prefix); err != nil {
		return invalid("table prefix: %w", err)
	}
	cfg, client, err := awsclient.Load(ctx, opts.clientOptions())
	if err != nil {
		return invalid("%w", err)
	}
	s := &Store{prefix: opts.Prefix, http: client, opts: opts}
	s.client = dynamodb.NewFromConfig(cfg, func(o *dynamodb.Options) {
		if opts.Endpoint != "" {
			o.BaseEndpoint = &opts.Endpoint
		}
		if o.BaseEndpoint != nil && o.Region == "" {
			o.Region = "us-east-1"
		}
		o.APIOptions = append(o.APIOptions, s.refuseClosed)
	})
	o := s.client.Options()
	if o.BaseEndpoint != nil {
		s.endpoint = *o.BaseEndpoint
		if err := settings.CheckEndpoint(s.endpoint, opts.PlainHTTP); err != nil {
			return invalid("%w", err)
		}
	}
	if o.Region == "" {
		return invalid("no region: set region or AWS_REGION to the region of the tables")
	}
	return s, nil
}

// setDefaults replaces zero values by defaults.
func (o *Options) setDefaults() {
	o.Prefix = cmp.Or(o.Prefix, settings.DefaultPrefix)
	if o.Attempts <= 0 {
		o.Attempts = 6
	}
	if o.Backoff <= 0 {
		o.Backoff = 10 * time.Second
	}
	if o.Stall <= 0 {
		o.Stall = 30 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

// clientOptions returns the options of the HTTP client.
func (o *Options) clientOptions() awsclient.Options {
	c := awsclient.Options{Region: o.Region, CA: o.CA, Attempts: o.Attempts, Backoff: o.Backoff, Stall: o.Stall, Log: o.Log}
	if o.Credentials != nil {
		c.Credentials = func(ctx context.Context) (awsclient.Credentials, error) {
			keys, err := o.Credentials(ctx)
			return awsclient.Credentials(keys), err
		}
	}
	return c
}

// Close closes idle connections and makes later requests fail.
func (s *Store) Close() error {
	s.closed.Store(true)
	s.http.CloseIdleConnections()
	return nil
}

var _ store.Conversations = (*Store)(nil)
