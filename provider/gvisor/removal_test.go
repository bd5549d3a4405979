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
)

// A sandbox whose removal failed half way says so, in its status and to watchers, and can
// be removed again.
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
		case <-time.After(waitLimit):
			t.Fatal("no event came in time")
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
	l.poll(func() error {
		if st := l.status(sb); !interrupted(st) { // a sweep may be trying again
			return fmt.Errorf("status: %s (%s)", st.State, st.Reason)
		}
		return nil
	})
	wantKind(t, "start", sb.Start(l.ctx()), atoll.ErrNotFound)

	l.poll(func() error { return unix.Unmount(stuck, 0) }) // busy while a sweep tries again
	l.remove(sb)
	if st := next().Status; st.State != atoll.StateRemoved {
		t.Errorf("watched: %s (%s)", st.State, st.Reason)
	}
}

// A removal that was cut short at the very end leaves a record, which the next Remove
// removes.
func TestRemovalAtItsEnd(t *testing.T) {
	l := newLab(t)
	sb := l.create(atoll.Spec{NoStart: true})
	// As a removal does: with the lock, which a sweep respects, and by a rename.
	lock, err := statedir.Dir(l.opts.Dir).Lock(l.ctx(), sb.ID())
	l.must("lock", err)
	r := l.readRecord(sb)
	r["removing"] = map[string]any{}
	data, err := json.Marshal(r)
	l.must("marshal", err)
	l.must("forge", os.WriteFile(l.recordPath(sb), data, 0o600))
	l.must("discard", os.Rename(filepath.Join(l.opts.Dir, "sandboxes", sb.ID()), filepath.Join(t.TempDir(), "gone")))
	lock.Release()
	l.must("remove", sb.Remove(l.ctx(), atoll.RemoveVolumes()))
	_, err = sb.Status(l.ctx())
	wantKind(t, "status", err, atoll.ErrNotFound)
	if left := strings.Join(leftOnDisk(t, l.opts), " "); strings.Contains(left, sb.ID()) {
		t.Errorf("left: %s", left)
	}
}

// A sandbox that is being removed has not failed, and watchers see no failure.
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
	removed := runAsync(func() error { return sb.Remove(l.ctx(), atoll.RemoveVolumes()) })
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
		sb := l.create(atoll.Spec{})
		l.sh(sb, "echo kept > /root/file")
		cmd := l.startProvider("remove", sb.ID())
		time.Sleep(time.Duration(2*i) * time.Millisecond)
		killAndWait(cmd)
		next := openLab(t, l.opts)
		l.poll(func() error {
			st, err := sb.Status(l.ctx())
			if atoll.KindOf(err) == atoll.ErrNotFound {
				ends["removed"]++
				return nil
			}
			if err != nil || st.State != atoll.StateRunning {
				_, _ = next.List(l.ctx(), atoll.Filter{}) // which sweeps
				return fmt.Errorf("%s (%s), %v", st.State, st.Reason, err)
			}
			got, err := atoll.Output(l.ctx(), sb, &atoll.Command{Args: []string{"cat", "/root/file"}})
			exit := (*atoll.ExitError)(nil)
			if k := atoll.KindOf(err); k == atoll.ErrStopped || k == atoll.ErrNotFound || errors.As(err, &exit) && exit.Exit.Reason != "" {
				return err // it was just being removed, perhaps with the process inside
			}
			if string(got) != "kept\n" || err != nil {
				t.Errorf("its file holds %q, %v", got, err)
			}
			ends["untouched"]++
			l.remove(sb)
			return nil
		})
		l.must("close", next.Close())
	}
	t.Log(ends)
}
