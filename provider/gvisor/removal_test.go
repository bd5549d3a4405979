//go:build linux

package gvisor_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testenv"
)

// A sandbox whose removal failed half way says so, in its status and to those
// who watch, and can be removed again.
func TestRemovalInterrupted(t *testing.T) {
	testenv.Need(t, testenv.Root) // for a directory that cannot be removed
	l := newLab(t)
	sb := l.create(atoll.Spec{NoStart: true})
	stuck := filepath.Join(l.opts.RunDir, sb.ID(), "stuck")
	l.must("mkdir", os.MkdirAll(stuck, 0o700))
	l.must("mount", unix.Mount("atoll-test", stuck, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(stuck, unix.MNT_DETACH) })

	ctx, cancel := context.WithCancel(t.Context())
	events, done := make(chan atoll.Event, 100), make(chan struct{})
	go func() {
		defer close(done)
		for ev := range l.Watch(ctx) {
			events <- ev
		}
	}()
	defer func() { cancel(); <-done }()
	next := func() atoll.Event {
		select {
		case ev := <-events:
			return ev
		case <-time.After(patience):
			t.Fatal("waited for an event in vain")
			panic("unreachable")
		}
	}
	for next().Type != atoll.EventSynced {
	}
	wantKind(t, "remove", sb.Remove(l.ctx()), atoll.ErrInternal, "busy")
	interrupted := func(st atoll.Status) bool {
		return st.State == atoll.StateFailed && !st.Ready && strings.Contains(st.Reason, "removal was interrupted")
	}
	if st := next().Status; !interrupted(st) {
		t.Errorf("watched: %s (%s)", st.State, st.Reason)
	}
	if st := l.status(sb); !interrupted(st) {
		t.Errorf("status: %s (%s)", st.State, st.Reason)
	}
	wantKind(t, "start", sb.Start(l.ctx()), atoll.ErrNotFound)

	l.must("unmount", unix.Unmount(stuck, 0))
	l.remove(sb)
	if st := next().Status; st.State != atoll.StateRemoved {
		t.Errorf("watched: %s (%s)", st.State, st.Reason)
	}
}

// Of a removal that was cut short at the very end a record is left, which the
// next Remove takes along.
func TestRemovalAtItsEnd(t *testing.T) {
	l := newLab(t)
	sb := l.create(atoll.Spec{NoStart: true})
	r := l.record(sb)
	r["removing"] = map[string]any{}
	data, err := json.Marshal(r)
	l.must("marshal", err)
	l.must("forge", os.WriteFile(l.recordPath(sb), data, 0o600))
	l.must("discard", os.RemoveAll(filepath.Join(l.opts.Dir, "sandboxes", sb.ID())))
	l.must("remove", sb.Remove(l.ctx(), atoll.RemoveVolumes()))
	_, err = sb.Status(l.ctx())
	wantKind(t, "status", err, atoll.ErrNotFound)
	if left := strings.Join(leftOnDisk(t, l.opts), " "); strings.Contains(left, sb.ID()) {
		t.Errorf("left: %s", left)
	}
}

// While a sandbox is being removed it has not failed: nobody is told that it has.
func TestRemovalInProgress(t *testing.T) {
	l := newLab(t)
	sb := l.create(atoll.Spec{})
	l.sh(sb, "mkdir dir && cd dir && seq 3000 | xargs touch")
	events, synced, done := make(chan string, 100), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for ev, err := range l.Watch(l.ctx()) {
			if ev.Type == atoll.EventSynced {
				close(synced)
				continue
			}
			events <- string(ev.Status.State)
			if err != nil || ev.Status.State == atoll.StateRemoved {
				return
			}
		}
	}()
	<-synced
	removed := begin(func() error { return sb.Remove(l.ctx(), atoll.RemoveVolumes()) })
	for st, err := sb.Status(l.ctx()); err == nil; st, err = sb.Status(l.ctx()) {
		if st.State == atoll.StateFailed {
			t.Errorf("status: %s (%s)", st.State, st.Reason)
		}
	}
	l.must("remove", <-removed)
	<-done
	close(events)
	var all []string
	for state := range events {
		all = append(all, state)
	}
	if got := strings.Join(all, " "); got != "running stopped removed" {
		t.Errorf("watched: %s", got)
	}
}
