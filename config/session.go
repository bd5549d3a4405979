package config

import (
	"cmp"
	"fmt"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/session"
)

// Session says when sessions end by themselves; 0 means never.
type Session struct {
	IdleTimeout atoll.Duration `yaml:"idle_timeout" alias:"SANDBOX_SESSION_IDLE_TIMEOUT" doc:"end a session whose sandbox nobody uses for so long, like 30m; 0 for never"`
	MaxLifetime atoll.Duration `yaml:"max_lifetime" alias:"SANDBOX_SESSION_MAX_LIFETIME" doc:"how long a session may last at most, whatever goes on in it, like 4h; 0 for no limit"`
}

func defaultSession() Session {
	return Session{IdleTimeout: session.DefaultIdleTimeout, MaxLifetime: session.DefaultMaxLifetime}
}

// check calls bad with the key of each value that makes no sense.
func (s Session) check(bad func(key string, err error)) {
	for key, d := range map[string]atoll.Duration{"session.idle_timeout": s.IdleTimeout, "session.max_lifetime": s.MaxLifetime} {
		if d < 0 && d != atoll.Never {
			bad(key, fmt.Errorf("%s: must be positive, or 0 for never", d))
		}
	}
}

// newSessions puts sessions around p.
func newSessions(p atoll.Provider, cfg *Config, opts Options) atoll.Provider {
	idle, lifetime := cfg.sessionTimes()
	return session.New(p, openStore(cfg), session.Options{IdleTimeout: idle, MaxLifetime: lifetime, Server: opts.Server, Log: opts.Log})
}

// sessionTimes are those of sessions that say nothing of it. None lasts longer than a
// sandbox may live.
func (c *Config) sessionTimes() (idle, lifetime atoll.Duration) {
	lifetime = cmp.Or(c.Session.MaxLifetime, atoll.Never)
	if most := c.Lifetime; most > 0 && (lifetime == atoll.Never || lifetime > most) {
		lifetime = most
	}
	return cmp.Or(c.Session.IdleTimeout, atoll.Never), lifetime
}
