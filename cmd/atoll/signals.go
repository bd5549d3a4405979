package main

import (
	"context"
	"os"
	"os/signal"
)

// notify tells c of those signals that we were not started to ignore, as nohup
// and shells do that run us in the background.
func notify(c chan<- os.Signal, sigs ...os.Signal) {
	for _, sig := range sigs {
		if !signal.Ignored(sig) {
			signal.Notify(c, sig)
		}
	}
}

// interruptible ends its context, with a signalError as the cause, on the
// first signal that asks us to end; the second one ends the program.
func interruptible(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	notify(signals, ending...)
	go func() {
		if sig, ok := <-signals; ok {
			signal.Reset(ending...)
			cancel(signalError{passedOn[sig]})
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(signals)
		cancel(nil)
	}
}
