package config

import (
	"cmp"
	"context"
	"log/slog"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/authz"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// newAuthz wraps the layer around p that limits callers to their projects. projects has the
// providers of some projects. The layer reports refused calls to log, unless that is nil.
func (c *Config) newAuthz(p atoll.Provider, projects map[string]string, log *AuditLog) atoll.Provider {
	opts := authz.Options{Refuse: func(_ context.Context, spec *atoll.Spec) error {
		if cmp.Or(spec.Provider, projects[spec.Project], c.Provider) != "local" {
			return nil
		}
		return atoll.Errorf("create", spec.Name, atoll.ErrDenied,
			"sandboxes of the provider local are processes of the server's machine, with all that is on it: it takes the role %s", auth.RoleAdmin)
	}}
	if log != nil {
		opts.Denied = log.Denied
	}
	return authz.New(p, opts)
}

// Keys opens the API keys that are written down where all else is. It opens no store
// before it is needed. What is done to them is noted. Whoever is done with it closes it.
func (c *Config) Keys(log *slog.Logger, noted *AuditLog) (*authz.Ring, error) {
	accounts, err := c.accounts()
	if err != nil {
		return nil, atoll.E("config", "accounts", atoll.ErrInvalid, err)
	}
	taken := []auth.Account{{}} // whoever has the server's own token, or its socket
	for _, a := range accounts {
		taken = append(taken, a.Account)
	}
	return authz.NewRing(openStore(c), authz.RingOptions{Taken: taken, Log: log, Changed: noted.Key}), nil
}
