package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/image/bundle"
)

func newImage(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image",
		Short: "List and remove images, build and pull what virtual machines boot",
		Long: `Images are fetched by atoll pull, or when a sandbox is made from one, and kept:
as they came, and unpacked, which all sandboxes made from one share.

Virtual machines boot bundles: a kernel, an initrd and a root disk, or for WSL a
root archive. They are built on Linux, from an image or from Debian's packages, or pulled. In lists they are
called bundle:NAME.`,
	}
	cmd.AddCommand(newImageLs(a), newImageRm(a), newImagePrune(a), newImageBuild(a), newImagePull(a))
	return cmd
}

func newImageLs(a *app) *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use:               "ls [flags]",
		Aliases:           []string{"list"},
		Short:             "List images",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd, func(ctx context.Context, c *connection) error {
				all, err := a.images(ctx, c)
				if err != nil {
					return err
				}
				return printList(a, l, all, func(img atoll.Image) string { return img.Ref },
					[]string{"IMAGE", "PROVIDER", "DIGEST", "SIZE", "IN USE", "FETCHED", "USED"},
					func(img atoll.Image) []string {
						return []string{img.Ref, img.Provider, shortDigest(img.Digest), byteCount(int64(img.Size)), yesNo(img.InUse),
							ago(time.Since(img.Fetched)), ago(time.Since(img.Used))}
					})
			})
		},
	}
	l.register(cmd, "print names only, or the digests of those that have none")
	return cmd
}

func shortDigest(digest string) string {
	_, sum, _ := strings.Cut(digest, ":")
	return shortID(sum)
}

func newImageRm(a *app) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "rm [flags] IMAGE...",
		Short: "Remove images that no sandbox was made from",
		Long: `Rm takes the name from an image, and removes the image when it has no other; a
digest, sha256:..., removes the image with all its names.

A sandbox needs its image as long as it is there. With --force the image goes
even if sandboxes that do not run were made from it; to start one of them then
fetches it again. Where several providers keep it, --provider says which.

A bundle is named bundle:NAME; machines that run keep what they have of it.`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd, func(ctx context.Context, c *connection) error {
				return a.each(args, func(ref string) error {
					if name, ok := strings.CutPrefix(ref, bundlePrefix); ok {
						return a.withBundles(func(s *bundle.Store) error { return s.Remove(name, nil) })
					}
					return atoll.RemoveImage(ctx, c.Provider, a.qualified(ref), force)
				})
			})
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "also images of sandboxes and snapshots, unless they run")
	return cmd
}

func newImagePrune(a *app) *cobra.Command {
	var opts atoll.PruneOptions
	var quiet, asJSON bool
	cmd := &cobra.Command{
		Use:   "prune [flags]",
		Short: "Remove all images that nobody uses",
		Long: `Prune removes images, and what else was fetched and is of no use. Images that a
sandbox, running or not, or a snapshot was made from always stay. Of the others
it removes those without a name, which a newer image has taken: with --all also
those with a name, with --unused-for all that were not used for so long; with
--provider only what that provider keeps.`,
		Example: `  atoll image prune --all
  atoll image prune --unused-for 720h`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts.All, opts.Provider = opts.All || opts.UnusedFor != 0, a.flags["provider"]
			return a.with(cmd, func(ctx context.Context, c *connection) error {
				pruned, err := atoll.PruneImages(ctx, c.Provider, opts)
				if err != nil {
					return err
				}
				if asJSON {
					pruned.Images = orEmpty(pruned.Images)
					return a.printJSON(pruned)
				}
				for _, digest := range pruned.Images {
					fmt.Fprintln(a.stdout, digest)
				}
				if !quiet {
					a.say("%d removed, %s freed", len(pruned.Images), byteCount(int64(pruned.Size)))
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVarP(&opts.All, "all", "a", false, "also images that have a name")
	cmd.Flags().Var((*durationValue)(&opts.UnusedFor), "unused-for", "all images that were not used for so long, like 720h")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print digests only")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

// completeImages offers the names of images.
func (a *app) completeImages(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.complete(cmd, args, func(ctx context.Context, c *connection) (refs []string, err error) {
		all, err := a.images(ctx, c)
		for _, img := range all {
			refs = append(refs, img.Ref)
		}
		return refs, err
	})
}
