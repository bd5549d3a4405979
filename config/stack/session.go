package stack

import (
	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/session"
)

// newSessions wraps the session layer around p.
func newSessions(p atoll.Provider, b *Builder, opts Options) atoll.Provider {
	idle, lifetime := b.SessionTimes()
	return session.New(p, openStore(b), session.Options{IdleTimeout: idle, MaxLifetime: lifetime, Server: opts.Server, Log: opts.Log})
}
