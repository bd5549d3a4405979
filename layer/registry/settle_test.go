package registry_test

import (
	"context"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// A recordReader reads the record of a sandbox during its creation.
type recordReader struct {
	engine
	store   store.Store
	mute    bool // Volumes fails
	written *store.Record
}

func (r *recordReader) Volumes(ctx context.Context, project string) ([]atoll.Volume, error) {
	if r.mute {
		return nil, atoll.E("volumes", "", atoll.ErrUnavailable, nil)
	}
	return atoll.Volumes(ctx, r.engine, project)
}

func (r *recordReader) RemoveVolume(ctx context.Context, project, name string) error {
	return atoll.RemoveVolume(ctx, r.engine, project, name)
}

func (r *recordReader) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	var err error
	if r.written, err = r.store.Find(ctx, spec.ID); err != nil {
		return nil, err
	}
	return r.engine.Create(ctx, spec)
}

// The record of a sandbox in creation says whether a data volume with its ID would
// be its own, or that of a former sandbox.
func TestIntentRecordsVolume(t *testing.T) {
	for _, tt := range []struct {
		name              string
		given, left, mute bool
		own               bool
	}{
		{name: "random id", own: true},
		{name: "random id, volumes unknown", mute: true, own: true},
		{name: "new id", given: true, own: true},
		{name: "id of a former sandbox with data", given: true, left: true},
		{name: "given id, volumes unknown", given: true, mute: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newFixture(t, registry.Options{})
			r := &recordReader{engine: l.engine, store: l.store, mute: tt.mute}
			p := registry.New(r, l.store, registry.Options{Server: true})
			var spec atoll.Spec
			if tt.given {
				spec.ID = killedID
			}
			if tt.left {
				if err := l.mustCreate(l, spec).Remove(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			sb := l.mustCreate(p, spec)
			if r.written.State != store.Creating || r.written.Volumes != tt.own {
				t.Errorf("record is %q, with own data: %v, want %v", r.written.State, r.written.Volumes, tt.own)
			}
			if now, err := l.store.Find(t.Context(), sb.ID()); err != nil || now.State != store.Present || now.Volumes {
				t.Errorf("after Create, record is %+v, %v", now, err)
			}
		})
	}
}

// Reconcile removes the data volume of an interrupted creation if it is its own,
// whatever the clocks of machines say.
func TestInterruptedCreationData(t *testing.T) {
	for _, skew := range []time.Duration{-time.Hour, time.Hour} {
		for _, own := range []bool{true, false} {
			l := newFixture(t, registry.Options{})
			sb := l.mustCreate(l.engine, atoll.Spec{})
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
			if _, err := l.store.Insert(t.Context(), r, "", store.Limits{}); err != nil {
				t.Fatal(err)
			}
			l.wantReconcile(registry.ReconcileOptions{}, 0, map[string]string{sb.ID(): "unfinished forgotten"})
			if l.hasData(sb.ID()) == own {
				t.Errorf("own data: %v, recorded %s from now: the data exists: %v", own, skew, !own)
			}
		}
	}
}
