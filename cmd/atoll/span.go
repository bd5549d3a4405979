package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll/layer/trace"
)

// beginSpan makes all that the command asks of sandboxes one trace.
func (a *app) beginSpan(cmd *cobra.Command) {
	if groupOf(cmd) == groupSystem {
		return // it asks nothing of them, or it is a server, with a span for each call
	}
	opts := trace.TracesOptions{Version: buildVersion().Version}
	if cfg, err := a.config(); err == nil && cfg.IsSet("log.level") {
		opts.Log = a.log(cfg, defaultLogLevel) // an error the command itself will find
	}
	a.traces = trace.NewTraces(cmd.Context(), opts)
	ctx, end := a.traces.Command(cmd.Context(), cmd.CommandPath(), a.env)
	cmd.SetContext(ctx)
	a.endTrace = end
}

// endSpan ends the trace, and sees that it is sent.
func (a *app) endSpan(err error) {
	if a.endTrace == nil {
		return
	}
	var code exitError
	if errors.As(err, &code) {
		err = nil // the command's own affair
	}
	a.endTrace(err)
	_ = a.traces.Close() // logged, where somebody wants to know
}

// groupOf is the group of the help that cmd is listed in.
func groupOf(cmd *cobra.Command) string {
	for cmd.HasParent() && cmd.Parent().HasParent() {
		cmd = cmd.Parent()
	}
	return cmd.GroupID
}
