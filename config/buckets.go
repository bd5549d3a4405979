package config

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/conversation"
)

// buckets are those that a program uses again and again: each is opened once.
type buckets struct {
	cfg *Config
	log *slog.Logger

	mu   sync.Mutex
	open map[string]keptBucket // by URL, without what comes before keys
}

func (c *Config) newBuckets(log *slog.Logger) *buckets {
	return &buckets{cfg: c, log: log, open: map[string]keptBucket{}}
}

// place opens a place for versions, in the forms of sync.store. It is good until close.
func (b *buckets) place(ctx context.Context, at string) (*conversation.Place, error) {
	name, prefix := at, ""
	u, _, err := parseStore(at)
	if err != nil {
		return nil, atoll.E("sync", "", atoll.ErrInvalid, err)
	}
	below, ours := strings.CutPrefix(at, strings.TrimRight(b.cfg.Sync.Store, "/")+"/")
	switch {
	case u.Scheme == "s3":
		name, prefix = "s3://"+u.Host, strings.Trim(u.Path, "/")
	case ours && b.cfg.Sync.Store != "": // one directory is enough for all
		name, prefix = b.cfg.Sync.Store, strings.Trim(below, "/")
	}
	in, err := b.bucket(ctx, name)
	if err != nil {
		return nil, err
	}
	r, err := b.cfg.versions(in, prefix, b.log)
	return &conversation.Place{Remote: r, Bucket: in, Prefix: prefix}, err
}

// bucket opens the one with a name.
func (b *buckets) bucket(ctx context.Context, name string) (keptBucket, error) {
	u, _, err := parseStore(name)
	if err != nil {
		return nil, atoll.E("sync", "", atoll.ErrInvalid, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if kept := b.open[name]; kept != nil {
		return kept, nil
	}
	kept, err := b.cfg.openBucket(ctx, u)
	if err == nil {
		b.open[name] = kept
	}
	return kept, err
}

func (b *buckets) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var errs []error
	for _, kept := range b.open {
		errs = append(errs, kept.Close())
	}
	clear(b.open)
	return errors.Join(errs...)
}
