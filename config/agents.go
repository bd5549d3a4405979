package config

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
func (c *Config) Conversations(ctx context.Context, p atoll.Provider, opts Options) (v *conversation.Service, end func() error, err error) {
	templates, err := c.Templates()
	if err != nil {
		return nil, nil, err
	}
	server, err := c.serverID(ctx)
	if err != nil {
		return nil, nil, err
	}
	kept, err := c.OpenConversations(ctx, opts.Log)
	if err != nil {
		return nil, nil, err
	}
	buckets := c.newBuckets(opts.Log)
	v = conversation.New(p, kept, conversation.Options{
		Templates: templates, Server: server, Store: c.Sync.Store, StaleAfter: time.Duration(c.Sync.Stale), Log: opts.Log,
		Hooks: hooks.New(hooks.Options{Log: opts.Log, Observe: trace.Hooks(opts.traceOptions())}),
		Open:  buckets.openPlace, Lease: time.Duration(c.Store.Lease),
	})
	return v, func() error { return errors.Join(v.Close(), kept.Close(), buckets.closeAll()) }, nil
}
