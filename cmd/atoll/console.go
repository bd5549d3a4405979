package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// errDetached means that the user has detached from the command, which continues.
var errDetached = errors.New("detached")

// A console connects a command in a sandbox to this process: its terminal, its signals and its streams. Create it
// before the command starts, so that no signal is lost. closeConsole restores the terminal.
type console struct {
	app    *app
	ctx    context.Context // ends with the reason to stop waiting as its cause
	cancel context.CancelCauseFunc

	stdin          io.Reader // nil if not wanted
	stdout, stderr io.Writer
	size           *atoll.Size // nil without a terminal
	detach         []byte      // keys that detach from the command
	observeOnly    bool

	wantsRaw bool   // takeTerminal sets raw mode
	restore  func() // leaves raw mode

	out     *output // target of stdout
	errs    *output // target of stderr
	signals chan os.Signal
	resized chan os.Signal
	started chan atoll.Process
	all     sync.WaitGroup
	done    chan struct{}

	timedOut atomic.Bool
}

// consoleOptions select what the console connects to the command.
type consoleOptions struct {
	stdin  bool
	tty    bool
	detach []byte // keys that detach from the command

	// observeOnly means that another program started the command: signals only detach.
	observeOnly bool
}

// newConsole returns a console that handles signals from now on.
func (a *app) newConsole(ctx context.Context, opts consoleOptions) (*console, error) {
	s := &console{
		app: a, out: newOutput(a.stdout), errs: newOutput(a.stderr), observeOnly: opts.observeOnly,
		signals: make(chan os.Signal, 8), resized: make(chan os.Signal, 1),
		started: make(chan atoll.Process, 1), done: make(chan struct{}), restore: func() {},
	}
	s.stdout, s.stderr = s.out, s.errs
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	if opts.stdin {
		s.stdin = a.stdin
	}
	if opts.tty {
		size := a.terminalSize()
		s.size = &size
	}
	if opts.tty && opts.stdin {
		if !isTerminal(a.stdin) {
			return nil, usageErrorf("stdin is not a terminal: leave out -t, or -i")
		}
		s.wantsRaw, s.detach = true, opts.detach
	}
	notifySignals(s.signals, slices.Collect(maps.Keys(forwardedSignals))...)
	if opts.tty {
		notifyResize(s.resized)
	}
	s.all.Go(s.watchEvents)
	return s, nil
}

// takeTerminal sets the terminal to raw mode, if wanted. Before that, ^C is a signal that interrupts slow steps
// before the start of the command.
func (s *console) takeTerminal() error {
	if !s.wantsRaw {
		return nil
	}
	restore, err := makeRaw(s.app.stdin)
	if err != nil {
		return err
	}
	s.app.rawTerminal.Store(true)
	s.restore = func() {
		restore()
		s.app.rawTerminal.Store(false)
	}
	if len(s.detach) > 0 {
		s.stdin = &detachReader{r: s.stdin, keys: s.detach, detached: func() { s.cancel(errDetached) }}
	}
	return nil
}

// closeConsole restores the terminal and the handling of signals. A second call does nothing.
func (s *console) closeConsole() {
	if s.signals == nil {
		return
	}
	s.restore()
	signal.Stop(s.signals)
	signal.Stop(s.resized)
	close(s.done)
	s.cancel(nil)
	s.all.Wait()
	s.signals = nil
}

// followProcess connects the console to p, waits for its end, and returns its exit. attach, unless nil, transfers the
// streams of p.
func (s *console) followProcess(p atoll.Process, attach func(ctx context.Context) error) (atoll.Exit, error) {
	s.started <- p
	var err error
	if attach != nil {
		err = attach(s.ctx)
	}
	var exit atoll.Exit
	if err == nil {
		exit, err = p.Wait(s.ctx)
	}
	if s.timedOut.Load() {
		exit.Code, exit.TimedOut, err = exitTimeout, true, nil
	}
	if err != nil {
		return exit, s.breakCause(err)
	}
	return exit, cmp.Or(s.out.writeError(), s.errs.writeError())
}

