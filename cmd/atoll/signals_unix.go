//go:build unix

package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/seed46cd37a8/atoll"
)

// passedOn are the signals that go to the command, and their Linux numbers,
// which differ from those of other systems.
var passedOn = map[os.Signal]atoll.Signal{
	syscall.SIGINT:  atoll.SIGINT,
	syscall.SIGTERM: atoll.SIGTERM,
	syscall.SIGHUP:  atoll.SIGHUP,
	syscall.SIGQUIT: atoll.SIGQUIT,
	syscall.SIGUSR1: atoll.SIGUSR1,
	syscall.SIGUSR2: atoll.SIGUSR2,
}

var errBrokenPipe error = syscall.EPIPE

// surviveBrokenPipes makes a write to a closed stdout fail instead of ending
// the program, which has things to put in order first. The signal is caught,
// not ignored: that our children would inherit.
func surviveBrokenPipes() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// notify tells c of those signals that we were not started to ignore, as nohup
// and shells do that run us in the background.
func notify(c chan<- os.Signal, sigs ...os.Signal) {
	for _, sig := range sigs {
		if !signal.Ignored(sig) {
			signal.Notify(c, sig)
		}
	}
}

// notifyResize tells c when the terminal's size has changed.
func notifyResize(c chan<- os.Signal) { signal.Notify(c, syscall.SIGWINCH) }

// interruptible ends its context, with a signalError as the cause, on the
// first signal that asks us to end; the second one ends the program.
func interruptible(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	ends := []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}
	notify(signals, ends...)
	go func() {
		if sig, ok := <-signals; ok {
			signal.Reset(ends...)
			cancel(signalError{passedOn[sig]})
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(signals)
		cancel(nil)
	}
}
