//go:build linux

package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/cgroup"
	"github.com/seed46cd37a8/atoll/internal/idle"
	"github.com/seed46cd37a8/atoll/internal/kept/statedir"
	"github.com/seed46cd37a8/atoll/internal/process"
)

// A box is the keeper's sandbox: the atoll.Sandbox over the sentry that this
// process owns. It is the only writer of the sandbox's record while it lives.
type box struct {
	job    *Job
	dir    statedir.Dir
	sentry *sentry
	table  *process.Table
	log    *slog.Logger
	files  *boxFiles
	cgroup cgroup.Group

	network *network
	use     idle.Use

	freezing sync.Mutex // while it is paused or resumed, the sentry and the record

	mu     sync.Mutex
	record *statedir.Record
	ending chan struct{} // no more Exec: being stopped, removed, or dead; nil while it lives, closed when it goes on

	renewed  chan struct{} // capacity 1: Extend has changed when the sandbox expires
	over     chan struct{} // closed when the sandbox has come to its end
	done     chan struct{} // closed when the keeper has nothing left to serve
	doneOnce sync.Once
}

// ID is the sandbox's id.
func (b *box) ID() string { return b.job.Spec.ID }

// Status is what the record says.
func (b *box) Status(context.Context) (atoll.Status, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.record.Status.Clone(), nil
}

// Start does nothing: a keeper is there only while its sandbox runs.
func (b *box) Start(context.Context) error { return b.mustRun("start") }

// mustRun is the error of an operation that needs a running sandbox.
func (b *box) mustRun(op string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.ending != nil:
		return atoll.E(op, b.ID(), atoll.ErrStopped, nil)
	case b.record.Status.State == atoll.StatePaused:
		return atoll.Errorf(op, b.ID(), atoll.ErrStopped, "sandbox is paused: resume it first")
	}
	return nil
}

// ended reports whether the sentry has gone, or is about to.
func (b *box) ended() bool {
	select {
	case <-b.sentry.exited:
		return true
	default:
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.ending != nil
	}
}

// Process finds a process of this run of the sandbox.
func (b *box) Process(_ context.Context, id string) (atoll.Process, error) { return b.table.Get(id) }

// Processes lists them.
func (b *box) Processes(context.Context) ([]atoll.ProcessStatus, error) { return b.table.List(), nil }

// Pause freezes the sentry. The guest is not needed before Resume, and while it
// is frozen it could not be ended.
func (b *box) Pause(ctx context.Context) error {
	if err := b.files.dismiss(ctx); err != nil {
		return atoll.E("pause", b.ID(), atoll.KindOf(err), err)
	}
	pause := func() error { return b.sentry.pause(func() bool { return true }) }
	return b.freeze("pause", pause, atoll.StatePaused)
}

// Resume lets it run on.
func (b *box) Resume(context.Context) error {
	return b.freeze("resume", b.sentry.resume, atoll.StateRunning)
}

