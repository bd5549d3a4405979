//go:build linux

package gvisor_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
)

// other starts one of the programs, as another provider of the same sandboxes.
func (l *lab) other(name string, args ...string) *exec.Cmd {
	l.t.Helper()
	return onHost(l.t, name, append([]string{l.opts.Dir, l.opts.RunDir, l.opts.Helper, l.opts.Cgroup}, args...)...)
}

// kill kills it, and waits until it has gone.
func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// begin calls f in the background and returns where its result will be.
func begin(f func() error) <-chan error {
	c := make(chan error, 1)
	go func() { c <- f() }()
	return c
}

// snapshotProgram takes a snapshot of the sandbox args[0].
func snapshotProgram(args []string) error {
	p, args, err := openProgram(args)
	if err != nil {
		return err
	}
	defer p.Close()
	sb, err := p.Get(context.Background(), args[0])
	if err != nil {
		return err
	}
	_, err = atoll.TakeSnapshot(context.Background(), sb)
	return err
}

// A snapshot is there as a whole or not at all, whoever of those who make it is
// killed half way.
func TestSnapshotCutShort(t *testing.T) {
	l := newLab(t)
	dir := filepath.Join(l.opts.Dir, "snapshots")
	busy := func(t *testing.T, l *lab) atoll.Sandbox { // with memory that takes a while to write
		t.Helper()
		sb := l.create(atoll.Spec{
			Mounts:    []atoll.Mount{{Type: atoll.MountTmpfs, Target: "/memory", Size: 400 << 20}},
			Resources: atoll.Resources{Memory: 1 << 30},
		})
		l.sh(sb, "head -c 200000000 /dev/urandom > /memory/random; echo works > /root/file")
		return sb
	}
	begun := func(t *testing.T, l *lab) {
		t.Helper()
		l.poll(func() error {
			if size := sizeOf(dir); size < 1<<20 {
				return fmt.Errorf("%d bytes of a snapshot", size)
			}
			return nil
		})
		if list, err := atoll.Snapshots(l.ctx(), l); len(list) > 0 || err != nil {
			t.Errorf("it is listed before it is complete: %v, %v", list, err)
		}
	}
	nothing := func(t *testing.T, l *lab) {
		t.Helper()
		l.poll(func() error {
			if left := entries(t, dir); len(left) > 0 {
				return fmt.Errorf("left of the snapshot: %v", left)
			}
			return nil
		})
	}

	t.Run("caller gives up", func(t *testing.T) {
		l := openLab(t, l.opts)
		sb := busy(t, l)
		ctx, cancel := context.WithCancel(t.Context())
		done := begin(func() error { _, err := atoll.TakeSnapshot(ctx, sb); return err })
		begun(t, l)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("snapshot: %v", err)
		}
		nothing(t, l)
		if got := l.sh(sb, "cat /root/file"); got != "works" {
			t.Errorf("the sandbox afterwards: %q", got)
		}
		nothing(t, l) // nor when the keeper is done with it
	})
	t.Run("provider", func(t *testing.T) {
		l := openLab(t, l.opts)
		sb := busy(t, l)
		cmd := l.other("snapshot", sb.ID())
		begun(t, l)
		kill(cmd)
		if got := l.sh(sb, "cat /root/file"); got != "works" { // once it is written
			t.Errorf("the sandbox afterwards: %q", got)
		}
		again := openLab(t, l.opts) // sweeps
		nothing(t, again)
		snap, err := atoll.TakeSnapshot(l.ctx(), sb)
		l.must("snapshot", err)
		l.must("remove snapshot", atoll.RemoveSnapshot(l.ctx(), l, snap.ID))
	})
	t.Run("keeper", func(t *testing.T) {
		l := openLab(t, l.opts)
		sb := busy(t, l)
		done := begin(func() error { _, err := atoll.TakeSnapshot(l.ctx(), sb); return err })
		begun(t, l)
		l.must("kill", unix.Kill(l.keeperOf(sb), unix.SIGKILL))
		wantKind(t, "snapshot", <-done, atoll.ErrStopped, "keeper process died")
		if left := entries(t, dir); len(left) > 0 { // no sweep is needed
			t.Errorf("left of the snapshot: %v", left)
		}
	})
	t.Run("provider and keeper", func(t *testing.T) {
		l := openLab(t, l.opts)
		sb := busy(t, l)
		cmd := l.other("snapshot", sb.ID())
		begun(t, l)
		keeper := l.keeperOf(sb)
		kill(cmd)
		l.must("kill", unix.Kill(keeper, unix.SIGKILL))
		l.remove(sb)
		if left := entries(t, dir); len(left) > 0 { // it goes with its sandbox
			t.Errorf("left of the snapshot: %v", left)
		}
	})
}

// sizeOf is the size of all files below dir.
func sizeOf(dir string) (size int64) {
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err == nil {
				size += info.Size()
			}
		}
		return nil
	})
	return size
}
