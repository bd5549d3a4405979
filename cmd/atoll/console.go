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

// errDetached says that the user left the command to itself.
var errDetached = errors.New("detached")

// A console connects a command in a sandbox to this process: its terminal, its
// signals and its streams. Begin it before the command is started, so that no
// signal is lost; end it, and the terminal is as it was.
type console struct {
	app    *app
	ctx    context.Context // ends with the cause why nobody should wait any longer
	cancel context.CancelCauseFunc

	stdin          io.Reader // nil unless asked for
	stdout, stderr io.Writer
	size           *atoll.Size // nil unless there is a terminal
	detach         []byte      // keys that leave the command to itself
	looksOn        bool

	wantsRaw bool   // the terminal must pass on all bytes
	restore  func() // undoes it

	out     *output // what stdout writes to
	errs    *output // and stderr
	signals chan os.Signal
	resized chan os.Signal
	started chan atoll.Process
	all     sync.WaitGroup
	done    chan struct{}

	timedOut atomic.Bool
}

// consoleOptions say what of this process is lent to the command.
type consoleOptions struct {
	stdin  bool
	tty    bool
	detach []byte // keys that end the console and leave the command to itself

	// looksOn says that the command is not ours: a signal only detaches us.
	looksOn bool
}

func (a *app) newConsole(ctx context.Context, opts consoleOptions) (*console, error) {
	s := &console{
		app: a, out: newOutput(a.stdout), errs: newOutput(a.stderr), looksOn: opts.looksOn,
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
			return nil, usagef("stdin is not a terminal: leave out -t, or -i")
		}
		s.wantsRaw, s.detach = true, opts.detach
	}
	notify(s.signals, slices.Collect(maps.Keys(passedOn))...)
	if opts.tty {
		notifyResize(s.resized)
	}
	s.all.Go(s.watch)
	return s, nil
}

// takeTerminal makes the terminal pass on all bytes, if the console wants it
// so. Until then ^C is a signal, which breaks off what takes long before the
// command starts.
func (s *console) takeTerminal() error {
	if !s.wantsRaw {
		return nil
	}
	restore, err := makeRaw(s.app.stdin)
	if err != nil {
		return err
	}
	s.app.raw.Store(true)
	s.restore = func() {
		restore()
		s.app.raw.Store(false)
	}
	if len(s.detach) > 0 {
		s.stdin = &detachReader{r: s.stdin, keys: s.detach, detached: func() { s.cancel(errDetached) }}
	}
	return nil
}

// end gives the terminal and the signals back. The second time does nothing.
func (s *console) end() {
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

// follow connects the console to p, waits until it has ended, and returns how.
// attach, when not nil, delivers p's streams.
func (s *console) follow(p atoll.Process, attach func(ctx context.Context) error) (atoll.Exit, error) {
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
		return exit, s.why(err)
	}
	return exit, cmp.Or(s.out.failed(), s.errs.failed())
}

// why prefers the reason why the console was broken off to the failures that
// followed from it.
func (s *console) why(err error) error {
	if cause := context.Cause(s.ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// limit kills the command after d; 0 is never.
func (s *console) limit(p atoll.Process, d time.Duration) (stop func()) {
	if d <= 0 {
		return func() {}
	}
	t := time.AfterFunc(d, func() {
		s.timedOut.Store(true)
		s.kill(p)
	})
	return func() { t.Stop() }
}

// patience is how long a command that was killed may take to be gone.
const patience = 5 * time.Second

func (s *console) kill(p atoll.Process) {
	s.send(p, atoll.SIGKILL)
	time.AfterFunc(patience, func() { s.cancel(signalError{atoll.SIGKILL}) })
}

func (s *console) send(p atoll.Process, sig atoll.Signal) {
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	err := p.Signal(ctx, sig)
	if err == nil || s.ctx.Err() != nil {
		return
	}
	switch atoll.KindOf(err) {
	case atoll.ErrStopped, atoll.ErrNotFound, atoll.ErrUnavailable:
		return // it ended at the same moment; Wait knows more
	}
	s.app.say("%v", err)
}

// watch passes signals and sizes on until the console ends.
func (s *console) watch() {
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
			s.resize(p, &size)
		case <-s.resized:
			s.resize(p, &size)
		case <-s.out.broken:
			s.out.broken = nil
			s.brokenPipe(p)
		case <-s.errs.broken:
			s.errs.broken = nil
			s.brokenPipe(p)
		case sig := <-s.signals:
			s.signal(p, passedOn[sig], &insist)
		}
	}
}

// signal does with sig what the user means by it. The command gets it; whoever
// sends three within a short time wants it gone. While there is no command yet
// the console is broken off. In a raw terminal, where ^C is a byte, a signal
// comes from somebody who wants us gone: to the command, its terminal hangs up.
func (s *console) signal(p atoll.Process, sig atoll.Signal, insist *insistence) {
	ends := sig == atoll.SIGINT || sig == atoll.SIGTERM || sig == atoll.SIGHUP || sig == atoll.SIGQUIT
	switch {
	case ends && s.looksOn:
		s.cancel(errDetached)
	case ends && p == nil:
		s.cancel(signalError{sig})
	case p == nil:
	case ends && s.app.raw.Load():
		s.send(p, atoll.SIGHUP)
		s.cancel(signalError{sig})
	case ends && insist.again(time.Now()):
		s.kill(p)
	default:
		s.send(p, sig)
	}
}

// An insistence counts signals that follow each other closely.
type insistence struct {
	n    int
	last time.Time
}

func (i *insistence) again(now time.Time) bool {
	if now.Sub(i.last) > 2*time.Second {
		i.n = 0
	}
	i.n, i.last = i.n+1, now
	return i.n >= 3
}

// brokenPipe does to the command what its own broken pipe would have done, and
// kills it when it does not mind.
func (s *console) brokenPipe(p atoll.Process) {
	if p == nil {
		return
	}
	s.send(p, sigPipe)
	time.AfterFunc(time.Second, func() { s.kill(p) })
}

// sigPipe is SIGPIPE.
const sigPipe atoll.Signal = 13

// resize tells p the size of the terminal when that is not have.
func (s *console) resize(p atoll.Process, have *atoll.Size) {
	if s.size == nil || p == nil {
		return
	}
	size := s.app.terminalSize()
	if size == *have {
		return
	}
	*have = size
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	_ = atoll.Resize(ctx, p, size) // a wrong size is no reason to end
}

// restoreOnPanic gives the terminal back before the program crashes.
func (s *console) restoreOnPanic() {
	if v := recover(); v != nil {
		s.restore()
		panic(v)
	}
}
