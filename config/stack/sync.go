package stack

import (
	"cmp"
	"context"
	"log/slog"
	"net/url"
	"path/filepath"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/storage/filesync"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
	"github.com/seed46cd37a8/atoll/storage/objectstore/s3"
)

// OpenStore opens a place of versions: at, or sync.store if at is "". The caller must call end.
func (b *Builder) OpenStore(ctx context.Context, at string, log *slog.Logger) (r *filesync.Remote, end func() error, err error) {
	at = cmp.Or(at, b.Sync.Store)
	if at == "" {
		return nil, nil, atoll.Errorf("sync", "", atoll.ErrInvalid, "no store of versions: name one, like s3://bucket/prefix, or set sync.store")
	}
	u, prefix, err := config.ParseStore(at)
	if err != nil {
		return nil, nil, atoll.E("sync", "", atoll.ErrInvalid, err)
	}
	bucket, err := b.openBucket(ctx, u)
	if err != nil {
		return nil, nil, err
	}
	if r, err = b.newRemote(bucket, prefix, log); err != nil {
		bucket.Close()
		return nil, nil, err
	}
	return r, bucket.Close, nil
}

// newRemote returns the place of versions at prefix in a bucket.
func (b *Builder) newRemote(bucket objectstore.Bucket, prefix string, log *slog.Logger) (*filesync.Remote, error) {
	return filesync.New(bucket, prefix, filesync.Options{Layout: filesync.Layout(b.Sync.Layout), MaxFiles: b.Sync.MaxFiles, MaxBytes: int64(b.Sync.MaxBytes), Log: log})
}

// An openedBucket is an open bucket.
type openedBucket interface {
	objectstore.Bucket
	Close() error
}

func (b *Builder) openBucket(ctx context.Context, u *url.URL) (openedBucket, error) {
	if u.Scheme == "file" {
		return objectstore.OpenDir(filepath.FromSlash(u.Path))
	}
	opts := s3.Options{
		Bucket: u.Host, Endpoint: b.Sync.Endpoint, Region: b.Sync.Region, PathStyle: b.Sync.PathStyle, PlainHTTP: b.Sync.PlainHTTP, CA: b.Sync.CA,
	}
	if !b.Sync.AccessKey.IsZero() {
		opts.Credentials = func(context.Context) (s3.Credentials, error) {
			access, err := b.Sync.AccessKey.Reveal()
			if err != nil {
				return s3.Credentials{}, err
			}
			secret, err := b.Sync.SecretKey.Reveal()
			return s3.Credentials{AccessKey: access, SecretKey: secret}, err
		}
	}
	return s3.Open(ctx, opts)
}
