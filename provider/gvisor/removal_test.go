//go:build linux

package gvisor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
)

// A sandbox whose removal failed half way says so, in its status and to watchers, and can
// be removed again.
func TestRemovalInterrupted(t *testing.T) {
	testenv.Need(t, testenv.Root) // for a directory that cannot be removed
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{NoStart: true})
	stuck := filepath.Join(l.opts.RunDir, sb.ID(), "stuck")
	l.Must("mkdir", os.MkdirAll(stuck, 0o700))
	l.Must("mount", unix.Mount("atoll-test", stuck, "tmpfs", 0, ""))
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
		case <-time.After(supervisedtest.WaitLimit):
			t.Fatal("no event came in time")
			panic("unreachable")
		}
	}
	for next().Type != atoll.EventSynced {
	}
	supervisedtest.WantKind(t, "remove", sb.Remove(l.Context()), atoll.ErrInternal, "busy")
	interrupted := func(st atoll.Status) bool {
		return st.State == atoll.StateFailed && !st.Ready && strings.Contains(st.Reason, "removal was interrupted")
	}
	if st := next().Status; !interrupted(st) {
		t.Errorf("watched: %s (%s)", st.State, st.Reason)
	}
	l.Poll(func() error {
		if st := l.Status(sb); !interrupted(st) { // a sweep may be trying again
			return fmt.Errorf("status: %s (%s)", st.State, st.Reason)
		}
		return nil
	})
	supervisedtest.WantKind(t, "start", sb.Start(l.Context()), atoll.ErrNotFound)

	l.Poll(func() error { return unix.Unmount(stuck, 0) }) // busy while a sweep tries again
	l.RemoveSandbox(sb)
	if st := next().Status; st.State != atoll.StateRemoved {
		t.Errorf("watched: %s (%s)", st.State, st.Reason)
	}
}

// A removal that was cut short at the very end leaves a record, which the next Remove
// removes.
func TestRemovalAtItsEnd(t *testing.T) {
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{NoStart: true})
	// As a removal does: with the lock, which a sweep respects, and by a rename.
	lock, err := statedir.Dir(l.opts.Dir).Lock(l.Context(), sb.ID())
	l.Must("lock", err)
	r := l.ReadRecord(sb)
	r["removing"] = map[string]any{}
	data, err := json.Marshal(r)
	l.Must("marshal", err)
	l.Must("forge", os.WriteFile(l.RecordPath(sb), data, 0o600))
	l.Must("discard", os.Rename(filepath.Join(l.opts.Dir, "sandboxes", sb.ID()), filepath.Join(t.TempDir(), "gone")))
	lock.Release()
	l.Must("remove", sb.Remove(l.Context(), atoll.RemoveVolumes()))
	_, err = sb.Status(l.Context())
	supervisedtest.WantKind(t, "status", err, atoll.ErrNotFound)
	if left := strings.Join(l.ListFiles(t), " "); strings.Contains(left, sb.ID()) {
		t.Errorf("left: %s", left)
	}
}

// A sandbox that is being removed has not failed, and watchers see no failure.
func TestRemovalInProgress(t *testing.T) {
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{})
	l.Sh(sb, "mkdir dir && cd dir && seq 3000 | xargs touch")
	events, synced, done := make(chan string, 100), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for ev, err := range l.Watch(l.Context()) {
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
	removed := supervisedtest.RunAsync(func() error { return sb.Remove(l.Context(), atoll.RemoveVolumes()) })
	for st, err := sb.Status(l.Context()); err == nil; st, err = sb.Status(l.Context()) {
		if st.State == atoll.StateFailed {
			t.Errorf("status: %s (%s)", st.State, st.Reason)
		}
	}
	l.Must("remove", <-removed)
	<-done
	close(events)
	var all []string
	for state := range events {
		all = append(all, state)
	}
	if got := strings.Join(all, " "); got != "running removed" {
		t.Errorf("watched: %s", got)
	}
}

// removeProgram removes the sandbox args[0].
func removeProgram(args []string) error {
	p, args, err := openProgram(args)
	if err != nil {
		return err
	}
	defer p.Close()
	sb, err := p.Get(context.Background(), args[0])
	if err != nil {
		return err
	}
	return sb.Remove(context.Background(), atoll.RemoveVolumes())
}

// A provider that dies at any moment of a removal leaves the sandbox as it was, or one that
// the next provider removes: never one that can be started again without its files.
func TestProviderKilledWhileItRemoves(t *testing.T) {
	l := newLab(t)
	ends := map[string]int{}
	for i := range 24 {
		sb := l.NewSandbox(atoll.Spec{})
		l.Sh(sb, "echo kept > /root/file")
		cmd := l.startProvider("remove", sb.ID())
		time.Sleep(time.Duration(2*i) * time.Millisecond)
		supervisedtest.KillAndWait(cmd)
		next := openLab(t, l.opts)
		l.Poll(func() error {
			st, err := sb.Status(l.Context())
			if atoll.KindOf(err) == atoll.ErrNotFound {
				ends["removed"]++
				return nil
			}
			if err != nil || st.State != atoll.StateRunning {
				_, _ = next.List(l.Context(), atoll.Filter{}) // which sweeps
				return fmt.Errorf("%s (%s), %v", st.State, st.Reason, err)
			}
			got, err := atoll.Output(l.Context(), sb, &atoll.Command{Args: []string{"cat", "/root/file"}})
			exit := (*atoll.ExitError)(nil)
			if k := atoll.KindOf(err); k == atoll.ErrStopped || k == atoll.ErrNotFound || errors.As(err, &exit) && exit.Exit.Reason != "" {
				return err // it was just being removed, perhaps with the process inside
			}
			if string(got) != "kept\n" || err != nil {
				t.Errorf("its file holds %q, %v", got, err)
			}
			ends["untouched"]++
			l.RemoveSandbox(sb)
			return nil
		})
		l.Must("close", next.Close())
	}
	t.Log(ends)
}
