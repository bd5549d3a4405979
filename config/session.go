package config

import (
	"cmp"
	"fmt"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/session"
)

// Session configures when sessions end by themselves; 0 means never.
type Session struct {
	IdleTimeout atoll.Duration `yaml:"idle_timeout" alias:"SANDBOX_SESSION_IDLE_TIMEOUT" doc:"end a session whose sandbox has been idle for so long, like 30m; 0 for never"`
	MaxLifetime atoll.Duration `yaml:"max_lifetime" alias:"SANDBOX_SESSION_MAX_LIFETIME" doc:"maximum lifetime of a session, even one in use, like 4h; 0 for no limit"`
}

func defaultSession() Session {
	return Session{IdleTimeout: session.DefaultIdleTimeout, MaxLifetime: session.DefaultMaxLifetime}
}

// checkValues calls bad with the key of each invalid value.
func (s Session) checkValues(bad func(key string, err error)) {
	for key, d := range map[string]atoll.Duration{"session.idle_timeout": s.IdleTimeout, "session.max_lifetime": s.MaxLifetime} {
		if d < 0 && d != atoll.Never {
			bad(key, fmt.Errorf("%s: must be positive, or 0 for never", d))
		}
	}
}

// SetSessionTimes sets idle and lifetime to the configured times of sessions, if they are 0 and the configuration has
// values for them besides the defaults. A server uses these times for the sessions of this client.
func (c *Config) SetSessionTimes(idle, lifetime *atoll.Duration) {
	wantIdle, wantLifetime := c.SessionTimes()
	if *idle == 0 && c.IsSet("session.idle_timeout") {
		*idle = wantIdle
	}
	if *lifetime == 0 && c.IsSet("session.max_lifetime") {
		*lifetime = wantLifetime
	}
}

// SessionTimes returns the default times of sessions. No session lasts longer than its sandbox may.
func (c *Config) SessionTimes() (idle, lifetime atoll.Duration) {
	lifetime = cmp.Or(c.Session.MaxLifetime, atoll.Never)
	if most := c.Lifetime; most > 0 && (lifetime == atoll.Never || lifetime > most) {
		lifetime = most
	}
	return cmp.Or(c.Session.IdleTimeout, atoll.Never), lifetime
}
