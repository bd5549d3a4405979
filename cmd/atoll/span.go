package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll/layer/trace"
)

// beginSpan starts a trace of all calls of the command.
func (a *app) beginSpan(cmd *cobra.Command) {
	if groupOf(cmd) == groupSystem {
		return // it makes no calls, or is a server with a span for each call
	}
	opts := trace.TracesOptions{Version: buildVersion().Version}
	if cfg, err := a.loadConfig(); err == nil && cfg.IsSet("log.level") {
		opts.Log = a.newLogger(cfg, defaultLogLevel) // the command itself reports errors of the configuration
	}
	a.traces = trace.NewTraces(cmd.Context(), opts)
	ctx, end := a.traces.Command(cmd.Context(), cmd.CommandPath(), a.env)
	cmd.SetContext(ctx)
	a.endTrace = end
}

// endSpan ends the trace and sends it.
func (a *app) endSpan(err error) {
	if a.endTrace == nil {
		return
	}
	var code exitError
	if errors.As(err, &code) {
		err = nil // the exit code of the command in the sandbox is no error of this program
	}
	a.endTrace(err)
	_ = a.traces.Close() // errors are logged if wanted
}

// groupOf returns the group of cmd in the help.
func groupOf(cmd *cobra.Command) string {
	for cmd.HasParent() && cmd.Parent().HasParent() {
		cmd = cmd.Parent()
	}
	return cmd.GroupID
}
