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

// A Sandbox implements the calls of atoll.Sandbox that a guest serves, and serves the recorded main
// process and the files of volumes while the sandbox is stopped. Providers embed it.
type Sandbox struct {
	// Inside returns the sandbox as its guest serves it. Kinds: ErrStopped, and others.
	Inside func(ctx context.Context, op string) (atoll.Sandbox, error)
	// Caretaker returns a sandbox that serves the files with these names while this one is
	// stopped. Kinds: ErrStopped (a name is outside the volumes: see CheckOnVolumes), and others.
	Caretaker func(ctx context.Context, op string, names []string) (atoll.Sandbox, error)
	// AwaitStop waits briefly for a sandbox whose guest went away to stop, and returns the error
	// for op: ErrStopped, ErrNotFound, or others; nil if the sandbox still runs.
	AwaitStop func(ctx context.Context, op string) error
	// Ended is for Process.Ended.
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
		return nil, s.explainError(ctx, "exec", err)
	}
	return s.wrapProcess(p), nil
}

func (s *Sandbox) wrapProcess(p atoll.Process) atoll.Process {
	return &Process{ProcessLayer: atoll.ProcessLayer{Process: p}, ExplainError: s.explainError, Ended: s.Ended}
}

// Process implements atoll.Sandbox.
func (s *Sandbox) Process(ctx context.Context, id string) (atoll.Process, error) {
	inside, err := s.Inside(ctx, "process")
	if err == nil {
		var p atoll.Process
		if p, err = inside.Process(ctx, id); err == nil {
			return s.wrapProcess(p), nil
		}
		err = s.explainError(ctx, "process", err)
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
		err = s.explainError(ctx, "processes", err)
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
	return conn, s.explainError(ctx, "dial", err)
}

// Files implements atoll.Filer. The guest serves the files, or the caretaker while the sandbox is
// stopped.
func (s *Sandbox) Files() atoll.FS {
	return lazyfs.FS(func(ctx context.Context, op string, names []string, fn func(context.Context, atoll.FS) error) error {
		inside, err := s.Inside(ctx, op)
		if errors.Is(err, atoll.ErrStopped) {
			inside, err = s.Caretaker(ctx, op, names)
		}
		if err != nil {
			return err
		}
		return s.explainError(ctx, op, fn(ctx, atoll.Files(inside)))
	})
}

// CheckOnVolumes returns nil if all names are on volumes, the data volume included, whose files are available
// while the sandbox is stopped. Kinds: ErrStopped.
func CheckOnVolumes(op, id string, spec *atoll.Spec, names []string) error {
	dirs := volume.MountedDirs(spec)
	if slices.ContainsFunc(names, func(name string) bool { return !dirfs.Within(dirs, spec.Workdir, name) }) {
		return atoll.Errorf(op, id, atoll.ErrStopped, "sandbox is stopped: only its work directory and volumes can be reached")
	}
	return nil
}

// explainError replaces the error of a guest that went away, as described for Process.ExplainError.
func (s *Sandbox) explainError(ctx context.Context, op string, err error) error {
	if k := atoll.KindOf(err); err == nil || ctx.Err() != nil || k != atoll.ErrUnavailable && k != atoll.ErrNotFound {
		return err
	}
	if ended := s.AwaitStop(ctx, op); ended != nil {
		return ended
	}
	if found, ok := errors.AsType[*atoll.Error](err); ok && found.Kind == atoll.ErrNotFound {
		return atoll.Errorf(op, found.ID, atoll.ErrStopped, "the sandbox was stopped during the call, and has been started again")
	}
	return err
}
