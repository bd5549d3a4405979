// Package s3 implements buckets of services that speak S3: AWS and self-hosted ones.
//
// Requests are signed with the SHA-256 of their body, also over TLS; every service
// checks it, so stored bytes are the sent ones. The package requests no other
// checksums, since not all services support them.
//
// A service has to honour If-Match and If-None-Match, also when it completes a
// multipart upload. AWS documents that it does, and versitygw does, too; gofakes3 and
// rclone's server do not:
//
//	b, err := s3.Open(ctx, s3.Options{Bucket: "runs", Endpoint: "https://s3.example.org", PathStyle: true})
//	...
//	err = objectstore.CheckConditions(ctx, b, "atoll/")
//
// Services that keep objects in directories, such as versitygw, refuse an object at a
// key that has others below it.
package s3

import (
	"context"
	"net/http"
	"regexp"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/awsclient"
	"github.com/seed46cd37a8/atoll/internal/endpoint"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

// Options configure a bucket. Like AWS's tools, Open looks for missing settings in the
// environment, AWS's configuration files and the machine's role.
type Options struct {
	Bucket   string // its name; required
	Endpoint string // "https://host:port" of the service; "" means AWS
	Region   string // of the bucket; with an endpoint the default is us-east-1
	// PathStyle puts the bucket's name into the path instead of the host name, as most
	// self-hosted services need it.
	PathStyle bool
	// PlainHTTP allows an endpoint on another machine without TLS: everyone on the
	// network path can read all objects and forge answers. Endpoints on the loopback
	// interface are always allowed.
	PlainHTTP bool
	// CA is a PEM file of certificates, one of which has signed the service's; "" means
	// those of the system.
	CA string
	// Credentials returns the credentials for requests; the client calls it every few
	// minutes. Nil means those that AWS's tools would use.
	Credentials func(context.Context) (Credentials, error)

	Attempts    int           // per request, while the service is busy or unreachable; default 7, which take at least eight seconds
	Backoff     time.Duration // the longest wait between two attempts; default 10 s
	Stall       time.Duration // the time without traffic after which a connection is given up; default two minutes
	PartSize    int64         // of multipart uploads, for objects larger than this; at least 5 MiB, default 16 MiB
	Concurrency int           // parts of one object sent at once; default 4

	answerTimeout time.Duration // of a writeTransport; default answerTimeout
}

// Credentials are the keys that sign requests.
type Credentials struct {
	AccessKey, SecretKey string
	SessionToken         string // for temporary credentials
}

// A Bucket is a bucket of an S3 service.
type Bucket struct {
	name     string
	client   *s3.Client
	http     *http.Client
	endpoint string // "" means AWS
	opts     Options
	inParts  bool // use multipart uploads for small objects, too
}

// minPart and maxParts are limits of all services.
const (
	minPart  = 5 << 20
	maxParts = 10_000
)

// bucketName matches the names of AWS, and older and unusual ones of other services.
// maxName bounds their length in bytes.
var bucketName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]+$`) })

const maxName = 255

// Open returns a Bucket. It reads configuration but sends no request. The caller closes
// the Bucket.
func Open(ctx context.Context, opts Options) (*Bucket, error) {
	invalid := func(format string, args ...any) (*Bucket, error) {
		return nil, atoll.Errorf("open bucket", "s3://"+opts.Bucket, atoll.ErrInvalid, format, args...)
	}
	opts.setDefaults()
	switch {
	case len(opts.Bucket) > maxName || !bucketName().MatchString(opts.Bucket):
		return invalid("invalid bucket name %q", opts.Bucket)
	case opts.PartSize < minPart:
		return invalid("part size %d is too small; use at least %d bytes", opts.PartSize, minPart)
	}
	cfg, client, err := awsclient.Load(ctx, opts.clientOptions())
	if err != nil {
		return invalid("%w", err)
	}
	client.Transport = &writeTransport{client.Transport, opts.answerTimeout}
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
		if err := endpoint.Check(b.endpoint, opts.PlainHTTP); err != nil {
			return invalid("%w", err)
		}
	}
	if o.Region == "" {
		return invalid("no region: set region or AWS_REGION to the bucket's region")
	}
	return b, nil
}

func (o *Options) setDefaults() {
	if o.Attempts <= 0 {
		o.Attempts = 7
	}
	if o.Backoff <= 0 {
		o.Backoff = 10 * time.Second
	}
	if o.Stall <= 0 {
		o.Stall = 2 * time.Minute
	}
	if o.answerTimeout <= 0 {
		o.answerTimeout = answerTimeout
	}
	if o.PartSize == 0 {
		o.PartSize = 16 << 20
	}
	if o.Concurrency <= 0 {
		o.Concurrency = 4
	}
}

// InParts returns the same bucket, but it writes every object with a multipart upload:
// services implement conditions for those separately.
func (b *Bucket) InParts() objectstore.Bucket {
	c := *b
	c.inParts = true
	return &c
}

// String returns the bucket's URL.
func (b *Bucket) String() string { return "s3://" + b.name }

// Close closes idle connections.
func (b *Bucket) Close() error {
	b.http.CloseIdleConnections()
	return nil
}
