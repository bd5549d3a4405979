package vmdocker

import (
	"context"
	"net"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/lazyfs"
)

// A sandbox is a handle: each call looks up its engine.
type sandbox struct {
	p       *Provider
	id      string
	project string
}

// ID implements atoll.Sandbox.
func (s *sandbox) ID() string { return s.id }

// Status implements atoll.Sandbox.
func (s *sandbox) Status(ctx context.Context) (atoll.Status, error) {
	return s.p.findStatus(ctx, "status", s.id)
}

// Start implements atoll.Sandbox. It starts the machine, too.
func (s *sandbox) Start(ctx context.Context) error {
	return s.withSandbox(ctx, "start", func(ctx context.Context, sb atoll.Sandbox) error { return sb.Start(ctx) })
}

// Stop implements atoll.Sandbox.
func (s *sandbox) Stop(ctx context.Context, grace time.Duration) error {
	if awake, err := s.machineRuns(ctx, "stop"); err != nil || !awake {
		return err // nothing runs without a machine
	}
	return s.withSandbox(ctx, "stop", func(ctx context.Context, sb atoll.Sandbox) error { return sb.Stop(ctx, grace) })
}

// Remove implements atoll.Sandbox. It starts no machine: if the machine is off, the container
// is removed when the machine is next used. The disk stays.
func (s *sandbox) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	volumes := atoll.ApplyRemoveOptions(opts...).Volumes
	st, err := s.p.notes.findStatus(s.id)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		if !volumes {
			return nil
		}
		st, err = atoll.Status{ID: s.id, Spec: atoll.Spec{ID: s.id, Project: s.project}}, nil
	}
	if err != nil {
		return atoll.E("remove", s.id, atoll.KindOf(err), err)
	}
	now := func(ctx context.Context, e *engine) error {
		if err := e.docker.Sandbox(s.id).Remove(ctx, opts...); err != nil {
			return err
		}
		return s.p.learnSandbox(ctx, e, s.id)
	}
	e, _, err := s.p.runningEngine(ctx, s.project)
	if err != nil {
		return err
	}
	if e != nil {
		err := s.p.withEngine(ctx, s.project, now)
		if err == nil || ctx.Err() != nil || !e.hasEnded(ctx) {
			return err
		}
	}
	if err := s.p.removeLater(ctx, st, volumes); err != nil {
		return atoll.E("remove", s.id, atoll.KindOf(err), err)
	}
	if e, _, err = s.p.runningEngine(ctx, s.project); err != nil || e == nil {
		return err
	}
	return s.p.withEngine(ctx, s.project, func(context.Context, *engine) error { return nil }) // the machine was just starting
}

// withSandbox calls fn with the sandbox's handle in its engine, and records the result. fn
// changes the sandbox's state.
func (s *sandbox) withSandbox(ctx context.Context, op string, fn func(context.Context, atoll.Sandbox) error) error {
	if _, err := s.p.findStatus(ctx, op, s.id); err != nil {
		return err
	}
	return s.p.withEngineRetry(ctx, s.project, func(ctx context.Context, e *engine) error {
		err := fn(ctx, e.docker.Sandbox(s.id))
		if _, noteErr := s.p.refreshNotes(ctx, e, &s.id); err == nil {
			err = noteErr
		}
		return err
	})
}

// machineRuns reports whether the sandbox's machine runs. If it does not, machineRuns also
// checks that the sandbox exists. Kinds: ErrNotFound.
func (s *sandbox) machineRuns(ctx context.Context, op string) (bool, error) {
	e, _, err := s.p.runningEngine(ctx, s.project)
	if err == nil && e == nil {
		_, err = s.p.findStatus(ctx, op, s.id)
	}
	return e != nil, err
}

// withRunning calls fn with the sandbox's handle in its engine, if its machine runs. Kinds:
// ErrStopped, ErrNotFound, and those of fn.
func (s *sandbox) withRunning(ctx context.Context, op string, fn func(context.Context, atoll.Sandbox) error) error {
	e, _, err := s.p.runningEngine(ctx, s.project)
	if err != nil {
		return err
	}
	if e != nil {
		if err := s.p.checkRemoved(op, s.project, s.id); err != nil {
			return err
		}
		err = s.p.withPings(ctx, e, func(ctx context.Context) error { return fn(ctx, e.docker.Sandbox(s.id)) })
		if err == nil || ctx.Err() != nil || atoll.KindOf(err) != atoll.ErrUnavailable || !e.hasEnded(ctx) {
			return err
		}
	}
	if _, err := s.p.findStatus(ctx, op, s.id); err != nil {
		return err
	}
	return atoll.E(op, s.id, atoll.ErrStopped, nil)
}

