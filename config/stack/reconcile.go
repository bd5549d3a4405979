package stack

import (
	"context"
	"errors"
	"os"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/layer/router"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// newRegistry wraps the layer around p that records the desired sandboxes in s.
func newRegistry(p atoll.Provider, s store.Store, b *Builder, opts Options) atoll.Provider {
	return registry.New(p, s, registry.Options{
		Orphans:      registry.Policy(b.Reconcile.Orphans),
		Failed:       registry.Policy(b.Reconcile.Failed),
		Outdated:     registry.Policy(b.Reconcile.Outdated),
		MaxSandboxes: b.MaxSandboxes,
		Quota:        b.quotaOf,
		Server:       opts.Server,
		Log:          opts.Log,
	})
}

// makerOf returns a function that returns the provider on record for a sandbox, or "". It opens the store in each
// call, since it is only used for ids that no provider knows.
func makerOf(b *Builder) func(ctx context.Context, id string) (string, error) {
	return func(ctx context.Context, id string) (name string, err error) {
		s := openStore(b)
		if !s.Exists() {
			return "", nil
		}
		defer func() { err = errors.Join(err, s.Close()) }()
		name, _, err = s.Provider(ctx, id)
		return name, err
	}
}

// ProbeStore reports whether the records of sandboxes can be read. It creates the tables of a database, but not a
// missing file.
func ProbeStore(ctx context.Context, b *Builder) atoll.Probe {
	s := openStore(b)
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

// Ready returns why a server of the stack p should get no requests for now: the state directory is full, the store
// cannot be read, or the default provider does not answer.
func Ready(ctx context.Context, b *Builder, p atoll.Provider) (err error) {
	if err := checkWritable(b.StateDir); err != nil {
		return err
	}
	if s := openStore(b); s.Exists() {
		_, _, err = s.Provider(ctx, unusedName)
		if err := errors.Join(err, s.Close()); err != nil {
			return err
		}
	}
	_, err = p.List(router.AsideOf(ctx), atoll.Filter{Provider: p.Info().Name, Name: unusedName})
	return err
}

// checkWritable returns an error if dir has no room for a small file, such as the record of a sandbox.
func checkWritable(dir string) error {
	f, err := os.CreateTemp(dir, ".ready-")
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, 4<<10))
	return errors.Join(err, f.Close(), os.Remove(f.Name()))
}

// unusedName is a name and an id that no sandbox has.
const unusedName = "00000000000000000000000000000000"

// serverID returns the name of this server among those that share its store. The name is unique, and the same after a
// restart.
func (b *Builder) serverID(ctx context.Context) (string, error) {
	id, err := b.storeID(ctx)
	if err != nil {
		return "", err
	}
	host, err := os.Hostname()
	if err != nil {
		return "", err
	}
	return host + "-" + id[:16], nil
}

// storeID returns the identity of the store in the state directory, or the id of that directory if the store is
// elsewhere.
func (b *Builder) storeID(ctx context.Context) (string, error) {
	if b.server != nil {
		return b.stateID()
	}
	s := openStore(b)
	id, err := s.Identity(ctx)
	return id.ID, errors.Join(err, s.Close())
}
