package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/printable"
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

// fetchImage prepares a spec, with a progress bar on a terminal.
func (a *app) fetchImage(ctx context.Context, c *connection, spec *atoll.Spec, quiet bool) error {
	if quiet || !isTerminal(a.stderr) {
		return atoll.Prepare(ctx, c.Provider, spec, nil)
	}
	bar := &progressBar{app: a}
	defer bar.clearLine()
	return atoll.Prepare(ctx, c.Provider, spec, bar.showProgress)
}

// A progressBar updates one line of a terminal.
type progressBar struct {
	app   *app
	last  time.Time
	phase string
	shown bool
}

func (b *progressBar) showProgress(p atoll.Progress) {
	if p.Phase == b.phase && time.Since(b.last) < 100*time.Millisecond {
		return
	}
	b.phase, b.last, b.shown = p.Phase, time.Now(), true
	cols := int(b.app.terminalSize().Cols)
	fmt.Fprintf(b.app.stderr, "\r\x1b[K%s", progressLine(p, cols-1))
}

func (b *progressBar) clearLine() {
	if b.shown {
		fmt.Fprint(b.app.stderr, "\r\x1b[K")
	}
}

// progressLine describes p in at most cols columns.
func progressLine(p atoll.Progress, cols int) string {
	line := printable.Escape(strings.TrimSpace(p.Phase+" "+p.Item), "")
	switch {
	case p.Total > 0:
		const width = 20
		full := int(min(p.Done, p.Total) * width / p.Total)
		line = fmt.Sprintf("%s [%s%s] %s of %s", line, strings.Repeat("=", full), strings.Repeat(" ", width-full), byteCount(p.Done), byteCount(p.Total))
	case p.Done > 0:
		line += " " + byteCount(p.Done)
	}
	if r := []rune(line); len(r) > cols && cols > 0 {
		return string(r[:cols])
	}
	return line
}
