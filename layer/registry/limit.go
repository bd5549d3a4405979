package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/auth"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// settleStale settles the records of sandboxes that are gone, such as expired ones,
// and of those that a dead program was creating or removing. Each counts towards
// the limit.
func (l *Provider) settleStale(ctx context.Context) error {
	statuses, err := l.ProviderLayer.List(ctx, atoll.Filter{})
	if err != nil {
		return err
	}
	records, err := l.store.Records(ctx)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for i := range statuses {
		known[statuses[i].ID] = true
	}
	for _, r := range records {
		if known[r.ID] && r.State != store.Removing || r.Scope != l.scope || r.State == store.Rebuilding {
			continue
		}
		err := l.settleRecord(ctx, r.ID)
		if err != nil && ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			l.log.Debug("create: settle", "sandbox", r.ID, "err", err) // the record still counts
		}
	}
	return nil
}

// settleRecord settles a record unless another goroutine works on it or it waits
// for a rebuild.
func (l *Provider) settleRecord(ctx context.Context, id string) error {
	unlock, ok := l.locks.tryLock(id)
	if !ok {
		return nil // another goroutine works on it
	}
	defer unlock()
	r, err := l.store.Find(ctx, id) // read again under the lock
	if err == nil && r.State != store.Rebuilding {
		_, err = l.settleLocked(ctx, r, false)
	}
	return ignoreNotFound(err)
}

// maxHoldersShown limits the sandboxes that a limit error names.
const maxHoldersShown = 5

// maySettle reports whether Create may settle stale records after refused. A
// project at its quota may only do so every settleInterval, so that its retries do
// not load the store and the provider.
func (l *Provider) maySettle(r *store.Record, refused error) bool {
	if !errors.As(refused, new(*store.QuotaError)) {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Sub(l.lastSettled[r.Spec.Project]) < settleInterval {
		return false
	}
	l.lastSettled[r.Spec.Project] = now
	return true
}

// settleInterval is the minimum interval between calls of settleStale for one
// project.
const settleInterval = time.Second

// limitError returns the ErrExhausted of a Create that the store refused. It names
// some of the sandboxes that count.
func (l *Provider) limitError(ctx context.Context, r *store.Record, refused error) error {
	records, err := l.store.Records(ctx)
	if err != nil {
		return err
	}
	var quota *store.QuotaError
	if errors.As(refused, &quota) { // only the project's own sandboxes count
		records = slices.DeleteFunc(records, func(other *store.Record) bool { return other.Spec.Project != r.Spec.Project })
	}
	var names []string
	for _, other := range records {
		foreign := other.Spec.Project != r.Spec.Project
		if len(names) == maxHoldersShown || foreign && auth.AccountFrom(ctx).IsRestricted() { // it may not see other projects
			continue
		}
		name, err := l.holderName(ctx, other)
		if err != nil {
			return err
		}
		if foreign {
			name = other.Spec.Project + "/" + name
		}
		names = append(names, fmt.Sprintf("%s (%s old)", name, time.Since(other.Created).Round(time.Second)))
	}
	if more := len(records) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	holders := strings.Join(names, ", ")
	if quota != nil {
		err = fmt.Errorf("%w: remove some of %s, ask for less, or raise quotas.%s.%s", quota, cmp.Or(holders, "none"), quota.Project, quota.Quota)
	} else {
		err = fmt.Errorf("%d sandboxes exist, and the limit is %d: remove some of %s with atoll rm, raise max_sandboxes, or run atoll reconcile if they are gone", len(records), l.opts.MaxSandboxes, holders)
	}
	return atoll.E("create", cmp.Or(r.Spec.Name, r.ID), atoll.ErrExhausted, atoll.WithRetryAfter(err, retryAfter(records, time.Now())))
}

// holderName returns the name of a sandbox, or its id if it has none. The name of one
// that came from a pool is in its claim.
func (l *Provider) holderName(ctx context.Context, r *store.Record) (string, error) {
	if r.Spec.Name != "" {
		return r.Spec.Name, nil
	}
	w, err := l.store.FindWarm(ctx, r.ID)
	switch {
	case atoll.KindOf(err) == atoll.ErrNotExist:
		return r.ID, nil
	case err != nil:
		return "", err
	case w.Claimed.IsZero():
		return fmt.Sprintf("%s, warm in the pool %s", r.ID, w.Pool), nil
	}
	return cmp.Or(w.Name, r.ID), nil
}

// The RetryAfter of limit errors.
const (
	minRetryAfter     = time.Second
	defaultRetryAfter = 30 * time.Second // if no sandbox has a TTL
	maxRetryAfter     = time.Minute      // a user may remove one at any time
)

// retryAfter estimates when the first of these sandboxes will be gone: at the
// earliest expiry, if any has a TTL. It varies the result by up to a fifth, so that
// callers refused together do not retry together.
func retryAfter(records []*store.Record, now time.Time) time.Duration {
	wait := defaultRetryAfter
	for _, r := range records {
		if ttl := time.Duration(r.Spec.TTL); ttl > 0 {
			wait = min(wait, r.Created.Add(ttl).Sub(now))
		}
	}
	wait = min(max(wait, minRetryAfter), maxRetryAfter)
	return wait + time.Duration((rand.Float64()-0.5)*0.4*float64(wait))
}
