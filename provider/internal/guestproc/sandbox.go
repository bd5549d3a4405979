package guestproc

import (
	"context"
	"errors"
	"net"
	"slices"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/dirfs"
	"github.com/seed46cd37a8/atoll/internal/lazyfs"
	"github.com/seed46cd37a8/atoll/provider/internal/volume"
)

// A Sandbox is what a guest serves of one while it runs, with what is known of its main
// process, and of its volumes, when it has come to its end. Providers embed it into theirs.
type Sandbox struct {
	// Inside is the sandbox as its guest serves it. Kinds: ErrStopped, and others.
	Inside func(ctx context.Context, op string) (atoll.Sandbox, error)
	// Caretaker serves the files of these names while the sandbox is stopped. Kinds:
	// ErrStopped (one of them is not at rest: see AtRest), and others.
	Caretaker func(ctx context.Context, op string, names []string) (atoll.Sandbox, error)
	// Ends waits a moment for a sandbox whose guest has gone to come to its end, and says
	// what that means for op. Kinds: ErrStopped, ErrNotFound, and others; nil if it runs on.
	Ends func(ctx context.Context, op string) error
	// Ended is that of Process.
	Ended func(ctx context.Context) (atoll.Process, atoll.ProcessStatus, error)
}

// Exec implements atoll.Sandbox.
func (s *Sandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	if err := cmd.Validate(); err != nil {
		return nil, err
	}
	inside, err := s.Inside(ctx, "exec")
	if err != nil {
		return nil, err
	}
	p, err := inside.Exec(ctx, cmd)
	if err != nil {
		return nil, s.explain(ctx, "exec", err)
	}
	return s.process(p), nil
}

func (s *Sandbox) process(p atoll.Process) atoll.Process {
	return &Process{ProcessLayer: atoll.ProcessLayer{Process: p}, Explain: s.explain, Ended: s.Ended}
}

// Process implements atoll.Sandbox.
func (s *Sandbox) Process(ctx context.Context, id string) (atoll.Process, error) {
	inside, err := s.Inside(ctx, "process")
	if err == nil {
		var p atoll.Process
		if p, err = inside.Process(ctx, id); err == nil {
			return s.process(p), nil
		}
		err = s.explain(ctx, "process", err)
	}
	if id == atoll.MainProcess && errors.Is(err, atoll.ErrStopped) {
		if ended, _, endErr := s.Ended(ctx); endErr == nil {
			return ended, nil
		}
	}
	return nil, err
}

// Processes implements atoll.ProcessLister.
func (s *Sandbox) Processes(ctx context.Context) ([]atoll.ProcessStatus, error) {
	inside, err := s.Inside(ctx, "processes")
	if err == nil {
		var list []atoll.ProcessStatus
		if list, err = atoll.Processes(ctx, inside); err == nil {
			return list, nil
		}
		err = s.explain(ctx, "processes", err)
	}
	if errors.Is(err, atoll.ErrStopped) {
		if _, st, endErr := s.Ended(ctx); endErr == nil {
			return []atoll.ProcessStatus{st}, nil
		}
	}
	return nil, err
}

// Dial implements atoll.Dialer.
func (s *Sandbox) Dial(ctx context.Context, port int) (net.Conn, error) {
	inside, err := s.Inside(ctx, "dial")
	if err != nil {
		return nil, err
	}
	conn, err := atoll.Dial(ctx, inside, port)
	return conn, s.explain(ctx, "dial", err)
}

// Files implements atoll.Filer: they are served by the guest, and while the sandbox is
// stopped by its caretaker.
func (s *Sandbox) Files() atoll.FS {
	return lazyfs.FS(func(ctx context.Context, op string, names []string, fn func(context.Context, atoll.FS) error) error {
		inside, err := s.Inside(ctx, op)
		if errors.Is(err, atoll.ErrStopped) {
			inside, err = s.Caretaker(ctx, op, names)
		}
		if err != nil {
			return err
		}
		return s.explain(ctx, op, fn(ctx, atoll.Files(inside)))
	})
}

// AtRest reports for op whether files of these names can be had of a sandbox that is
// stopped: they are on volumes, of which the work directory is one. Kinds: ErrStopped.
func AtRest(op, id string, spec *atoll.Spec, names []string) error {
	dirs := volume.Dirs(spec)
	if slices.ContainsFunc(names, func(name string) bool { return !dirfs.Within(dirs, spec.Workdir, name) }) {
		return atoll.Errorf(op, id, atoll.ErrStopped, "sandbox is stopped: only its work directory and volumes can be reached")
	}
	return nil
}

// explain turns the error of a guest that went away into what it means.
func (s *Sandbox) explain(ctx context.Context, op string, err error) error {
	if k := atoll.KindOf(err); err == nil || ctx.Err() != nil || k != atoll.ErrUnavailable && k != atoll.ErrNotFound {
		return err
	}
	if ended := s.Ends(ctx, op); ended != nil {
		return ended
	}
	return err
}
