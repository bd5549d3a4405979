//go:build linux

package sentry

import (
	"context"
	"errors"
	"net"
	"sync"

	"gvisor.dev/gvisor/runsc/sandbox"

	"github.com/seed46cd37a8/atoll"
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
func (e *engine) writeState(ctx context.Context, dir string, opts atoll.SnapshotOptions) error {
	if opts.NoWork {
		return e.sentry.writeCheckpoint(dir, func() error { return nil })
	}
	return e.sentry.writeCheckpoint(dir, func() error { return e.sandbox.CopyVolume(ctx, dir) })
}

// writeCheckpoint writes the memory of the sandbox to dir. All stands still inside from before the call of meanwhile.
func (s *sentry) writeCheckpoint(dir string, meanwhile func() error) error {
	s.mu.Lock() // calls that come now wait, rather than fail
	defer s.mu.Unlock()
	thaw, err := s.freezeInside()
	if err != nil {
		return err
	}
	defer thaw()
	if err := meanwhile(); err != nil {
		return err
	}
	return s.awaitWork(func() error {
		return s.c.Checkpoint(s.conf, dir, sandbox.CheckpointOpts{Resume: true, ExcludeCommittedZeroPages: true})
	})
}

// freezeInside stops all processes inside, whether or not the sandbox is paused, until thaw is called.
func (s *sentry) freezeInside() (thaw func(), err error) {
	var frozen, gaveUp bool
	var mu sync.Mutex
	resume := func() { _ = s.awaitWork(func() error { return s.sb.Resume(s.c.ID) }) } // fails when the sentry has ended
	err = s.awaitWork(func() error {
		err := s.sb.Pause(s.c.ID)
		mu.Lock()
		defer mu.Unlock()
		if frozen = err == nil; frozen && gaveUp {
			resume()
		}
		return err
	})
	mu.Lock()
	defer mu.Unlock()
	if err != nil && frozen {
		resume()
	}
	gaveUp = err != nil
	return resume, err
}
