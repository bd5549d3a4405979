//go:build linux

package sentry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"gvisor.dev/gvisor/runsc/sandbox"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/treecopy"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
)

// Dial implements supervisor.Engine through the guest: gVisor's own port forwarding drops
// data in transit when one side closes for writing.
func (e *engine) Dial(ctx context.Context, port int) (net.Conn, error) {
	g, err := e.files.connectGuest(ctx, "dial")
	if err != nil {
		return nil, err
	}
	return atoll.Dial(ctx, g, port)
}

// Usage implements supervisor.Engine.
func (e *engine) Usage(context.Context) (atoll.Usage, error) {
	u, err := e.sentry.readUsage()
	if err != nil {
		return atoll.Usage{}, atoll.E("usage", e.sandbox.ID(), atoll.ErrInternal, err)
	}
	return u, nil
}

func (s *sentry) readUsage() (atoll.Usage, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	event, err := s.c.Event()
	if err != nil {
		return atoll.Usage{}, err
	}
	data := event.Event.Data
	return atoll.Usage{
		Memory:    atoll.Bytes(data.Memory.Usage.Usage),
		CPU:       atoll.Duration(data.CPU.Usage.Total),
		Processes: int(data.Pids.Current),
	}, nil
}

// Snapshot implements supervisor.Engine: it writes a checkpoint.
func (e *engine) Snapshot(ctx context.Context, dir string, opts atoll.SnapshotOptions) error {
	// A snapshot cannot contain the guest: its program is an open file of this process.
	if err := e.files.endGuest(ctx); err != nil {
		return atoll.E("snapshot", e.sandbox.ID(), atoll.KindOf(err), err)
	}
	held := e.getHeld()
	if held == nil {
		var err error
		if held, err = e.holdChildren(ctx); err != nil {
			return atoll.E("snapshot", e.sandbox.ID(), atoll.KindOf(err), err)
		}
		defer held.release()
	}
	err := e.writeState(ctx, dir, opts)
	if err == nil {
		err = writeProcesses(dir, held.saved)
	}
	if errors.Is(err, errSentryHangs) {
		return atoll.E("snapshot", e.sandbox.ID(), atoll.ErrTimeout, err)
	}
	return err
}

// writeState writes the memory of the sandbox and the files of the data volume, as they are at one moment.
func (e *engine) writeState(ctx context.Context, dir string, opts atoll.SnapshotOptions) (err error) {
	if opts.NoWork {
		return e.sentry.writeCheckpoint(dir)
	}
	if !e.sentry.paused.Load() {
		if err := e.awaitAnswer(0, e.sentry.pause, func() { _ = e.sentry.resume() }); err != nil {
			return err
		}
		defer func() {
			resume := func(func() bool) error { return e.sentry.resume() }
			err = errors.Join(err, e.awaitAnswer(0, resume, func() {}))
		}()
	}
	work := filepath.Join(dir, statedir.SnapshotWork)
	if err := os.Mkdir(work, 0o700); err != nil {
		return err
	}
	if err := treecopy.Copy(ctx, e.dataVolume(), work); err != nil {
		return fmt.Errorf("copy /work: %w", err)
	}
	return e.sentry.writeCheckpoint(dir)
}

// dataVolume returns the directory of the sandbox's data volume.
func (e *engine) dataVolume() string {
	return statedir.Dir(e.job.State).Volume(e.job.Spec.Project, statedir.DataVolume(e.sandbox.ID()))
}

func (s *sentry) writeCheckpoint(dir string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.awaitWork(func() error {
		return s.c.Checkpoint(s.conf, dir, sandbox.CheckpointOpts{Resume: true, ExcludeCommittedZeroPages: true})
	})
}
