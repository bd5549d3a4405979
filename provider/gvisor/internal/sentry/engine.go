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
	"sync"
	"time"

	gvisorlog "gvisor.dev/gvisor/pkg/log"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/process"
	"github.com/seed46cd37a8/atoll/provider/gvisor/internal/plan"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

// A job is a complete job. Its root file system is Record.Image; "" means the host's, by
// allow-list.
type job struct {
	*supervisor.Job
	plan.Plan
}

// logName is the name of a file in Job.Dir: the last messages of gVisor's processes.
const logName = "sentry.log"

// An engine implements supervisor.Engine over the sentry that this process owns.
type engine struct {
	sandbox   *supervisor.Sandbox
	job       *job
	root      string // path of the sandbox's root file system
	sentry    *sentry
	guard     *memoryGuard
	table     *process.Table
	files     *sandboxFiles
	network   *network
	trustVars []string // variables with which programs trust the gateway

	children sync.Map // by id: the processes that the first one has started

	heldMu sync.Mutex
	held   *heldChildren // while the sandbox is paused
}

func newEngine(b *supervisor.Sandbox, log io.Writer) (supervisor.Engine, error) {
	job := &job{Job: b.Job}
	if err := json.Unmarshal(b.Job.Engine, &job.Plan); err != nil {
		return nil, fmt.Errorf("read job: %w", err)
	}
	// gVisor runs parts of itself from files beside the executable, if they
	// exist, whatever their owner and version. Make sure that it finds none.
	if err := os.Setenv("GVISOR_SIDECAR_BINARIES_DIR", filepath.Join(job.Run, "none")); err != nil {
		return nil, err
	}
	gvisorlog.SetTarget(&gvisorlog.GoogleEmitter{Writer: &gvisorlog.Writer{Next: log}})
	gvisorlog.SetLevel(gvisorlog.Warning)
	if job.Spec.Network.Mode == atoll.NetworkNone {
		// This process moves no packets, and one thread at a time is enough for all else: a
		// second one is mostly woken for nothing, and takes CPU time from the
		// sentry. Commands end 5 % sooner with one.
		runtime.GOMAXPROCS(1)
	}
	return &engine{sandbox: b, job: job, table: newTable(job.Spec.Resources.Memory)}, nil
}

// newTable returns the table of the processes of a sandbox with a limit of memory.
func newTable(memory atoll.Bytes) *process.Table {
	table := process.NewTable()
	table.EndedOutput = endedOutputLimit(memory)
	return table
}

// endedOutputLimit returns how many bytes of output of ended commands are kept: only a part
// of the sandbox's memory, which this process shares.
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

// DeathReason implements supervisor.Engine: the log says more, if anything.
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
	return n - e.files.guestCount() - 1, err // the first process is always there
}

// Files implements supervisor.Engine.
func (e *engine) Files() atoll.FS { return e.files }

// Pause implements supervisor.Engine. It ends the guest, which is not needed before Resume
// and could not be ended while it is frozen.
func (e *engine) Pause(ctx context.Context) error {
	if err := e.files.endGuest(ctx); err != nil {
		return atoll.E("pause", e.sandbox.ID(), atoll.KindOf(err), err)
	}
	if e.getHeld() != nil {
		return nil
	}
	held, err := e.holdChildren(ctx)
	if err != nil {
		return atoll.E("pause", e.sandbox.ID(), atoll.KindOf(err), err)
	}
	if err := e.sentry.pause(func() bool { return true }); err != nil {
		held.release()
		return atoll.E("pause", e.sandbox.ID(), atoll.ErrInternal, err)
	}
	e.keepHeld(held)
	return nil
}

// Resume implements supervisor.Engine.
func (e *engine) Resume(context.Context) error {
	if err := e.sentry.resume(); err != nil {
		return atoll.E("resume", e.sandbox.ID(), atoll.ErrInternal, err)
	}
	e.keepHeld(nil)
	return nil
}

// Frozen implements supervisor.Engine.
func (e *engine) Frozen() bool { return e.sentry.paused.Load() }

// answerTimeout is the time within which the sentry must answer a question that it answers
// from memory; a slower one hangs.
const answerTimeout = 10 * time.Second

var errSentryHangs = errors.New("gVisor's sentry does not answer: wait, or remove the sandbox")

// awaitAnswer returns the result of f, which asks the sentry, or, after limit and
// answerTimeout, an error that says that the sentry hangs. Then wanted returns false to f,
// and if f still succeeds, undo takes that back.
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
		return atoll.E("stop", e.sandbox.ID(), atoll.ErrTimeout, errSentryHangs)
	}
}

// Terminate implements supervisor.Engine. Its error says that the sentry hangs.
func (e *engine) Terminate(grace time.Duration) error {
	return e.awaitAnswer(grace, func(wanted func() bool) error { e.terminateAll(wanted, grace); return nil }, func() {})
}

func (e *engine) terminateAll(wanted func() bool, grace time.Duration) {
	err := e.sentry.resume()
	e.keepHeld(nil)
	if err != nil || grace == 0 {
		return
	}
	if _, err := e.sentry.countProcesses(); err != nil || !wanted() { // make sure that it answers in time
		return
	}
	if err := e.sentry.signalAll(atoll.SIGTERM); err != nil {
		e.sandbox.Log.Warn("stop", "err", err)
		return
	}
	for deadline := time.Now().Add(grace); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		n, err := e.sentry.countProcesses()
		if err != nil || n <= 1 { // the first process stays
			return
		}
	}
}

// Kill implements supervisor.Engine.
func (e *engine) Kill() { e.sentry.kill() }

// Destroy implements supervisor.Engine.
func (e *engine) Destroy() error {
	err := e.sentry.destroy() // first: it ends all calls that wait for the sentry
	e.guard.wait()
	e.files.closeGuest()
	return errors.Join(err, e.network.close(), e.table.Close())
}

// SaveMain implements supervisor.Engine.
func (e *engine) SaveMain(path string) error { return e.table.Save(path, atoll.MainProcess) }

var _ supervisor.Engine = (*engine)(nil)
