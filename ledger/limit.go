package ledger

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/store"
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

// full is the error of one more sandbox than there may be.
func (l *Provider) full(ctx context.Context, r *store.Record) error {
	records, err := l.store.Records(ctx)
	if err != nil {
		return err
	}
	var names []string
	for _, other := range records[:min(len(records), shownHolders)] {
		name := cmp.Or(other.Spec.Name, other.ID)
		if other.Spec.Project != r.Spec.Project {
			name = other.Spec.Project + "/" + name
		}
		names = append(names, fmt.Sprintf("%s (%s old)", name, time.Since(other.Created).Round(time.Second)))
	}
	if more := len(records) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return atoll.Errorf("create", cmp.Or(r.Spec.Name, r.ID), atoll.ErrExhausted,
		"there are %d sandboxes, and no more than %d may be: remove some of %s, raise max_sandboxes, or run atoll reconcile if they are gone",
		len(records), l.opts.Most, strings.Join(names, ", "))
}
