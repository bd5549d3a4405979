package config

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/filesync"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
	"github.com/seed46cd37a8/atoll/storage/objectstore/s3"
)

// Sync says where versions of directories are kept, and how far they may go.
type Sync struct {
	Store     string         `yaml:"store" alias:"S3_BUCKET_AGENT_DOCS" doc:"where versions of directories are kept unless a command says it: s3://bucket/prefix, file:///directory, or the name of a bucket"`
	Endpoint  string         `yaml:"endpoint" doc:"service with the buckets of s3, if that is not AWS: https://host:port"`
	Region    string         `yaml:"region" doc:"region of the buckets of s3; that of AWS's own configuration if empty"`
	PathStyle bool           `yaml:"path_style" doc:"put the name of a bucket into paths, as services want it that one runs oneself"`
	PlainHTTP bool           `yaml:"plain_http" doc:"allow an endpoint on another machine without TLS: all who are on the way can read along"`
	CA        string         `yaml:"ca" form:"path" doc:"certificates in PEM that sign the service's, in place of the system's"`
	AccessKey Secret         `yaml:"access_key" doc:"access key of the service, with secret_key; without, what AWS's own tools use"`
	SecretKey Secret         `yaml:"secret_key" doc:"secret key of the service"`
	Stale     atoll.Duration `yaml:"stale_threshold" alias:"SANDBOX_SYNC_STALE_THRESHOLD" lenient:"true" doc:"how old the state of a directory may be before its versions are asked again, like 1h"`
	MaxFiles  int            `yaml:"max_files" doc:"how many files a version may have"`
	MaxBytes  atoll.Bytes    `yaml:"max_bytes" doc:"how large all files of a version may be, like 100g"`
}

func defaultSync() Sync {
	return Sync{Stale: atoll.Duration(filesync.DefaultStale), MaxFiles: filesync.DefaultMaxFiles, MaxBytes: filesync.DefaultMaxBytes}
}

// check calls bad with the key of each value that makes no sense.
func (s Sync) check(bad func(key string, err error)) {
	if s.Store != "" {
		_, _, err := parseStore(s.Store)
		bad("sync.store", err)
	}
	if s.AccessKey.IsZero() != s.SecretKey.IsZero() {
		bad("sync.access_key", fmt.Errorf("goes with sync.secret_key"))
	}
	if s.Stale < 0 {
		bad("sync.stale_threshold", fmt.Errorf("%s: must be positive", s.Stale))
	}
	if s.MaxFiles < 1 {
		bad("sync.max_files", fmt.Errorf("%d: must be positive", s.MaxFiles))
	}
	if s.MaxBytes < 1 {
		bad("sync.max_bytes", fmt.Errorf("%d: must be positive", s.MaxBytes))
	}
}

// parseStore reads the URL of a place in a bucket: the directory of one that is a
// directory, or the name of one of a service, and what comes before keys.
func parseStore(text string) (u *url.URL, prefix string, err error) {
	if !strings.Contains(text, "://") {
		text = "s3://" + text
	}
	u, err = url.Parse(text)
	switch {
	case err != nil:
		return nil, "", err
	case u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return nil, "", fmt.Errorf("%q: has no user, no ? and no #", text)
	case u.Scheme == "s3" && u.Host != "":
		return u, strings.Trim(u.Path, "/"), nil
	case u.Scheme == "file" && u.Host == "" && filepath.IsAbs(filepath.FromSlash(u.Path)):
		return u, "", nil
	}
	return nil, "", fmt.Errorf("%q: write s3://bucket/prefix or file:///directory", text)
}

// OpenStore opens a place for versions: the one that is named, or else that of
// sync.store. Whoever is done with it calls end.
func (c *Config) OpenStore(ctx context.Context, at string, log *slog.Logger) (r *filesync.Remote, end func() error, err error) {
	at = cmp.Or(at, c.Sync.Store)
	if at == "" {
		return nil, nil, atoll.Errorf("sync", "", atoll.ErrInvalid, "no place for versions: name one, like s3://bucket/prefix, or set sync.store")
	}
	u, prefix, err := parseStore(at)
	if err != nil {
		return nil, nil, atoll.E("sync", "", atoll.ErrInvalid, err)
	}
	b, err := c.openBucket(ctx, u)
	if err != nil {
		return nil, nil, err
	}
	if r, err = c.versions(b, prefix, log); err != nil {
		b.Close()
		return nil, nil, err
	}
	return r, b.Close, nil
}

func (c *Config) versions(b objectstore.Bucket, prefix string, log *slog.Logger) (*filesync.Remote, error) {
	return filesync.New(b, prefix, filesync.Options{MaxFiles: c.Sync.MaxFiles, MaxBytes: int64(c.Sync.MaxBytes), Log: log})
}

// A keptBucket is one that is open.
type keptBucket interface {
	objectstore.Bucket
	Close() error
}

func (c *Config) openBucket(ctx context.Context, u *url.URL) (keptBucket, error) {
	if u.Scheme == "file" {
		return objectstore.OpenDir(filepath.FromSlash(u.Path))
	}
	opts := s3.Options{
		Bucket: u.Host, Endpoint: c.Sync.Endpoint, Region: c.Sync.Region, PathStyle: c.Sync.PathStyle, PlainHTTP: c.Sync.PlainHTTP, CA: c.Sync.CA,
	}
	if !c.Sync.AccessKey.IsZero() {
		opts.Credentials = func(context.Context) (s3.Credentials, error) {
			access, err := c.Sync.AccessKey.Reveal()
			if err != nil {
				return s3.Credentials{}, err
			}
			secret, err := c.Sync.SecretKey.Reveal()
			return s3.Credentials{AccessKey: access, SecretKey: secret}, err
		}
	}
	return s3.Open(ctx, opts)
}
