package registry_test

import (
	"context"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// A reader tells what is written down of a sandbox while it is made.
type reader struct {
	engine
	store   store.Store
	mute    bool // it does not know its volumes
	written *store.Record
}

func (r *reader) Volumes(ctx context.Context, project string) ([]atoll.Volume, error) {
	if r.mute {
		return nil, atoll.E("volumes", "", atoll.ErrUnavailable, nil)
	}
	return atoll.Volumes(ctx, r.engine, project)
}

func (r *reader) RemoveVolume(ctx context.Context, project, name string) error {
	return atoll.RemoveVolume(ctx, r.engine, project, name)
}

func (r *reader) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	var err error
	if r.written, err = r.store.Find(ctx, spec.ID); err != nil {
		return nil, err
	}
	return r.engine.Create(ctx, spec)
}

// What is written down of a sandbox that is about to be made says whether a data volume of
// it is its own, or what another one has left.
func TestIntentKnowsOfData(t *testing.T) {
	for _, tt := range []struct {
		name              string
		given, left, mute bool
		own               bool
	}{
		{name: "with an id that was drawn", own: true},
		{name: "with an id that was drawn, of one that does not know", mute: true, own: true},
		{name: "with an id that is new", given: true, own: true},
		{name: "with the id of one that has left its data", given: true, left: true},
		{name: "with an id, of one that does not know", given: true, mute: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, registry.Options{})
			r := &reader{engine: l.engine, store: l.store, mute: tt.mute}
			p := registry.New(r, l.store, registry.Options{Server: true})
			var spec atoll.Spec
			if tt.given {
				spec.ID = killedID
			}
			if tt.left {
				if err := l.create(l, spec).Remove(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			sb := l.create(p, spec)
			if r.written.State != store.Creating || r.written.Volumes != tt.own {
				t.Errorf("written down is %q, and that its data would be its own: %v, want %v", r.written.State, r.written.Volumes, tt.own)
			}
			if now, err := l.store.Find(t.Context(), sb.ID()); err != nil || now.State != store.Present || now.Volumes {
				t.Errorf("when it is made, %+v, %v is", now, err)
			}
		})
	}
}

// The data volume of a creation that was cut short goes with it if it is its own, whatever
// the clocks of machines say.
func TestDataOfCutShort(t *testing.T) {
	for _, skew := range []time.Duration{-time.Hour, time.Hour} {
		for _, own := range []bool{true, false} {
			l := newLab(t, registry.Options{})
			sb := l.create(l.engine, atoll.Spec{})
			if err := sb.Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !l.hasData(sb.ID()) {
				t.Fatal("there is no data volume")
			}
			r := &store.Record{
				ID: sb.ID(), Scope: l.Info().Name, Spec: atoll.Spec{ID: sb.ID(), Project: atoll.DefaultProject},
				State: store.Creating, Volumes: own, Created: time.Now().Add(skew),
			}
			if _, err := l.store.Insert(t.Context(), r, "", store.Room{}); err != nil {
				t.Fatal(err)
			}
			l.reconcile(registry.ReconcileOptions{}, 0, map[string]string{sb.ID(): "unfinished forgotten"})
			if l.hasData(sb.ID()) == own {
				t.Errorf("its own: %v, written %s from now: the data is there: %v", own, skew, !own)
			}
		}
	}
}
