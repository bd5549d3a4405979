package supervisor

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"syscall"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api"
)

// What a supervisor does to start a sandbox, before and after the steps of its engine.
var (
	firstSteps = []step{
		{"lock", (*supervisor).takeLock},
	}
	lastSteps = []step{
		{"socket", (*supervisor).startServing},
		{"main process", (*supervisor).startMain},
		{"record", (*supervisor).saveRecord},
	}
)

type step struct {
	name string
	do   func(sv *supervisor, undo *Undo) error
}

// allSteps are all those of a start, in their order, around those of an engine.
func allSteps(engine []Step) []step {
	all := slices.Clone(firstSteps)
	for _, s := range engine {
		all = append(all, step{s.Name, func(sv *supervisor, undo *Undo) error { return s.Do(sv.wanted, undo) }})
	}
	return append(all, lastSteps...)
}

// Steps are the names of what a supervisor does to start a sandbox, in their order,
// around those of its engine: what Job.Fail can name.
func Steps(engine []Step) []string {
	var names []string
	for _, s := range allSteps(engine) {
		names = append(names, s.name)
	}
	return names
}

// bootSandbox takes the steps, as long as somebody wants the sandbox. When it fails,
// nothing is left.
func (sv *supervisor) bootSandbox() error {
	if err := detachMounts(); err != nil {
		return sv.sandbox.bootError(err)
	}
	var undo Undo
	for _, s := range allSteps(sv.sandbox.engine.Steps()) {
		err := sv.plannedFailure(s.name)
		if err == nil && sv.conn.HungUp() {
			err = atoll.Errorf("start", sv.sandbox.ID(), atoll.ErrInternal, "whoever wanted the sandbox has gone")
		}
		if err == nil {
			err = s.do(sv, &undo)
		}
		if err != nil {
			_, _ = sv.sandbox.awaitBeginEnd(context.Background()) // or its end would be noticed by those who watch, as a death
			undo.runAll()
			return sv.sandbox.bootError(err)
		}
	}
	return nil
}

// bootError is err, or what it means if only the engine or the system has told.
func (s *Sandbox) bootError(err error) error {
	if e := (*atoll.Error)(nil); errors.As(err, &e) {
		return err
	}
	return atoll.E("start", s.ID(), bootKind(err), err)
}

// plannedFailure is the failure that a test has planned for that step, if any.
func (sv *supervisor) plannedFailure(step string) error {
	if sv.sandbox.Job.Fail != step {
		return nil
	}
	return atoll.Errorf("start", sv.sandbox.ID(), atoll.ErrUnavailable, "step %q failed as planned", step)
}

func (sv *supervisor) takeLock(*Undo) (err error) {
	if sv.lock, err = sv.sandbox.dir.LockSupervisor(sv.sandbox.ID()); err != nil {
		return atoll.E("start", sv.sandbox.ID(), atoll.ErrConflict, err)
	}
	return nil // it goes with the process, after all else that it holds
}

// bootKind finds the kind of an error that an engine may have given as text.
func bootKind(err error) atoll.Kind {
	if k := atoll.KindOf(err); k != atoll.ErrInternal {
		return k
	}
	switch text := err.Error(); {
	case errors.Is(err, syscall.ENOTDIR), strings.Contains(text, "not a directory"):
		return atoll.ErrInvalid
	case errors.Is(err, syscall.ENOSPC), strings.Contains(text, "no space left"):
		return atoll.ErrExhausted
	case errors.Is(err, syscall.EPERM), strings.Contains(text, "operation not permitted"):
		return atoll.ErrUnavailable
	}
	return atoll.ErrInternal
}

// startServing serves the API of the one sandbox.
func (sv *supervisor) startServing(undo *Undo) error {
	l, err := listenSocket(sv.sandbox.Job.Dir)
	if err != nil {
		return err
	}
	sv.handler, err = api.NewHandler(single{sv.sandbox}, api.Options{Log: sv.sandbox.Log})
	if err != nil {
		l.Close()
		return err
	}
	sv.server = &http.Server{Handler: sv.sandbox.use.Counts(sv.handler), ErrorLog: slog.NewLogLogger(sv.sandbox.Log.Handler(), slog.LevelError)}
	go func() { sv.failed <- sv.server.Serve(l) }()
	undo.Add(sv.closeServer)
	go sv.sandbox.watchTTL()
	go sv.sandbox.watchIdle()
	return nil
}

func (sv *supervisor) startMain(undo *Undo) error {
	dir := sv.sandbox.Job.Dir
	if err := putMainAside(dir); err != nil {
		return err
	}
	undo.Add(func() { _ = restoreMain(dir) })
	return sv.sandbox.startMain(context.Background())
}

// saveRecord is not undone: from now on the sandbox is there, whatever becomes of
// who wanted it.
func (sv *supervisor) saveRecord(*Undo) error {
	s := sv.sandbox
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.saveRecord(); err != nil {
		return err
	}
	if err := dropMainAside(s.Job.Dir); err != nil {
		s.Log.Warn("the main process of the last life is still known", "err", err)
	}
	return nil
}
