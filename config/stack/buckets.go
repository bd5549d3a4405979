package stack

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/conversation"
	"github.com/seed46cd37a8/atoll/config"
)

// buckets opens each bucket once, for programs that use the same ones repeatedly.
type buckets struct {
	builder *Builder
	log     *slog.Logger

	mu     sync.Mutex
	opened map[string]openedBucket // by URL without the key prefix
}

func (b *Builder) newBuckets(log *slog.Logger) *buckets {
	return &buckets{builder: b, log: log, opened: map[string]openedBucket{}}
}

// openPlace opens the place of versions at a URL in a form of sync.store. The place is usable until closeAll.
func (b *buckets) openPlace(ctx context.Context, at string) (*conversation.Storage, error) {
	name, prefix := at, ""
	u, _, err := config.ParseStore(at)
	if err != nil {
		return nil, atoll.E("sync", "", atoll.ErrInvalid, err)
	}
	below, ours := strings.CutPrefix(at, strings.TrimRight(b.builder.Sync.Store, "/")+"/")
	switch {
	case u.Scheme == "s3":
		name, prefix = "s3://"+u.Host, strings.Trim(u.Path, "/")
	case ours && b.builder.Sync.Store != "": // places below sync.store share its bucket
		name, prefix = b.builder.Sync.Store, strings.Trim(below, "/")
	}
	in, err := b.openBucket(ctx, name)
	if err != nil {
		return nil, err
	}
	r, err := b.builder.newRemote(in, prefix, b.log)
	return &conversation.Storage{Remote: r, Bucket: in, Prefix: prefix}, err
}

// openBucket opens a bucket, or returns the open one.
func (b *buckets) openBucket(ctx context.Context, name string) (openedBucket, error) {
	u, _, err := config.ParseStore(name)
	if err != nil {
		return nil, atoll.E("sync", "", atoll.ErrInvalid, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if kept := b.opened[name]; kept != nil {
		return kept, nil
	}
	kept, err := b.builder.openBucket(ctx, u)
	if err == nil {
		b.opened[name] = kept
	}
	return kept, err
}

// closeAll closes all buckets.
func (b *buckets) closeAll() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var errs []error
	for _, kept := range b.opened {
		errs = append(errs, kept.Close())
	}
	clear(b.opened)
	return errors.Join(errs...)
}