func (b *box) freeze(op string, do func() error, state atoll.State) error {
	b.freezing.Lock()
	defer b.freezing.Unlock()
	if b.ended() {
		return atoll.E(op, b.ID(), atoll.ErrStopped, nil)
	}
	if err := do(); err != nil {
		return atoll.E(op, b.ID(), atoll.ErrInternal, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ending != nil || b.record.Status.State == state {
		return nil
	}
	b.record.Status.State = state
	b.record.Status.Ready = state == atoll.StateRunning
	return b.save()
}

// paused reports whether nothing in the sandbox runs on.
func (b *box) paused() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.record.Status.State == atoll.StatePaused
}

// save writes the record; b.mu is held.
func (b *box) save() error { return b.dir.Write(b.record) }

// toEnd ends the sandbox's life in this keeper once; it reports whether the
// caller is the one to do it, and if not, what is closed when the one that is has
// given up.
func (b *box) toEnd() (won bool, other <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ending != nil {
		return false, b.ending
	}
	b.ending = make(chan struct{})
	return true, nil
}

// waitToEnd is toEnd that waits while another tries. won is false when the
// sandbox has come to its end.
func (b *box) waitToEnd(ctx context.Context) (won bool, err error) {
	for {
		won, other := b.toEnd()
		if won {
			return true, nil
		}
		select {
		case <-b.over:
			return false, nil
		case <-other: // and the sandbox goes on
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// killToEnd is waitToEnd that does not wait for who has something to save: it kills
// the sentry.
func (b *box) killToEnd(ctx context.Context) (won bool, err error) {
	won, _ = b.toEnd() // so that whoever loses the sentry knows why
	b.sentry.kill()
	if won {
		return true, nil
	}
	return b.waitToEnd(ctx)
}

// Stop ends every process, saves the root file system, and then the sentry and
// this keeper. Start makes a new one.
func (b *box) Stop(ctx context.Context, grace time.Duration) error {
	if grace < 0 {
		grace = atoll.DefaultStopGrace
	}
	won, err := b.waitToEnd(ctx)
	if err != nil {
		return err
	}
	if won {
		return b.stop(grace, "") // without ctx, which must not leave it half done
	}
	b.leave() // whoever stops it has read what he wanted to
	return nil
}

// stop does what Stop does, for the reason given. The caller won toEnd, which is
// taken back when the files cannot be saved.
func (b *box) stop(grace time.Duration, reason string) error {
	err := b.terminate(grace)
	if err == nil {
		err = b.keep()
	}
	if err != nil && b.sentry.lost(err) {
		b.goOn("") // to its end, which watchSentry sees to
		return atoll.Errorf("stop", b.ID(), atoll.ErrInternal, "gVisor's sentry died while its files were being saved, and they are lost: %w", err)
	}
	if err != nil {
		b.goOn("")
		return atoll.Errorf("stop", b.ID(), bootKind(err), "its files could not be saved, so it still runs: %w", err)
	}
	err = b.finish(atoll.StateStopped, reason, nil)
	b.leave()
	return err
}

// Remove ends everything and saves nothing, also when a Stop is in progress; the
// provider deletes what is on disk when this keeper has gone.
func (b *box) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	b.mu.Lock()
	err := b.dir.BeginRemoval(b.record, atoll.RemoveOpts(opts...))
	b.mu.Unlock()
	if err != nil {
		return atoll.E("remove", b.ID(), atoll.ErrInternal, err)
	}
	won, err := b.killToEnd(ctx)
	if err != nil {
		return err
	}
	defer b.leave()
	if !won {
		return nil
	}
	return b.finish(atoll.StateStopped, "", nil)
}

// leave lets the keeper's main function return.
func (b *box) leave() { b.doneOnce.Do(func() { close(b.done) }) }

// patience is how long the sentry may take to answer what it has in memory; one
// that takes longer hangs.
const patience = 10 * time.Second

// answered returns what f, which asks the sentry, returns, or after limit and
// some patience that the sentry hangs: then f is not wanted any longer, and
// should it succeed all the same, undo takes it back.
func (b *box) answered(limit time.Duration, f func(wanted func() bool) error, undo func()) error {
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
	case <-time.After(limit + patience):
		close(gaveUp)
		return atoll.Errorf("stop", b.ID(), atoll.ErrTimeout, "gVisor's sentry does not answer: wait, or remove the sandbox")
	}
}

// terminate asks every process to end and waits for it, grace at most. Its
// error says that the sentry hangs: then nothing is asked to end later.
func (b *box) terminate(grace time.Duration) error {
	return b.answered(grace, func(wanted func() bool) error { b.terminateAll(wanted, grace); return nil }, func() {})
}

func (b *box) terminateAll(wanted func() bool, grace time.Duration) {
	if err := b.sentry.resume(); err != nil || grace == 0 {
		return
	}
	if _, err := b.sentry.count(); err != nil || !wanted() { // it answers, and in time
		return
	}
	if err := b.sentry.signalAll(atoll.SIGTERM); err != nil {
		b.log.Warn("stop", "err", err)
		return
	}
	for deadline := time.Now().Add(grace); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		n, err := b.sentry.count()
		if err != nil || n <= 1 { // the idle init stays
			return
		}
	}
}

// goOn takes back toEnd. The record says then whether what is inside runs, and
// reason.
func (b *box) goOn(reason string) {
	frozen := b.sentry.paused.Load()
	b.mu.Lock()
	defer b.mu.Unlock()
	st := &b.record.Status
	state := atoll.StateRunning
	if frozen {
		state = atoll.StatePaused
	}
	if st.State != state || st.Reason != reason {
		st.State, st.Ready, st.Reason = state, !frozen, reason
		if err := b.save(); err != nil {
			b.log.Error("stop", "err", err)
		}
	}
	close(b.ending)
	b.ending = nil
}

// finish takes the sandbox down and records how it ended. The caller won toEnd.
func (b *box) finish(state atoll.State, reason string, exit *atoll.Exit) error {
	defer close(b.over)
	var errs []error
	errs = append(errs, b.sentry.destroy()) // first: whatever waits for the sentry is free then
	b.files.close()
	errs = append(errs, b.network.close(), b.table.Close())
	b.saveMain() // before the record says that there is something to look for
	if exit == nil {
		exit = b.mainExit()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	st := &b.record.Status
	st.State, st.Reason, st.Exit, st.Ready = state, reason, exit, false
	st.Stopped = time.Now()
	errs = append(errs, b.save())
	if err := errors.Join(errs...); err != nil {
		b.log.Error("stop", "err", err)
		return atoll.E("stop", b.ID(), atoll.ErrInternal, err)
	}
	return nil
}

// mainExit is how the main process ended, if there was one.
func (b *box) mainExit() *atoll.Exit {
	for _, st := range b.table.List() {
		if st.ID == atoll.MainProcess {
			return st.Exit
		}
	}
	return nil
}

// watchSentry records the end of a sentry that nobody asked for.
func (b *box) watchSentry() {
	<-b.sentry.exited
	if won, _ := b.waitToEnd(context.Background()); !won {
		return
	}
	reason := b.fate()
	b.log.Error("sentry died", "reason", reason)
	_ = b.finish(atoll.StateFailed, reason, nil) // logged
	b.leave()
}

// fate says why the sentry died.
func (b *box) fate() string {
	if b.cgroup.OOMKilled() {
		return "out of memory: the sandbox used more than " + b.job.Spec.Resources.Memory.String()
	}
	return "gVisor's sentry died; see " + filepath.Join(b.job.Dir, LogName)
}

// runMain starts the main process, whose end is the sandbox's.
func (b *box) runMain(ctx context.Context) error {
	spec := &b.job.Spec
	if len(spec.Cmd) == 0 {
		return nil
	}
	p, err := b.exec(ctx, atoll.MainProcess, &atoll.Command{Args: spec.Cmd, TTY: spec.TTY, OpenStdin: spec.OpenStdin})
	if err != nil {
		return err
	}
	go b.watchMain(p)
	return nil
}

// saveAgain is how long after files could not be saved that is tried again.
const saveAgain = 10 * time.Second

// watchMain ends the sandbox when its main process has ended. While its files
// cannot be saved, because the disk is full, they are kept where they are.
func (b *box) watchMain(p atoll.Process) {
	exit, err := p.Wait(context.Background())
	if err != nil {
		return
	}
	for {
		if won, _ := b.waitToEnd(context.Background()); !won {
			return // the sandbox ended first
		}
		err := b.terminate(0)
		if err == nil && !b.job.Spec.AutoRemove {
			err = b.keep()
		}
		if err == nil || b.sentry.lost(err) {
			break
		}
		b.log.Error("stop", "err", err)
		b.goOn(fmt.Sprintf("its main process %s, and its files could not be saved: %v", exit.String(), err))
		select {
		case <-b.over:
			return
		case <-time.After(saveAgain):
		}
	}
	reason := ""
	if exit.State() == atoll.StateFailed {
		reason = "main process " + exit.String()
	}
	_ = b.finish(exit.State(), reason, &exit) // logged
	// Its last output is still to be read.
	select {
	case <-b.done:
	case <-time.After(atoll.AutoRemoveLinger):
		if b.job.Spec.AutoRemove {
			b.removeSelf(true, removeWait)
		}
		b.leave()
	}
}

// Files is the sandbox's file system.
func (b *box) Files() atoll.FS { return b.files }

// listen opens the socket that serves the API of this sandbox. A path can be
// longer than what a socket address holds; a directory's descriptor is not.
func listen(dir string) (net.Listener, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	path := SocketPath(d)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // it goes with the directory
	return l, os.Chmod(path, 0o600)
}
