package docker

import (
	"context"
	"errors"
	"net"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
)

// A sandbox is a handle: each call asks the engine for the sandbox's state.
type sandbox struct {
	p  *Provider
	id string
}

// ID implements atoll.Sandbox.
func (s *sandbox) ID() string { return s.id }

// Status implements atoll.Sandbox.
func (s *sandbox) Status(ctx context.Context) (atoll.Status, error) {
	r, err := s.p.findRecord(ctx, "status", s.id)
	if err != nil {
		return atoll.Status{}, err
	}
	return r.Status, nil
}

// withLockedRecord runs fn with the current record of the sandbox, while this program holds the
// sandbox's lock.
func (s *sandbox) withLockedRecord(ctx context.Context, op string, fn func(*record) error) error {
	lock, err := s.p.acquireLock(ctx, op, s.id)
	if err != nil {
		return err
	}
	defer lock.Release()
	r, err := s.p.findRecord(ctx, op, s.id)
	if err != nil {
		return err
	}
	defer s.p.events.publishOwnChange(ctx, s.id)
	return fn(r)
}

// Start implements atoll.Sandbox.
func (s *sandbox) Start(ctx context.Context) error {
	return s.withLockedRecord(ctx, "start", func(r *record) error {
		switch r.State {
		case atoll.StateRunning:
			return nil
		case atoll.StatePaused:
			return atoll.Errorf("start", s.id, atoll.ErrConflict, "sandbox is paused: resume it")
		case atoll.StateCreating:
			return atoll.Errorf("start", s.id, atoll.ErrConflict, "its creation was interrupted: remove it")
		}
		return s.p.launchSandbox(ctx, &r.Spec, r.container)
	})
}

// Stop implements atoll.Sandbox.
func (s *sandbox) Stop(ctx context.Context, grace time.Duration) error {
	if grace < 0 {
		grace = atoll.DefaultStopGrace
	}
	return s.withLockedRecord(ctx, "stop", func(r *record) error {
		if r.State == atoll.StatePaused {
			if _, err := s.p.engine.ContainerUnpause(ctx, r.container, client.ContainerUnpauseOptions{}); err != nil {
				return s.p.wrapError(ctx, "stop", s.id, err)
			}
		} else if r.State != atoll.StateRunning {
			return nil
		}
		if err := s.p.markStopped(ctx, r); err != nil {
			return s.p.wrapError(ctx, "stop", s.id, err)
		}
		defer s.p.sweeper.Wake()
		defer s.p.connections.Disconnect(s.id)
		err := s.p.stopProcesses(ctx, r, grace)
		if err == nil {
			s.p.awaitOutput(s.id)
		}
		return s.p.wrapError(ctx, "stop", s.id, err)
	})
}

// stopProcesses asks all processes to end, and kills the container after the grace period. The
// engine's own stop takes whole seconds only, and signals only the first process.
func (p *Provider) stopProcesses(ctx context.Context, r *record, grace time.Duration) error {
	id := r.container
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // of waiting
	ended := p.engine.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	signal := func(name string) error {
		_, err := p.engine.ContainerKill(ctx, id, client.ContainerKillOptions{Signal: name})
		if cerrdefs.IsConflict(err) { // it has just ended
			return nil
		}
		return err
	}
	if grace > 0 {
		var ready <-chan error
		if r.plain {
			answers := p.beginGracefulStop(ctx, r, func() error { return signal("SIGTERM") })
			defer func() {
				cancel()
				for range answers {
				}
			}()
			ready = answers
		} else if err := signal("SIGTERM"); err != nil {
			return err
		}
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case err := <-ready: // only the idle process is left
			if err != nil {
				return err
			}
		case <-ended.Result:
			return nil
		case err := <-ended.Error:
			return err
		case <-timer.C:
		}
	}
	return p.withExitSlot(ctx, func() error {
		if err := signal("SIGKILL"); err != nil {
			return err
		}
		select {
		case <-ended.Result:
			return nil
		case err := <-ended.Error:
			return err
		}
	})
}

// maxExits is the maximum number of containers that end at the same time. An engine can deadlock
// with more: Docker 20.10 takes two locks in one order when containers leave their networks, and
// in the other order when it looks up networks (sbLeave and getNetworksFromStore in libnetwork).
// A hundred removals at once have caused it.
const maxExits = 4

