package config

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/layer/router"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// Reconcile says what is done about sandboxes that are not as they should be.
type Reconcile struct {
	Every    atoll.Duration `yaml:"every" doc:"how often serve looks, besides at its start, like 10m; 0 for at its start only"`
	Orphans  string         `yaml:"orphans" form:"remove keep" doc:"sandboxes made with this state_dir that are not written down in it; their data volumes are kept"`
	Failed   string         `yaml:"failed" form:"keep restart rebuild" doc:"sandboxes that have failed"`
	Outdated string         `yaml:"outdated" form:"rebuild keep" doc:"sandboxes whose image's name stands for another image by now; those in which commands run are kept"`
}

func defaultReconcile() Reconcile {
	return Reconcile{
		Every: atoll.Duration(10 * time.Minute), Orphans: string(registry.Remove), Failed: string(registry.Keep), Outdated: string(registry.Rebuild),
	}
}

// newRegistry wraps the layer around p that records the desired sandboxes in s.
func newRegistry(p atoll.Provider, s store.Store, cfg *Config, opts Options) atoll.Provider {
	return registry.New(p, s, registry.Options{
		Orphans:  registry.Policy(cfg.Reconcile.Orphans),
		Failed:   registry.Policy(cfg.Reconcile.Failed),
		Outdated: registry.Policy(cfg.Reconcile.Outdated),
		Most:     cfg.MaxSandboxes,
		Quota:    cfg.quota,
		Server:   opts.Server,
		Log:      opts.Log,
	})
}

// makerOf returns a function that says which provider made a sandbox, as far as
// that is written down. It is for the few ids of which nobody else knows: each
// call opens the store.
func makerOf(cfg *Config) func(ctx context.Context, id string) (string, error) {
	return func(ctx context.Context, id string) (name string, err error) {
		s := openStore(cfg)
		if !s.Exists() {
			return "", nil
		}
		defer func() { err = errors.Join(err, s.Close()) }()
		name, _, err = s.Provider(ctx, id)
		return name, err
	}
}

// ProbeStore says whether what is written down of sandboxes can be read. A file is
// not made if it is not there yet; the tables of a database are.
func ProbeStore(ctx context.Context, cfg *Config) atoll.Probe {
	s := openStore(cfg)
	if !s.Exists() {
		return atoll.Probe{OK: true}
	}
	_, err := s.Records(ctx)
	if closeErr := s.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return atoll.Probe{Reason: err.Error()}
	}
	return atoll.Probe{OK: true}
}

// Ready returns why a server of the stack p should get no requests for now: what is written
// down of sandboxes cannot be read, or the default provider does not answer.
func Ready(ctx context.Context, cfg *Config, p atoll.Provider) (err error) {
	if s := openStore(cfg); s.Exists() {
		_, _, err = s.Provider(ctx, nobody)
		if err := errors.Join(err, s.Close()); err != nil {
			return err
		}
	}
	_, err = p.List(router.AsideOf(ctx), atoll.Filter{Provider: p.Info().Name, Name: nobody})
	return err
}

// nobody is a name and an id that no sandbox has.
const nobody = "00000000000000000000000000000000"

// serverID names the server of this state directory to others that share a store with
// it: no two have the same, and one that is started again has the same as before.
func (c *Config) serverID(ctx context.Context) (string, error) {
	id, err := c.ownID(ctx)
	if err != nil {
		return "", err
	}
	host, err := os.Hostname()
	if err != nil {
		return "", err
	}
	return host + "-" + id[:16], nil
}

// ownID is that of the store in the state directory, or of that itself where the store is
// elsewhere.
func (c *Config) ownID(ctx context.Context) (string, error) {
	if c.server != nil {
		return c.stateID()
	}
	s := openStore(c)
	id, err := s.Identity(ctx)
	return id.ID, errors.Join(err, s.Close())
}
