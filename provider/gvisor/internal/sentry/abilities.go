//go:build linux

package sentry

import (
	"context"
	"errors"
	"net"

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
func (e *engine) Snapshot(ctx context.Context, dir string) error {
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
	err := e.sentry.writeCheckpoint(dir)
	if err == nil {
		err = writeProcesses(dir, held.saved)
	}
	if errors.Is(err, errSentryHangs) {
		return atoll.E("snapshot", e.sandbox.ID(), atoll.ErrTimeout, err)
	}
	return err
}

func (s *sentry) writeCheckpoint(dir string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.awaitWork(func() error {
		return s.c.Checkpoint(s.conf, dir, sandbox.CheckpointOpts{Resume: true, ExcludeCommittedZeroPages: true})
	})
}
