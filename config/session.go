package config

import (
	"cmp"
	"fmt"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/session"
)

// Session says when sessions end by themselves; 0 means never.
type Session struct {
	IdleTimeout atoll.Duration `yaml:"idle_timeout" alias:"SANDBOX_SESSION_IDLE_TIMEOUT" doc:"end a session whose sandbox nobody uses for so long, like 30m; 0 for never"`
	MaxLifetime atoll.Duration `yaml:"max_lifetime" alias:"SANDBOX_SESSION_MAX_LIFETIME" doc:"how long a session may last at most, whatever goes on in it, like 4h; 0 for no limit"`
}

func defaultSession() Session {
	return Session{IdleTimeout: atoll.DefaultSessionIdleTimeout, MaxLifetime: atoll.DefaultSessionMaxLifetime}
}

// check calls bad with the key of each value that makes no sense.
func (s Session) check(bad func(key string, err error)) {
	for key, d := range map[string]atoll.Duration{"session.idle_timeout": s.IdleTimeout, "session.max_lifetime": s.MaxLifetime} {
		if d < 0 && d != atoll.Never {
			bad(key, fmt.Errorf("%s: must be positive, or 0 for never", d))
		}
	}
}

// newSessions puts sessions around p. None lasts longer than a sandbox may live.
func newSessions(p atoll.Provider, cfg *Config, opts Options) atoll.Provider {
	lifetime := cmp.Or(cfg.Session.MaxLifetime, atoll.Never)
	if most := cfg.Lifetime; most > 0 && (lifetime == atoll.Never || lifetime > most) {
		lifetime = most
	}
	return session.New(p, openStore(cfg), session.Options{
		IdleTimeout: cmp.Or(cfg.Session.IdleTimeout, atoll.Never), MaxLifetime: lifetime, Server: opts.Server, Log: opts.Log,
	})
}
