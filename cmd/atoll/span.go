//go:build !client

package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll/layer/trace"
)

// A span is the trace of a command.
type span struct {
	traces *trace.Traces // nil if the command has no span
	end    func(error)
}

// injectTrace adds the trace of ctx to the headers of a request.
var injectTrace = trace.Inject

// beginCommand starts the command.
func (a *app) beginCommand(cmd *cobra.Command) error {
	a.beginSpan(cmd)
	return nil
}

// beginSpan starts a trace of all calls of the command.
func (a *app) beginSpan(cmd *cobra.Command) {
	if groupOf(cmd) == groupSystem {
		return // it makes no calls, or is a server with a span for each call
	}
	opts := trace.TracesOptions{Version: buildVersion().Version}
	if cfg, err := a.loadConfig(); err == nil && cfg.IsSet("log.level") {
		opts.Log = a.newLogger(cfg, defaultLogLevel) // the command itself reports errors of the configuration
	}
	a.span.traces = trace.NewTraces(cmd.Context(), opts)
	ctx, end := a.span.traces.Command(cmd.Context(), cmd.CommandPath(), a.env)
	cmd.SetContext(ctx)
	a.span.end = end
}

// endSpan ends the trace and sends it.
func (a *app) endSpan(err error) {
	if a.span.end == nil {
		return
	}
	var code exitError
	if errors.As(err, &code) {
		err = nil // the exit code of the command in the sandbox is no error of this program
	}
	a.span.end(err)
	_ = a.span.traces.Close() // errors are logged if wanted
}
