// Package dynamo keeps conversations in DynamoDB, or in a service that speaks like it,
// for servers on many machines.
//
// There are three tables, whose names begin with a prefix:
//
//	conversations  by account and id; those with a turn in the index "running"
//	messages       by conversation and key; by time in the index "newest"
//	sandboxes      by account and id; those that are not deleted in the index "live"
//
// The indexes of messages and sandboxes are local ones, which can be read consistently:
// what was written is read at once. In return the messages of one conversation, and the
// sandboxes of one account, may be 10 GB. The index of turns is global, and a moment late.
//
// An item of DynamoDB has room for 400 KB, of which an index takes half. The texts of a
// larger message are in items of their own beside it, which no index has; they are
// written before it, and read with it.
//
// No transactions are used. A conversation writes down which messages are about to be
// added to it, and with which times; then the message is put, if there is none of its
// key; then it is counted, and no longer written down. Who is cut short in between leaves
// a message that is not counted, until it is added again.
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
	"regexp"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/awsclient"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// DefaultPrefix is what the names of tables begin with unless told.
const DefaultPrefix = "atoll-"

// Options say where tables are. What is left out is found as the tools of AWS find it:
// in the environment, its configuration files, and the machine's role.
type Options struct {
	Prefix   string // what the names of tables begin with; DefaultPrefix
	Endpoint string // "https://host:port" of the service; "" is AWS
	Region   string // where it is; with an endpoint, us-east-1 unless told
	// PlainHTTP allows an endpoint on another machine without TLS: who is on the way
	// reads all that is stored, and answers what he likes. Those on the loopback
	// interface always may be.
	PlainHTTP bool
	// CA is a file with certificates in PEM, one of which has signed the service's;
	// "" is those of the system.
	CA string
	// Credentials returns what to sign requests with, and is asked again every few
	// minutes. Nil is what AWS's tools would use.
	Credentials func(context.Context) (Credentials, error)

	Attempts int           // of each request, while the service is busy or cannot be reached; 6
	Backoff  time.Duration // the longest wait between two; 10 s
	Stall    time.Duration // a connection on which nothing moves for so long is given up; 30 s
	Log      *slog.Logger  // nil means nowhere
}

// Credentials sign requests.
type Credentials struct {
	AccessKey, SecretKey string
	SessionToken         string // of temporary ones
}

// A Store is the tables of one prefix. It may be used from many machines at once.
type Store struct {
	prefix   string
	client   *dynamodb.Client
	http     *http.Client
	endpoint string // "" is AWS
	opts     Options
	closed   atomic.Bool
}

// tablePrefix is what a prefix consists of; maxPrefix leaves room for the rest of a name.
var tablePrefix = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

const maxPrefix = 200

// CheckPrefix says whether names of tables may begin with prefix. Kinds: ErrInvalid.
func CheckPrefix(prefix string) error {
	if len(prefix) > maxPrefix || !tablePrefix.MatchString(prefix) {
		return atoll.Errorf("", "", atoll.ErrInvalid, "%q: use up to %d letters, digits, '-', '_' or '.'", prefix, maxPrefix)
	}
	return nil
}

// CheckEndpoint says whether a service may be asked at endpoint; plain is PlainHTTP.
// Kinds: ErrInvalid.
func CheckEndpoint(endpoint string, plain bool) error {
	if err := awsclient.CheckEndpoint(endpoint, plain); err != nil {
		return atoll.E("", "", atoll.ErrInvalid, err)
	}
	return nil
}

// Open makes a Store. It reads configuration, and does not ask the service anything.
// Close it. Kinds: ErrInvalid.
func Open(ctx context.Context, opts Options) (*Store, error) {
	opts.defaults()
	invalid := func(format string, args ...any) (*Store, error) {
		return nil, atoll.Errorf("open store", "dynamodb", atoll.ErrInvalid, format, args...)
	}
	if err := CheckPrefix(opts.Prefix); err != nil {
		return invalid("prefix of tables: %w", err)
	}
	cfg, client, err := awsclient.Load(ctx, opts.client())
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
		if err := CheckEndpoint(s.endpoint, opts.PlainHTTP); err != nil {
			return invalid("%w", err)
		}
	}
	if o.Region == "" {
		return invalid("no region: set it, or AWS_REGION, to that of the tables")
	}
	return s, nil
}

func (o *Options) defaults() {
	o.Prefix = cmp.Or(o.Prefix, DefaultPrefix)
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

// client is how the service is asked.
func (o *Options) client() awsclient.Options {
	c := awsclient.Options{Region: o.Region, CA: o.CA, Attempts: o.Attempts, Backoff: o.Backoff, Stall: o.Stall, Log: o.Log}
	if o.Credentials != nil {
		c.Credentials = func(ctx context.Context) (awsclient.Credentials, error) {
			keys, err := o.Credentials(ctx)
			return awsclient.Credentials(keys), err
		}
	}
	return c
}

// Close closes connections that nobody uses.
func (s *Store) Close() error {
	s.closed.Store(true)
	s.http.CloseIdleConnections()
	return nil
}

var _ store.Conversations = (*Store)(nil)
