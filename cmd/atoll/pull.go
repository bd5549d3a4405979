package main

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed46cd37a8/atoll"
)

func newPull(a *app) *cobra.Command {
	var quiet bool
	cmd := &cobra.Command{
		Use:   "pull [flags] IMAGE",
		Short: "Pull an image ahead of need, or its newer version",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			image, err := absImage(args[0])
			if err != nil {
				return err
			}
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				return a.fetchImage(ctx, c, &atoll.Spec{Image: image, Pull: atoll.PullAlways, Project: c.project, Provider: c.maker}, quiet)
			})
		},
	}
	registerQuiet(cmd.Flags(), &quiet)
	return cmd
}

func registerQuiet(fs *pflag.FlagSet, quiet *bool) {
	fs.BoolVarP(quiet, "quiet", "q", false, "do not show progress")
}

// hostImage is the image that needs no pull.
const hostImage = "host"

// prepareSandbox pulls images and clones workspaces with a progress bar, before Create would do so. That time must
// not count against the sandbox's time to live.
func (a *app) prepareSandbox(ctx context.Context, c *connection, spec *atoll.Spec, quiet bool) error {
	a.noteGitNeeds(spec)
	image := spec.Image != "" && spec.Image != hostImage
	if !image && spec.Workspace == (atoll.WorkspaceRef{}) {
		return nil
	}
	if spec.TTL == 0 && (quiet || !isTerminal(a.stderr)) {
		return nil // Create does it
	}
	return a.fetchImage(ctx, c, spec, quiet)
}

// fetchImage prepares a spec, and shows progress.
func (a *app) fetchImage(ctx context.Context, c *connection, spec *atoll.Spec, quiet bool) error {
	show, end := a.startProgress(quiet)
	defer end()
	return atoll.Prepare(ctx, c.Provider, spec, show)
}
