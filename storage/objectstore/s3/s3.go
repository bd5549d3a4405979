// Package s3 has the buckets of services that speak S3: AWS, and what one runs
// oneself.
//
// What is written is signed with its SHA-256, over TLS too, which every such service
// checks: what arrives is what was sent. No other checksum is asked for, since not all
// services know those.
//
// A service has to look at If-Match and If-None-Match, also when it puts the parts of
// a large object together. AWS says that it does, and so does versitygw; gofakes3 and
// rclone's server do not:
//
//	b, err := s3.Open(ctx, s3.Options{Bucket: "runs", Endpoint: "https://s3.example.org", PathStyle: true})
//	...
//	err = objectstore.CheckConditions(ctx, b, "atoll/")
//
// Services that keep objects in directories, as versitygw, refuse one at a key that
// others are below.
package s3

import (
	"context"
	"net/http"
	"regexp"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/awsclient"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

// Options say where a bucket is. What is left out is found as the tools of AWS find
// it: in the environment, its configuration files, and the machine's role.
type Options struct {
	Bucket   string // its name; required
	Endpoint string // "https://host:port" of the service; "" is AWS
	Region   string // where it is; with an endpoint, us-east-1 unless told
	// PathStyle has the bucket's name in the path and not in the host's name, as most
	// services want it that one runs oneself.
	PathStyle bool
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

	Attempts    int           // of each request, while the service is busy or cannot be reached; 7, which go on for eight seconds at least
	Backoff     time.Duration // the longest wait between two; 10 s
	Stall       time.Duration // a connection on which nothing moves for so long is given up; two minutes
	PartSize    int64         // objects that are larger are sent in parts of this size, at least 5 MiB; 16 MiB
	Concurrency int           // parts of one object at once; 4
}

// Credentials sign requests.
type Credentials struct {
	AccessKey, SecretKey string
	SessionToken         string // of temporary ones
}

// A Bucket is one of a service.
type Bucket struct {
	name     string
	client   *s3.Client
	http     *http.Client
	endpoint string // "" is AWS
	opts     Options
	inParts  bool // however small objects are
}

// minPart and maxParts are limits of all services.
const (
	minPart  = 5 << 20
	maxParts = 10_000
)

// bucketName allows those of AWS, and the older and the odd ones of other services, of
// up to maxName bytes. The bound is not in it: that would take every program that has
// this package more than a millisecond to start.
var bucketName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]+$`)

const maxName = 255

// Open makes a Bucket. It reads configuration, and does not ask the service anything.
// Close it.
func Open(ctx context.Context, opts Options) (*Bucket, error) {
	invalid := func(format string, args ...any) (*Bucket, error) {
		return nil, atoll.Errorf("open bucket", "s3://"+opts.Bucket, atoll.ErrInvalid, format, args...)
	}
	opts.defaults()
	switch {
	case len(opts.Bucket) > maxName || !bucketName.MatchString(opts.Bucket):
		return invalid("%q is no name of a bucket", opts.Bucket)
	case opts.PartSize < minPart:
		return invalid("parts of %d bytes: services want %d at least", opts.PartSize, minPart)
	}
	cfg, client, err := awsclient.Load(ctx, opts.client())
	if err != nil {
		return invalid("%w", err)
	}
	b := &Bucket{name: opts.Bucket, http: client, opts: opts}
	b.client = s3.NewFromConfig(cfg, func(o *s3.Options) {
		o.UsePathStyle = opts.PathStyle
		if opts.Endpoint != "" {
			o.BaseEndpoint = &opts.Endpoint
		}
		if o.BaseEndpoint != nil && o.Region == "" {
			o.Region = "us-east-1"
		}
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		o.APIOptions = append(o.APIOptions, signBodies)
	})
	o := b.client.Options()
	if o.BaseEndpoint != nil {
		b.endpoint = *o.BaseEndpoint
		if err := awsclient.CheckEndpoint(b.endpoint, opts.PlainHTTP); err != nil {
			return invalid("%w", err)
		}
	}
	if o.Region == "" {
		return invalid("no region: set it, or AWS_REGION, to that of the bucket")
	}
	return b, nil
}

func (o *Options) defaults() {
	if o.Attempts <= 0 {
		o.Attempts = 7
	}
	if o.Backoff <= 0 {
		o.Backoff = 10 * time.Second
	}
	if o.Stall <= 0 {
		o.Stall = 2 * time.Minute
	}
	if o.PartSize == 0 {
		o.PartSize = 16 << 20
	}
	if o.Concurrency <= 0 {
		o.Concurrency = 4
	}
}

// InParts is the same bucket, which writes every object as a large one, in parts:
// services keep their promises for those in another way.
func (b *Bucket) InParts() objectstore.Bucket {
	c := *b
	c.inParts = true
	return &c
}

// String is the bucket's URL.
func (b *Bucket) String() string { return "s3://" + b.name }

// Close closes connections that nobody uses.
func (b *Bucket) Close() error {
	b.http.CloseIdleConnections()
	return nil
}
