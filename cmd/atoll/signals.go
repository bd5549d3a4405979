package main

import (
	"context"
	"os"
	"os/signal"
)

// notifySignals sends signals to c, except for those that were ignored when the program started, as by nohup and by
// shells in the background.
func notifySignals(c chan<- os.Signal, sigs ...os.Signal) {
	for _, sig := range sigs {
		if !signal.Ignored(sig) {
			signal.Notify(c, sig)
		}
	}
}

// interruptContext returns a context that the first terminating signal ends, with a signalError as its cause. The
// second signal ends the program.
func interruptContext(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	notifySignals(signals, terminationSignals...)
	go func() {
		if sig, ok := <-signals; ok {
			signal.Reset(terminationSignals...)
			cancel(signalError{forwardedSignals[sig]})
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(signals)
		cancel(nil)
	}
}
