package stack

import (
	"log/slog"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/authz"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// newAuthz wraps the layer around p that limits callers to their projects. projects has the
// providers of some projects. The layer reports refused calls to log, unless that is nil.
func (b *Builder) newAuthz(p atoll.Provider, projects map[string]string, log *AuditLog) atoll.Provider {
	opts := authz.Options{Refuse: b.refuseSpec(projects)}
	if log != nil {
		opts.Denied = log.Denied
	}
	return authz.New(p, opts)
}

// Keys opens the store of API keys at the first use. Changes of keys are written to the audit log noted. The caller
// must close the result.
func (b *Builder) Keys(log *slog.Logger, noted *AuditLog) (*authz.Ring, error) {
	accounts, err := b.ParseAccounts()
	if err != nil {
		return nil, atoll.E("config", "accounts", atoll.ErrInvalid, err)
	}
	taken := []auth.Account{{}} // the caller with the server's own token or socket
	for _, a := range accounts {
		taken = append(taken, a.Account)
	}
	return authz.NewRing(openStore(b), authz.RingOptions{Taken: taken, Log: log, Changed: noted.Key}), nil
}
