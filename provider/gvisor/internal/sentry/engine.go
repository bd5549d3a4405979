//go:build linux

package sentry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	gvisorlog "gvisor.dev/gvisor/pkg/log"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/process"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

// A Plan is what a job says of a sandbox on gVisor besides.
type Plan struct {
	HostPaths []string `json:"host_paths,omitempty"` // what the host's file system shows besides its allow-list
	Upper     string   `json:"upper,omitempty"`      // tar of the upper layer to start from; "" for none

	Platform string `json:"platform"`
	Rootless bool   `json:"rootless,omitempty"`
	Debug    bool   `json:"debug,omitempty"` // gVisor's own logs into Dir
}

// A job is all of it. The root file system is that of its Record.Image; "" means the
// host's, by allow-list.
type job struct {
	*supervisor.Job
	Plan
}

// Names of files in Job.Dir.
const (
	UpperName = "upper.tar"  // what a clean stop saved of the root file system
	logName   = "sentry.log" // what gVisor's processes said when they died
)

// An engine is the supervisor.Engine over the sentry that this process owns.
type engine struct {
	sandbox *supervisor.Sandbox
	job     *job
	root    string // of the sandbox's file system
	sentry  *sentry
	table   *process.Table
	files   *sandboxFiles
	network *network
}

func newEngine(b *supervisor.Sandbox, log io.Writer) (supervisor.Engine, error) {
	job := &job{Job: b.Job}
	if err := json.Unmarshal(b.Job.Engine, &job.Plan); err != nil {
		return nil, fmt.Errorf("read job: %w", err)
	}
	// gVisor runs parts of itself from files beside the executable, if they are
	// there, unseen whose they are and of what version. They must not be.
	if err := os.Setenv("GVISOR_SIDECAR_BINARIES_DIR", filepath.Join(job.Run, "none")); err != nil {
		return nil, err
	}
	gvisorlog.SetTarget(&gvisorlog.GoogleEmitter{Writer: &gvisorlog.Writer{Next: log}})
	gvisorlog.SetLevel(gvisorlog.Warning)
	if job.Spec.Network.Mode == atoll.NetworkNone {
		// It moves no packets, and one thread at a time is enough for all else: a
		// second one is woken for naught most times, and takes its CPU from the
		// sentry. Commands end 5 % sooner for it.
		runtime.GOMAXPROCS(1)
	}
	table := process.NewTable()
	table.EndedOutput = endedOutputLimit(job.Spec.Resources.Memory)
	return &engine{sandbox: b, job: job, table: table}, nil
}

// endedOutputLimit is how much output of commands that have ended is kept: this
// process shares the sandbox's memory, of which a part has to do.
func endedOutputLimit(memory atoll.Bytes) int64 {
	if memory <= 0 {
		return process.DefaultEndedOutput
	}
	return min(int64(memory)/16, process.DefaultEndedOutput)
}

// Name implements supervisor.Engine.
func (e *engine) Name() string { return "gVisor's sentry" }

// Exited implements supervisor.Engine.
func (e *engine) Exited() <-chan struct{} {
	if e.sentry == nil {
		return nil
	}
	return e.sentry.exited
}

// DeathReason implements supervisor.Engine: the log says more, if there is any.
func (e *engine) DeathReason() string { return "" }

// Lost implements supervisor.Engine.
func (e *engine) Lost(err error) bool { return e.sentry.isLost(err) }

// Process implements supervisor.Engine.
func (e *engine) Process(_ context.Context, id string) (atoll.Process, error) {
	return e.table.Get(id)
}

// Processes implements supervisor.Engine.
func (e *engine) Processes(context.Context) ([]atoll.ProcessStatus, error) {
	return e.table.List(), nil
}

// Running implements supervisor.Engine.
func (e *engine) Running(context.Context) (int, error) {
	if n := e.table.Running(); n > 0 {
		return n, nil
	}
	n, err := e.sentry.countProcesses()
	return n - e.files.guestCount() - 1, err // the idle init is always there
}

// Files implements supervisor.Engine.
func (e *engine) Files() atoll.FS { return e.files }

// Pause implements supervisor.Engine. The guest is not needed before Resume, and while
// it is frozen it could not be ended.
func (e *engine) Pause(ctx context.Context) error {
	if err := e.files.endGuest(ctx); err != nil {
		return atoll.E("pause", e.sandbox.ID(), atoll.KindOf(err), err)
	}
	if err := e.sentry.pause(func() bool { return true }); err != nil {
		return atoll.E("pause", e.sandbox.ID(), atoll.ErrInternal, err)
	}
	return nil
}

// Resume implements supervisor.Engine.
func (e *engine) Resume(context.Context) error {
	if err := e.sentry.resume(); err != nil {
		return atoll.E("resume", e.sandbox.ID(), atoll.ErrInternal, err)
	}
	return nil
}

// Frozen implements supervisor.Engine.
func (e *engine) Frozen() bool { return e.sentry.paused.Load() }

// answerTimeout is how long the sentry may take to answer what it has in memory; one
// that takes longer hangs.
const answerTimeout = 10 * time.Second

// awaitAnswer returns what f, which asks the sentry, returns, or after limit and
// some patience that the sentry hangs: then f is not wanted any longer, and
// should it succeed all the same, undo takes it back.
func (e *engine) awaitAnswer(limit time.Duration, f func(wanted func() bool) error, undo func()) error {
	done, gaveUp := make(chan error), make(chan struct{})
	wanted := func() bool {
		select {
		case <-gaveUp:
			return false
		default:
			return true
		}
	}
	go func() {
		err := f(wanted)
		select {
		case done <- err:
		case <-gaveUp:
			if err == nil {
				undo()
			}
		}
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(limit + answerTimeout):
		close(gaveUp)
		return atoll.Errorf("stop", e.sandbox.ID(), atoll.ErrTimeout, "gVisor's sentry does not answer: wait, or remove the sandbox")
	}
}

// Terminate implements supervisor.Engine. Its error says that the sentry hangs.
func (e *engine) Terminate(grace time.Duration) error {
	return e.awaitAnswer(grace, func(wanted func() bool) error { e.terminateAll(wanted, grace); return nil }, func() {})
}

func (e *engine) terminateAll(wanted func() bool, grace time.Duration) {
	if err := e.sentry.resume(); err != nil || grace == 0 {
		return
	}
	if _, err := e.sentry.countProcesses(); err != nil || !wanted() { // it answers, and in time
		return
	}
	if err := e.sentry.signalAll(atoll.SIGTERM); err != nil {
		e.sandbox.Log.Warn("stop", "err", err)
		return
	}
	for deadline := time.Now().Add(grace); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		n, err := e.sentry.countProcesses()
		if err != nil || n <= 1 { // the idle init stays
			return
		}
	}
}

// Kill implements supervisor.Engine.
func (e *engine) Kill() { e.sentry.kill() }

// Destroy implements supervisor.Engine.
func (e *engine) Destroy() error {
	err := e.sentry.destroy() // first: whatever waits for the sentry is free then
	e.files.closeGuest()
	return errors.Join(err, e.network.close(), e.table.Close())
}

// SaveMain implements supervisor.Engine.
func (e *engine) SaveMain(path string) error { return e.table.Save(path, atoll.MainProcess) }

var _ supervisor.Engine = (*engine)(nil)
