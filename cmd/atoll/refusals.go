package main

import (
	"context"
	"time"

	"github.com/seed46cd37a8/atoll"
)

const (
	// maxReported is the maximum number of refusals that a failed command reports.
	maxReported = 5
	// reportTimeout limits the time that a failed command waits for them.
	reportTimeout = 2 * time.Second
)

// reportRefusals prints what the network refused while a command ran that failed, and how to allow it in a sandbox with a name, "" for one
// that has gone. It prints nothing if
// the provider does not know that.
func (s *console) reportRefusals(sb atoll.Sandbox, name string, began time.Time, exit atoll.Exit) {
	if exit.Success() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), reportTimeout)
	defer cancel()
	refusals, err := atoll.RefusalsOf(ctx, sb)
	if err != nil {
		return
	}
	list := refusals.Within(time.Since(began))
	more := max(0, len(list)-maxReported)
	for _, r := range list[more:] { // the latest
		s.app.printMessage("the network refused %s", r)
	}
	if more > 0 {
		s.app.printMessage("the network refused %d others: atoll net log lists them", more)
	}
	if entries := atoll.OpensOf(list[more:]); len(entries) > 0 && name != "" {
		s.app.printMessage("to allow it: %s", atoll.AllowCommand(name, entries...))
	}
}
