package stack

import (
	"context"
	"errors"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/conversation"
	"github.com/seed46cd37a8/atoll/agent/hooks"
	"github.com/seed46cd37a8/atoll/layer/trace"
)

// Conversations returns the service of conversations with agents in sandboxes of p. The caller must call end and then
// close p.
func (b *Builder) Conversations(ctx context.Context, p atoll.Provider, opts Options) (v *conversation.Service, end func() error, err error) {
	templates, err := b.Templates()
	if err != nil {
		return nil, nil, err
	}
	server, err := b.serverID(ctx)
	if err != nil {
		return nil, nil, err
	}
	kept, err := b.OpenConversations(ctx, opts.Log)
	if err != nil {
		return nil, nil, err
	}
	buckets := b.newBuckets(opts.Log)
	v = conversation.New(p, kept, conversation.Options{
		Templates: templates, Server: server, Store: b.Sync.Store, StaleAfter: time.Duration(b.Sync.Stale), Log: opts.Log,
		Hooks: hooks.New(hooks.Options{Log: opts.Log, Observe: trace.Hooks(opts.traceOptions())}),
		Open:  buckets.openPlace, Lease: time.Duration(b.Store.Lease),
	})
	return v, func() error { return errors.Join(v.Close(), kept.Close(), buckets.closeAll()) }, nil
}
