package secretsource

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// The times of a Cache.
const (
	freshTime = time.Minute      // a value is used without asking the store
	staleTime = 5 * time.Minute  // a value is used if the store does not answer
	retryTime = 10 * time.Second // the store is not asked again after a failure
)

// A Cache reads values in stores and retains them for a minute, in memory. If a store does not answer, the last value remains valid until
// it is five minutes old; if the store says that there is no value, or that it may not be read, it ends at once. It asks for each source
// once at a time. Its methods can be called concurrently.
type Cache struct {
	log  *slog.Logger
	read func(ctx context.Context, source string) (atoll.SecretValue, error)
	now  func() time.Time

	mu      sync.Mutex
	entries map[string]*cached
}

// A cached value has the result of the last read of a source.
type cached struct {
	mu     sync.Mutex // held while the store is asked
	value  atoll.SecretValue
	at     time.Time // when the store had the value; zero for no value
	err    error     // of the last read
	failed time.Time // when that was
}

// NewCache returns an empty cache in front of read. It logs reads that fail.
func NewCache(log *slog.Logger, read func(ctx context.Context, source string) (atoll.SecretValue, error)) *Cache {
	return &Cache{log: log, read: read, now: time.Now, entries: map[string]*cached{}}
}

// Put adds a value that a store had at the given time, unless the cache has asked the store already.
func (c *Cache) Put(source string, value atoll.SecretValue, at time.Time) {
	e := c.entryOf(source)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.at.IsZero() && e.err == nil {
		e.value, e.at = value, at
	}
}

// Read returns the value at a source. It blocks while the store is asked.
func (c *Cache) Read(ctx context.Context, source string) (atoll.SecretValue, error) {
	e := c.entryOf(source)
	e.mu.Lock()
	defer e.mu.Unlock()
	now := c.now()
	if now.Sub(e.at) < freshTime {
		return e.value, nil
	}
	if e.err == nil || now.Sub(e.failed) >= retryTime {
		c.refreshEntry(ctx, source, e)
	}
	if e.err != nil && (!isOutage(e.err) || c.now().Sub(e.at) >= staleTime) {
		return "", e.err
	}
	return e.value, nil
}

// entryOf returns the entry of a source.
func (c *Cache) entryOf(source string) *cached {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[source]
	if e == nil {
		e = &cached{}
		c.entries[source] = e
	}
	return e
}

// refreshEntry asks the store. The caller holds the entry's mutex.
func (c *Cache) refreshEntry(ctx context.Context, source string, e *cached) {
	value, err := c.read(ctx, source)
	e.err = err
	if err == nil {
		e.value, e.at = value, c.now()
		return
	}
	e.failed = c.now()
	if !isOutage(err) {
		e.value, e.at = "", time.Time{}
	}
	c.log.Warn("secret: no new value", "source", source, "err", err)
}

// isOutage reports whether an error says nothing about the value.
func isOutage(err error) bool {
	return slices.Contains([]atoll.Kind{atoll.ErrUnavailable, atoll.ErrTimeout, atoll.ErrInternal}, atoll.KindOf(err))
}
