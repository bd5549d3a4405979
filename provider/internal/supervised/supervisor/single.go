package supervisor

import (
	"context"
	"iter"

	"github.com/seed46cd37a8/atoll"
)

// single implements atoll.Provider with one sandbox, for the API to serve.
type single struct{ sandbox *Sandbox }

// Info describes the sandbox's provider.
func (s single) Info() atoll.Info {
	return atoll.Info{Name: s.sandbox.record.Status.Provider, Isolation: s.sandbox.isolation, Caps: s.sandbox.Job.Caps}
}

// Create returns ErrUnsupported.
func (s single) Create(context.Context, *atoll.Spec) (atoll.Sandbox, error) {
	return nil, atoll.Errorf("create", "", atoll.ErrUnsupported, "a supervisor owns one sandbox only")
}

// Get finds the one sandbox.
func (s single) Get(_ context.Context, id string) (atoll.Sandbox, error) {
	if n, err := atoll.NormalizeID(id); err != nil || n != s.sandbox.ID() || s.sandbox.adopting.Load() {
		return nil, atoll.E("get", id, atoll.ErrNotFound, nil)
	}
	return s.sandbox, nil
}

// List returns the one sandbox.
func (s single) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	st, err := s.sandbox.Status(ctx)
	if err != nil || !f.Match(st) {
		return nil, err
	}
	return []atoll.Status{st}, nil
}

// Watch returns ErrUnsupported: the provider watches the records.
func (s single) Watch(context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) {
		yield(atoll.Event{}, atoll.Errorf("watch", "", atoll.ErrUnsupported, "a supervisor does not watch sandboxes"))
	}
}

// Close does nothing: the supervisor ends with its sandbox.
func (s single) Close() error { return nil }