// withExitSlot waits until fewer than maxExits containers are ending, and calls do, which ends
// one.
func (p *Provider) withExitSlot(ctx context.Context, do func() error) error {
	select {
	case p.exitSlots <- struct{}{}:
		defer func() { <-p.exitSlots }()
		return do()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Remove implements atoll.Sandbox.
func (s *sandbox) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	lock, err := s.p.acquireLock(ctx, "remove", s.id)
	if err != nil {
		return err
	}
	return s.p.runDetached(ctx, func(ctx context.Context) error {
		defer lock.Release()
		return s.removeSandbox(ctx, atoll.ApplyRemoveOptions(opts...))
	})
}

// runDetached calls do with a ctx that outlasts the caller's. If ctx ends first, do goes on
// without its caller.
func (p *Provider) runDetached(ctx context.Context, do func(context.Context) error) error {
	done := make(chan error, 1)
	go func() {
		ctx, cancel := p.detachContext(ctx)
		defer cancel()
		done <- do(ctx)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// removeSandbox removes a sandbox. The caller holds its lock.
func (s *sandbox) removeSandbox(ctx context.Context, opts atoll.RemoveOptions) error {
	defer s.p.events.publishOwnChange(ctx, s.id)
	defer s.p.connections.Disconnect(s.id)
	s.p.dismissCaretaker(s.id)
	r, err := s.p.findRecord(ctx, "remove", s.id)
	if err == nil {
		err = s.p.withExitSlot(ctx, func() error {
			_, err := s.p.engine.ContainerRemove(ctx, r.container, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true}) // RemoveVolumes removes anonymous volumes only
			return err
		})
	}
	if err != nil && atoll.KindOf(err) != atoll.ErrNotFound && kindOf(err) != atoll.ErrNotFound {
		return s.p.wrapError(ctx, "remove", s.id, err)
	}
	if err := s.p.clearMarkers(ctx, s.id); err != nil {
		return err
	}
	if !opts.Volumes {
		return nil
	}
	_, err = s.p.engine.VolumeRemove(ctx, s.p.names.dataVolumeName(s.id), client.VolumeRemoveOptions{})
	if cerrdefs.IsNotFound(err) {
		return nil
	}
	return s.p.wrapError(ctx, "remove", s.id, err)
}

// Exec implements atoll.Sandbox.
func (s *sandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	if err := cmd.Validate(); err != nil {
		return nil, err
	}
	inside, err := s.p.reachGuest(ctx, "exec", s.id)
	if err != nil {
		return nil, err
	}
	var p atoll.Process
	err = s.p.withPauseCheck(ctx, "exec", s.id, func(ctx context.Context) (err error) {
		p, err = inside.Exec(ctx, cmd)
		return err
	})
	if err != nil {
		return nil, s.explainError(ctx, "exec", err)
	}
	return s.wrapProcess(p), nil
}

// Process implements atoll.Sandbox.
func (s *sandbox) Process(ctx context.Context, id string) (atoll.Process, error) {
	inside, err := s.p.reachGuest(ctx, "process", s.id)
	if err == nil {
		var p atoll.Process
		err = s.p.withPauseCheck(ctx, "process", s.id, func(ctx context.Context) (err error) {
			p, err = inside.Process(ctx, id)
			return err
		})
		if err == nil {
			return s.wrapProcess(p), nil
		}
		err = s.explainError(ctx, "process", err)
	}
	if id == atoll.MainProcess && errors.Is(err, atoll.ErrStopped) {
		if ended, _, endErr := s.endedMain(ctx); endErr == nil {
			return ended, nil
		}
	}
	return nil, err
}

// Processes implements atoll.ProcessLister.
func (s *sandbox) Processes(ctx context.Context) ([]atoll.ProcessStatus, error) {
	inside, err := s.p.reachGuest(ctx, "processes", s.id)
	if err == nil {
		var list []atoll.ProcessStatus
		err = s.p.withPauseCheck(ctx, "processes", s.id, func(ctx context.Context) (err error) {
			list, err = atoll.Processes(ctx, inside)
			return err
		})
		if err == nil {
			return list, nil
		}
		err = s.explainError(ctx, "processes", err)
	}
	if errors.Is(err, atoll.ErrStopped) {
		if _, st, endErr := s.endedMain(ctx); endErr == nil {
			return []atoll.ProcessStatus{st}, nil
		}
	}
	return nil, err
}

// Pause implements atoll.Pauser.
func (s *sandbox) Pause(ctx context.Context) error {
	return s.withLockedRecord(ctx, "pause", func(r *record) error {
		if r.State == atoll.StatePaused {
			return nil
		}
		if err := requireRunning("pause", &r.Status); err != nil {
			return err
		}
		if err := s.p.requireCgroups(ctx, "pause", s.id); err != nil {
			return err
		}
		_, err := s.p.engine.ContainerPause(ctx, r.container, client.ContainerPauseOptions{})
		return s.p.wrapError(ctx, "pause", s.id, err)
	})
}

// Resume implements atoll.Pauser.
func (s *sandbox) Resume(ctx context.Context) error {
	return s.withLockedRecord(ctx, "resume", func(r *record) error {
		switch r.State {
		case atoll.StateRunning:
			return nil
		case atoll.StatePaused:
			_, err := s.p.engine.ContainerUnpause(ctx, r.container, client.ContainerUnpauseOptions{})
			return s.p.wrapError(ctx, "resume", s.id, err)
		}
		return requireRunning("resume", &r.Status)
	})
}

// Dial implements atoll.Dialer.
func (s *sandbox) Dial(ctx context.Context, port int) (net.Conn, error) {
	inside, err := s.p.reachGuest(ctx, "dial", s.id)
	if err != nil {
		return nil, err
	}
	var conn net.Conn
	err = s.p.withPauseCheck(ctx, "dial", s.id, func(ctx context.Context) (err error) {
		conn, err = atoll.Dial(ctx, inside, port)
		return err
	})
	return conn, s.explainError(ctx, "dial", err)
}

// explainError returns a more precise error if the sandbox has ended.
func (s *sandbox) explainError(ctx context.Context, op string, err error) error {
	if k := atoll.KindOf(err); err == nil || ctx.Err() != nil || k != atoll.ErrUnavailable && k != atoll.ErrNotFound {
		return err
	}
	if ended := s.p.checkRunning(ctx, op, s.id); ended != nil {
		return ended
	}
	return err
}

var (
	_ atoll.Sandbox       = (*sandbox)(nil)
	_ atoll.Dialer        = (*sandbox)(nil)
	_ atoll.Pauser        = (*sandbox)(nil)
	_ atoll.ProcessLister = (*sandbox)(nil)
)
