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

// The steps of a supervisor that starts a sandbox, before and after the steps of its
// engine. A supervisor that boots ahead takes those of its engine and serveSteps.
var (
	firstSteps = []step{
		{"lock", (*supervisor).takeLock},
	}
	serveSteps = []step{
		{"socket", (*supervisor).startServing},
	}
	lastSteps = []step{
		{"main process", (*supervisor).startMain},
		{"record", (*supervisor).saveRecord},
	}
)

// A step of a start. It can fail, and adds its undoing to undo.
type step struct {
	name string
	do   func(sv *supervisor, undo *Undo) error
}

// allSteps returns all steps of a start, in their order, around those of an engine.
func allSteps(engine []Step) []step {
	return slices.Concat(firstSteps, engineSteps(engine), serveSteps, lastSteps)
}

// engineSteps returns the steps of an engine.
func engineSteps(engine []Step) (all []step) {
	for _, s := range engine {
		all = append(all, step{s.Name, func(sv *supervisor, undo *Undo) error { return s.Do(sv.wanted, undo) }})
	}
	return all
}

// Steps returns the names of the steps with which a supervisor starts a sandbox, in their
// order, around those of its engine: the names that Job.Fail can have.
func Steps(engine []Step) []string {
	var names []string
	for _, s := range allSteps(engine) {
		names = append(names, s.name)
	}
	return names
}

// bootSandbox takes the steps, as long as the provider wants the sandbox. If it fails, it
// undoes all of them.
func (sv *supervisor) bootSandbox() error {
	if err := sv.prepareMounts(); err != nil {
		return err
	}
	var undo Undo
	if err := sv.takeSteps(allSteps(sv.sandbox.engine.Steps()), &undo); err != nil {
		return err
	}
	sv.sandbox.watchLimits()
	return nil
}

// prepareMounts isolates the mounts of this process from those of the machine.
func (sv *supervisor) prepareMounts() error {
	err := detachMounts()
	if err == nil && sv.sandbox.Job.WritesHostFiles() && sv.sandbox.isolation != atoll.IsolationContainer { // whose engine does it inside
		err = protectHostFiles(sv.sandbox.isolation == atoll.IsolationKernel)
	}
	if err != nil {
		return sv.sandbox.bootError(err)
	}
	return nil
}

// takeSteps takes steps, as long as the provider wants the sandbox. If one fails, it undoes
// all in undo.
func (sv *supervisor) takeSteps(steps []step, undo *Undo) error {
	for _, s := range steps {
		err := sv.plannedFailure(s.name)
		if err == nil && sv.conn.HungUp() {
			err = atoll.Errorf("start", sv.sandbox.ID(), atoll.ErrInternal, "the provider that started the sandbox has gone")
		}
		if err == nil {
			err = s.do(sv, undo)
		}
		if err != nil {
			_, _ = sv.sandbox.awaitBeginEnd(context.Background()) // or Watch would report the undoing as a death
			undo.runAll()
			return sv.sandbox.bootError(err)
		}
	}
	return nil
}

// bootError returns err, with a kind if the engine or the system returned it without one.
func (s *Sandbox) bootError(err error) error {
	if e := (*atoll.Error)(nil); errors.As(err, &e) {
		return err
	}
	return atoll.E("start", s.ID(), bootKind(err), err)
}

// plannedFailure returns the error that a test planned for that step, if any.
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
	return nil // the lock is released with the process, after all else that it holds
}

// bootKind finds the kind of an error that an engine may have returned as text.
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

// watchLimits begins to watch the limits of time of a sandbox that runs.
func (s *Sandbox) watchLimits() {
	go s.watchTTL()
	go s.watchIdle()
	go s.watchDir()
}

// buildHandler makes the handler of the sandbox's API.
func (sv *supervisor) buildHandler() {
	var err error
	sv.handler, err = api.NewHandler(single{sv.sandbox}, api.Options{Log: sv.sandbox.Log})
	sv.built <- err
}

// startServing serves the API of the sandbox on its socket.
func (sv *supervisor) startServing(undo *Undo) error {
	l, err := listenSocket(sv.sandbox.Job.Dir)
	if err != nil {
		return err
	}
	if err := <-sv.built; err != nil {
		l.Close()
		return err
	}
	sv.server = &http.Server{Handler: sv.sandbox.use.Counts(sv.handler), ErrorLog: slog.NewLogLogger(sv.sandbox.Log.Handler(), slog.LevelError)}
	go func() { sv.failed <- sv.server.Serve(l) }()
	undo.Add(sv.closeServer)
	return nil
}

// startMain starts the main process, with the file of the previous one put aside.
func (sv *supervisor) startMain(undo *Undo) error {
	dir := sv.sandbox.Job.Dir
	if err := putMainAside(dir); err != nil {
		return err
	}
	undo.Add(func() { _ = restoreMain(dir) })
	return sv.sandbox.startMain(context.Background())
}

// saveRecord writes the record. Nothing undoes it: from now on the sandbox exists, even if
// the provider that wanted it has gone.
func (sv *supervisor) saveRecord(*Undo) error {
	s := sv.sandbox
	s.mu.Lock()
	defer s.mu.Unlock()
	save := s.dir.Write
	if s.Job.Record.Status.State == atoll.StateCreating {
		save = s.dir.WriteCreated // the provider waits for the disk
	}
	if err := save(s.record); err != nil {
		return err
	}
	if err := dropMainAside(s.Job.Dir); err != nil {
		s.Log.Warn("cannot forget the main process of the previous run", "err", err)
	}
	return nil
}
