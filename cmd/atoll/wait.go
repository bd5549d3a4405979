package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
)

func newWait(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "wait SANDBOX...",
		Short: "Wait for sandboxes to end, and print their exit codes",
		Long: `Wait waits until each sandbox has stopped or failed, as it does when its main
process ends, and prints the exit codes of the main processes, one a line, in the
order of the arguments. A sandbox without a main process that was stopped counts as
0. The exit code of atoll wait does not depend on them.`,
		Example: `  atoll create --name job -- make test
  atoll wait job`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				ids := make([]string, len(args))
				for i, ref := range args {
					sb, err := c.findSandbox(ctx, ref)
					if err != nil {
						return err
					}
					ids[i] = sb.ID()
				}
				return a.waitSandboxes(ctx, c, args, ids)
			})
		},
	}
}

// waitSandboxes prints the exit codes of sandboxes, each when those before it are known. refs are their names for
// errors.
func (a *app) waitSandboxes(ctx context.Context, c *connection, refs, ids []string) error {
	ended := map[string]atoll.Status{}
	for _, id := range ids { // one that is removed before the watch begins has no event
		ended[id] = atoll.Status{ID: id, State: atoll.StateRemoved}
	}
	synced, printed := false, 0
	var errs []error
	for e, err := range c.Watch(ctx) {
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		switch {
		case e.Type == atoll.EventSynced:
			synced = true
		case hasEnded(e.Status.State):
			ended[e.Status.ID] = e.Status
		default:
			delete(ended, e.Status.ID) // it was started again before its turn
		}
		for ; synced && printed < len(ids); printed++ {
			st, ok := ended[ids[printed]]
			if !ok {
				break
			}
			code, err := endCode(refs[printed], st)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			if _, err := fmt.Fprintln(a.stdout, code); err != nil {
				return err
			}
		}
		if printed == len(ids) {
			break
		}
	}
	return errors.Join(errs...)
}

// hasEnded reports whether a sandbox in this state does not run and will not by itself.
func hasEnded(s atoll.State) bool {
	switch s {
	case atoll.StateCreating, atoll.StateRunning, atoll.StatePaused:
		return false
	}
	return true
}

// endCode returns the exit code of an ended sandbox.
func endCode(ref string, st atoll.Status) (int, error) {
	switch {
	case st.State == atoll.StateCreated:
		return 0, atoll.Errorf("wait", ref, atoll.ErrStopped, "the sandbox was never started: use atoll start %s", ref)
	case st.Exit != nil:
		return st.Exit.Code, nil
	case st.State == atoll.StateRemoved:
		return 0, atoll.Errorf("wait", ref, atoll.ErrNotFound, "the sandbox was removed before its command ended")
	case st.State == atoll.StateFailed:
		return 0, atoll.Errorf("wait", ref, atoll.ErrStopped, "the sandbox failed: %s", st.Reason)
	}
	return 0, nil
}
