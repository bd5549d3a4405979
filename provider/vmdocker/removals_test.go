package vmdocker

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// A sandbox whose machine is off is removed without starting it: it is gone at once for every
// program, even if another one records it again.
func TestRemoveLater(t *testing.T) {
	dir := t.TempDir()
	p, other := offIn(t, dir), offIn(t, dir)
	made := time.Now().Round(0)
	note := func(name string) atoll.Status {
		t.Helper()
		id := atoll.NewID()
		st := atoll.Status{ID: id, State: atoll.StateStopped, Created: made, Spec: atoll.Spec{
			ID: id, Name: name, Project: "p", Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "v-" + name, Target: "/v"}},
		}}
		if err := p.notes.writeStatus(st); err != nil {
			t.Fatal(err)
		}
		return st
	}
	a, b := note("a"), note("b")
	err := p.notes.writeKind("p", kindVolumes, []atoll.Volume{
		{Name: "data-" + a.ID, Project: "p", Sandbox: a.ID, InUse: true}, {Name: "v-a", Project: "p", InUse: true},
		{Name: "data-" + b.ID, Project: "p", Sandbox: b.ID, InUse: true}, {Name: "v-b", Project: "p", InUse: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(time.Minute))
	defer cancel()
	told := map[*Provider]chan atoll.Status{p: make(chan atoll.Status, 9), other: make(chan atoll.Status, 9)}
	for p, states := range told {
		synced := make(chan struct{})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for ev, err := range p.Watch(ctx) {
				if err == nil && ev.Type == atoll.EventSynced {
					close(synced)
				} else if err == nil && ev.Status.State == atoll.StateRemoved {
					states <- ev.Status
				}
			}
		}()
		defer func() { cancel(); <-ended }()
		<-synced
	}

	sb, err := p.Get(ctx, a.ID)
	if err != nil {
		t.Fatal(err)
	}
	remove := func(opts ...atoll.RemoveOption) {
		t.Helper()
		if err := sb.Remove(ctx, opts...); err != nil {
			t.Fatal(err)
		}
	}
	remove()
	for p, states := range told {
		select {
		case st := <-states:
			if st.ID != a.ID {
				t.Errorf("Watch told that %s was removed", st.ID)
			}
		case <-ctx.Done():
			t.Fatal("Watch did not tell of the removal")
		}
		if _, err := p.Get(ctx, a.ID); !errors.Is(err, atoll.ErrNotFound) {
			t.Errorf("Get: %v, want ErrNotFound", err)
		}
	}
	if err := other.notes.writeStatus(a); err != nil { // like a program that has asked the engine before
		t.Fatal(err)
	}
	gone := func() {
		t.Helper()
		for p, states := range told {
			if list, err := p.List(ctx, atoll.Filter{}); err != nil || len(list) != 1 || list[0].ID != b.ID {
				t.Errorf("List: %+v, %v; want b", list, err)
			}
			if _, err := p.Resolve(ctx, "p", "a"); !errors.Is(err, atoll.ErrNotFound) {
				t.Errorf("Resolve: %v, want ErrNotFound", err)
			}
			if len(states) > 0 {
				t.Errorf("Watch told of it again: %+v", <-states)
			}
		}
		for what, err := range map[string]error{
			"Start": sb.Start(ctx), "Stop": sb.Stop(ctx, 0), "Pause": atoll.Pause(ctx, sb),
			"Exec": atoll.Run(ctx, sb, &atoll.Command{Args: []string{"true"}}),
		} {
			if !errors.Is(err, atoll.ErrNotFound) {
				t.Errorf("%s: %v, want ErrNotFound", what, err)
			}
		}
	}
	gone()
	remove()

	volumes := func(want map[string]bool) {
		t.Helper()
		all, err := other.Volumes(ctx, "p")
		if err != nil || len(all) != len(want) {
			t.Errorf("Volumes: %+v, %v; want %d", all, err, len(want))
		}
		for _, v := range all {
			if used, ok := want[v.Name]; !ok || used != v.InUse {
				t.Errorf("volume %s is in use: %v; want %v, and that it is there: %v", v.Name, v.InUse, used, ok)
			}
		}
	}
	volumes(map[string]bool{"data-" + a.ID: false, "v-a": false, "data-" + b.ID: true, "v-b": true})
	remove(atoll.RemoveVolumes())
	remove()
	volumes(map[string]bool{"v-a": false, "data-" + b.ID: true, "v-b": true})
	gone()
	list, err := p.notes.listRemovals("p")
	if err != nil || len(list) != 1 || !list[0].isOf(a) || !list[0].Volumes {
		t.Errorf("what is left to do: %+v, %v", list, err)
	}

	again := a.Clone()
	again.Created = made.Add(time.Nanosecond)
	if err := p.notes.writeStatus(again); err != nil {
		t.Fatal(err)
	}
	if st, err := sb.Status(ctx); err != nil || !st.Created.Equal(again.Created) {
		t.Errorf("another of its id: %+v, %v", st, err)
	}
	if err := p.RemoveProject(ctx, "p"); err != nil {
		t.Fatal(err)
	}
	if list, err := p.notes.listRemovals(""); err != nil || len(list) > 0 {
		t.Errorf("of a project that was removed there is left to do: %+v, %v", list, err)
	}
	for _, p := range []*Provider{p, other} {
		if all, err := p.opts.Machines.List(ctx, atoll.Filter{}); err != nil || len(all) > 0 {
			t.Errorf("machines were started: %+v (%v)", all, err)
		}
	}
}

// The data volume of a sandbox that was removed before can be removed without its machine.
// Without a data volume, there is nothing to do.
func TestRemoveLaterWhatIsLeft(t *testing.T) {
	p := off(t)
	left, nothing := &sandbox{p, atoll.NewID(), "p"}, &sandbox{p, atoll.NewID(), "p"}
	if err := p.notes.writeKind("p", kindVolumes, []atoll.Volume{{Name: "data-" + left.id, Project: "p", Sandbox: left.id}}); err != nil {
		t.Fatal(err)
	}
	for _, sb := range []*sandbox{left, nothing} {
		if err := errors.Join(sb.Remove(t.Context()), sb.Remove(t.Context(), atoll.RemoveVolumes())); err != nil {
			t.Fatal(err)
		}
	}
	list, err := p.notes.listRemovals("")
	if err != nil || len(list) != 1 || list[0].Status.ID != left.id || !list[0].Volumes {
		t.Errorf("what is left to do: %+v, %v; want the volume of one", list, err)
	}
	if all, err := p.Volumes(t.Context(), ""); err != nil || len(all) > 0 {
		t.Errorf("Volumes: %+v, %v; want none", all, err)
	}
}