// breakCause returns the cause of the console's end, if any, instead of the errors that followed.
func (s *console) breakCause(err error) error {
	if cause := context.Cause(s.ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// limitTime kills the command after d; 0 means never.
func (s *console) limitTime(p atoll.Process, d time.Duration) (stop func()) {
	if d <= 0 {
		return func() {}
	}
	t := time.AfterFunc(d, func() {
		s.timedOut.Store(true)
		s.killProcess(p)
	})
	return func() { t.Stop() }
}

// killTimeout is the time that a killed command may take to end.
const killTimeout = 5 * time.Second

// killProcess kills p, and ends the console if p does not end.
func (s *console) killProcess(p atoll.Process) {
	s.sendSignal(p, atoll.SIGKILL)
	time.AfterFunc(killTimeout, func() { s.cancel(signalError{atoll.SIGKILL}) })
}

// sendSignal sends a signal to p and reports errors.
func (s *console) sendSignal(p atoll.Process, sig atoll.Signal) {
	ctx, cancel := context.WithTimeout(s.ctx, killTimeout)
	defer cancel()
	err := p.Signal(ctx, sig)
	if err == nil || s.ctx.Err() != nil {
		return
	}
	switch atoll.KindOf(err) {
	case atoll.ErrStopped, atoll.ErrNotFound, atoll.ErrUnavailable:
		return // it ended at the same time; Wait returns the reason
	}
	s.app.printMessage("%v", err)
}

// watchEvents forwards signals and sizes until the console ends.
func (s *console) watchEvents() {
	defer s.restoreOnPanic()
	var p atoll.Process
	var insist insistence
	size := atoll.Size{}
	if s.size != nil {
		size = *s.size
	}
	for {
		select {
		case <-s.done:
			return
		case p = <-s.started:
			s.resizeTerminal(p, &size)
		case <-s.resized:
			s.resizeTerminal(p, &size)
		case <-s.out.broken:
			s.out.broken = nil
			s.brokenPipe(p)
		case <-s.errs.broken:
			s.errs.broken = nil
			s.brokenPipe(p)
		case sig := <-s.signals:
			s.handleSignal(p, forwardedSignals[sig], &insist)
		}
	}
}

// handleSignal forwards sig to the command. Three signals within a short time kill it. Before the command starts, sig
// ends the console. In raw mode ^C is a byte, so a signal comes from another program: the console hangs up the
// command's terminal and ends.
func (s *console) handleSignal(p atoll.Process, sig atoll.Signal, insist *insistence) {
	ends := sig == atoll.SIGINT || sig == atoll.SIGTERM || sig == atoll.SIGHUP || sig == atoll.SIGQUIT
	switch {
	case ends && s.observeOnly:
		s.cancel(errDetached)
	case ends && p == nil:
		s.cancel(signalError{sig})
	case p == nil:
	case ends && s.app.rawTerminal.Load():
		s.sendSignal(p, atoll.SIGHUP)
		s.cancel(signalError{sig})
	case ends && insist.countSignal(time.Now()):
		s.killProcess(p)
	default:
		s.sendSignal(p, sig)
	}
}

// An insistence counts signals in quick succession.
type insistence struct {
	n    int
	last time.Time
}

// countSignal reports whether now is the third signal in quick succession.
func (i *insistence) countSignal(now time.Time) bool {
	if now.Sub(i.last) > 2*time.Second {
		i.n = 0
	}
	i.n, i.last = i.n+1, now
	return i.n >= 3
}

// brokenPipe sends SIGPIPE to the command, as a broken pipe of its own would, and kills it if it survives.
func (s *console) brokenPipe(p atoll.Process) {
	if p == nil {
		return
	}
	s.sendSignal(p, sigPipe)
	time.AfterFunc(time.Second, func() { s.killProcess(p) })
}

// sigPipe is SIGPIPE.
const sigPipe atoll.Signal = 13

// resizeTerminal sets the size of p's terminal, unless it is have.
func (s *console) resizeTerminal(p atoll.Process, have *atoll.Size) {
	if s.size == nil || p == nil {
		return
	}
	size := s.app.terminalSize()
	if size == *have {
		return
	}
	*have = size
	ctx, cancel := context.WithTimeout(s.ctx, killTimeout)
	defer cancel()
	_ = atoll.Resize(ctx, p, size) // continue with a wrong size
}

// restoreOnPanic restores the terminal before the program crashes.
func (s *console) restoreOnPanic() {
	if v := recover(); v != nil {
		s.restore()
		panic(v)
	}
}