// Exec implements atoll.Sandbox.
func (s *sandbox) Exec(ctx context.Context, cmd *atoll.Command) (pr atoll.Process, err error) {
	if err := cmd.Validate(); err != nil {
		return nil, err
	}
	err = s.withRunning(ctx, "exec", func(ctx context.Context, sb atoll.Sandbox) (err error) {
		pr, err = sb.Exec(ctx, cmd)
		return err
	})
	return pr, err
}

// Process implements atoll.Sandbox. For the main process, it starts the machine, which has the
// output.
func (s *sandbox) Process(ctx context.Context, id string) (pr atoll.Process, err error) {
	do := func(ctx context.Context, sb atoll.Sandbox) (err error) {
		pr, err = sb.Process(ctx, id)
		return err
	}
	if id == atoll.MainProcess {
		err = s.withSandbox(ctx, "process", do)
	} else {
		err = s.withRunning(ctx, "process", do)
	}
	return pr, err
}

// Processes implements atoll.ProcessLister.
func (s *sandbox) Processes(ctx context.Context) (list []atoll.ProcessStatus, err error) {
	err = s.withRunning(ctx, "processes", func(ctx context.Context, sb atoll.Sandbox) (err error) {
		list, err = atoll.Processes(ctx, sb)
		return err
	})
	return list, err
}

// Pause implements atoll.Pauser.
func (s *sandbox) Pause(ctx context.Context) error {
	return s.withRunning(ctx, "pause", func(ctx context.Context, sb atoll.Sandbox) error { return atoll.Pause(ctx, sb) })
}

// Resume implements atoll.Pauser.
func (s *sandbox) Resume(ctx context.Context) error {
	return s.withRunning(ctx, "resume", func(ctx context.Context, sb atoll.Sandbox) error { return atoll.Resume(ctx, sb) })
}

// Dial implements atoll.Dialer.
func (s *sandbox) Dial(ctx context.Context, port int) (conn net.Conn, err error) {
	err = s.withRunning(ctx, "dial", func(ctx context.Context, sb atoll.Sandbox) (err error) {
		conn, err = atoll.Dial(ctx, sb, port)
		return err
	})
	return conn, err
}

// Usage implements atoll.Meter.
func (s *sandbox) Usage(ctx context.Context) (u atoll.Usage, err error) {
	err = s.withRunning(ctx, "usage", func(ctx context.Context, sb atoll.Sandbox) (err error) {
		u, err = atoll.UsageOf(ctx, sb)
		return err
	})
	return u, err
}

// Extend implements atoll.Extender.
func (s *sandbox) Extend(ctx context.Context, ttl atoll.Duration) error {
	return s.withSandbox(ctx, "extend", func(ctx context.Context, sb atoll.Sandbox) error { return atoll.Extend(ctx, sb, ttl) })
}

// Files implements atoll.Filer. Its calls start the machine.
func (s *sandbox) Files() atoll.FS {
	return lazyfs.FS(func(ctx context.Context, op string, _ []string, fn func(context.Context, atoll.FS) error) error {
		if _, err := s.machineRuns(ctx, op); err != nil { // the sandbox does not exist
			return err
		}
		return s.p.withEngine(ctx, s.project, func(ctx context.Context, e *engine) error { return fn(ctx, atoll.Files(e.docker.Sandbox(s.id))) })
	})
}

var (
	_ atoll.Sandbox       = (*sandbox)(nil)
	_ atoll.ProcessLister = (*sandbox)(nil)
	_ atoll.Pauser        = (*sandbox)(nil)
	_ atoll.Dialer        = (*sandbox)(nil)
	_ atoll.Meter         = (*sandbox)(nil)
	_ atoll.Extender      = (*sandbox)(nil)
	_ atoll.Filer         = (*sandbox)(nil)
)
