package supervisor

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/seed46cd37a8/atoll/internal/gcdelay"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
)

// bootAhead boots the engine, replies, and waits for the job of a sandbox, which it starts. If the provider goes before, or
// the engine ends, it removes all that it made.
func (sv *supervisor) bootAhead(dec *json.Decoder, unwanted func()) (err error) {
	s := sv.sandbox
	adopter, ok := s.engine.(Adopter)
	if !ok {
		return s.bootError(errors.New(s.engine.Name() + " cannot boot ahead"))
	}
	adopted := false
	defer func() {
		if err != nil && !adopted {
			err = errors.Join(err, sv.removeAhead())
		}
	}()
	booted, jobs := make(chan struct{}), make(chan *Job, 1)
	go func() {
		defer close(jobs)
		var job Job
		if err := dec.Decode(&job); err == nil {
			jobs <- &job
			return
		}
		unwanted() // the provider has gone
		select {
		case <-booted:
		case <-time.After(bootGrace):
			os.Exit(1)
		}
	}()
	var undo Undo
	if err = sv.prepareMounts(); err == nil {
		err = sv.takeSteps(slices.Concat(engineSteps(s.engine.Steps()), serveSteps), &undo)
	}
	close(booted)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(sv.conn).Encode(Reply{}); err != nil {
		undo.runAll()
		return err
	}
	gcdelay.Shrink()
	var job *Job
	select {
	case job = <-jobs: // nil if none comes
	case <-s.engine.Exited():
	}
	if job == nil {
		time.AfterFunc(bootGrace, func() { os.Exit(1) }) // an engine that hangs must not stay
		undo.runAll()
		return errors.New("no sandbox needs this engine")
	}
	adopted = true
	started := make(chan struct{})
	defer close(started)
	go exitWithProvider(sv.conn, started, unwanted)
	return sv.adoptJob(job, adopter, &undo)
}

// adoptJob starts the sandbox of a job on the engine that has booted.
func (sv *supervisor) adoptJob(job *Job, engine Adopter, undo *Undo) error {
	before := *sv.sandbox.Job
	sv.sandbox.adopting.Store(true)
	sv.sandbox.setJob(job)
	adopt := step{"adoption", func(sv *supervisor, _ *Undo) error {
		err := engine.Adopt(sv.wanted, &before)
		sv.sandbox.adopting.Store(err != nil)
		return err
	}}
	if err := sv.takeSteps(slices.Concat(firstSteps, []step{adopt}, lastSteps), undo); err != nil {
		return err
	}
	sv.sandbox.watchLimits()
	return nil
}

// removeAhead removes what the boot of an engine made that no sandbox got. A provider that lives removes its part itself.
func (sv *supervisor) removeAhead() error {
	s := sv.sandbox
	if err := errors.Join(s.engine.Unmount(), s.Group.Leave(), s.Group.Remove()); err != nil || !sv.conn.HungUp() {
		return err
	}
	err := errors.Join(os.RemoveAll(s.Job.Dir), statedir.RemoveRun(s.Job.Run))
	s.dir.TidyRun(filepath.Dir(s.Job.Run))
	return err
}
