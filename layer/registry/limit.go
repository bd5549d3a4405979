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

// tidy settles what is written down of sandboxes that are gone, as those are
// whose time was over, and of those that killed programs were making or removing:
// each takes the place of one that could be made.
func (l *Provider) tidy(ctx context.Context) error {
	there, err := l.ProviderLayer.List(ctx, atoll.Filter{})
	if err != nil {
		return err
	}
	records, err := l.store.Records(ctx)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for i := range there {
		known[there[i].ID] = true
	}
	for _, r := range records {
		if known[r.ID] && r.State != store.Removing || r.Scope != l.scope || r.State == store.Rebuilding {
			continue
		}
		err := l.tidyOne(ctx, r.ID)
		if err != nil && ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			l.log.Debug("create: settle", "sandbox", r.ID, "err", err) // it keeps its place
		}
	}
	return nil
}

func (l *Provider) tidyOne(ctx context.Context, id string) error {
	unlock, ok := l.gate.try(id)
	if !ok {
		return nil // somebody is at work on it
	}
	defer unlock()
	r, err := l.store.Find(ctx, id) // it may have changed since
	if err == nil && r.State != store.Rebuilding {
		_, err = l.settle(ctx, r, false)
	}
	return notFoundIsFine(err)
}

// shownHolders is how many sandboxes an error names.
const shownHolders = 5

// mayTidy reports whether it is time to: a project that has used up its quota, and
// asks on and on, is not to keep the store and the provider from others.
func (l *Provider) mayTidy(r *store.Record, refused error) bool {
	if !errors.As(refused, new(*store.QuotaError)) {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Sub(l.tidied[r.Spec.Project]) < tidyEvery {
		return false
	}
	l.tidied[r.Spec.Project] = now
	return true
}

// tidyEvery is how often a project without room is looked at for what has gone by
// itself.
const tidyEvery = time.Second

// full is the error of one more sandbox than there may be.
func (l *Provider) full(ctx context.Context, r *store.Record, refused error) error {
	records, err := l.store.Records(ctx)
	if err != nil {
		return err
	}
	var quota *store.QuotaError
	if errors.As(refused, &quota) { // of whom others are is no matter of this project
		records = slices.DeleteFunc(records, func(other *store.Record) bool { return other.Spec.Project != r.Spec.Project })
	}
	var names []string
	for _, other := range records[:min(len(records), shownHolders)] {
		name := cmp.Or(other.Spec.Name, other.ID)
		if other.Spec.Project != r.Spec.Project {
			if auth.AccountFrom(ctx).Bounded() { // nor is what other projects have
				continue
			}
			name = other.Spec.Project + "/" + name
		}
		names = append(names, fmt.Sprintf("%s (%s old)", name, time.Since(other.Created).Round(time.Second)))
	}
	if more := len(records) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	holders := strings.Join(names, ", ")
	if quota != nil {
		err = fmt.Errorf("%w: remove some of %s, ask for less, or have quotas.%s.%s raised", quota, cmp.Or(holders, "none"), quota.Project, quota.Quota)
	} else {
		err = fmt.Errorf("there are %d sandboxes, and no more than %d may be: remove some of %s, raise max_sandboxes, or run atoll reconcile if they are gone", len(records), l.opts.Most, holders)
	}
	return atoll.E("create", cmp.Or(r.Spec.Name, r.ID), atoll.ErrExhausted, atoll.WithRetryAfter(err, retryAfter(records, time.Now())))
}

// How long those are told to wait for whom there is no room.
const (
	leastWait = time.Second
	usualWait = 30 * time.Second // where nothing says when there will be any
	mostWait  = time.Minute      // somebody may remove one at any time
)

// retryAfter guesses when the first of these sandboxes has gone: when its time to live
// is over, if one has such. A fifth more or less keeps those who were refused together
// from coming back together.
func retryAfter(records []*store.Record, now time.Time) time.Duration {
	wait := usualWait
	for _, r := range records {
		if ttl := time.Duration(r.Spec.TTL); ttl > 0 {
			wait = min(wait, r.Created.Add(ttl).Sub(now))
		}
	}
	wait = min(max(wait, leastWait), mostWait)
	return wait + time.Duration((rand.Float64()-0.5)*0.4*float64(wait))
}
