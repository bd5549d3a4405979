//go:build !client

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
		Short: "List and remove images, build and pull bundles of virtual machines",
		Long: `Images are pulled by atoll pull, or when a sandbox is created from one. They are
stored both packed and unpacked; all sandboxes of an image share the unpacked
files.

Virtual machines boot bundles: a kernel, an initrd and a root disk, or for WSL a
root archive. They are built on Linux, from an image or from Debian's packages, or
pulled. Lists show them as bundle:NAME.`,
	}
	cmd.AddCommand(newImageLs(a), newImageRm(a), newImagePrune(a), newImageBuild(a), newImagePull(a))
	return cmd
}

func newImageLs(a *app) *cobra.Command {
	l := listFlags{ifEmpty: "no images yet: atoll pull IMAGE fetches one"}
	cmd := &cobra.Command{
		Use:               "ls [flags]",
		Aliases:           []string{"list"},
		Short:             "List images",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				all, err := a.listImages(ctx, c)
				if err != nil {
					return err
				}
				return printList(a, l, all, func(img atoll.Image) string { return img.Ref },
					[]string{"IMAGE", "PROVIDER", "DIGEST", "SIZE", "IN USE", "FETCHED", "USED"},
					func(img atoll.Image) []string {
						return []string{img.Ref, img.Provider, shortDigest(img.Digest), byteCount(int64(img.Size)), yesNo(img.InUse),
							formatAgo(time.Since(img.Fetched)), formatAgo(time.Since(img.Used))}
					})
			})
		},
	}
	l.addFlags(cmd, "print names only, or digests of images without a name")
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
		Short: "Remove images that no sandbox uses",
		Long: `Rm removes a name from an image, and the image if it has no other name; a digest,
sha256:..., removes the image with all its names.

A sandbox needs its image while it exists. With --force, rm also removes images of
sandboxes that do not run; to start one of those pulls its image again. If several
providers have the image, --provider selects one.

A bundle is named bundle:NAME; running machines retain their files.`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				return a.forEach(args, func(ref string) error {
					if name, ok := strings.CutPrefix(ref, bundlePrefix); ok {
						return a.withBundles(func(s *bundle.Store) error { return s.Remove(name, nil) })
					}
					return atoll.RemoveImage(ctx, c.Provider, a.qualifyName(ref), force)
				})
			})
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "also remove images of stopped sandboxes and of snapshots")
	return cmd
}

func newImagePrune(a *app) *cobra.Command {
	var opts atoll.PruneOptions
	var quiet, asJSON bool
	cmd := &cobra.Command{
		Use:   "prune [flags]",
		Short: "Remove unused images",
		Long: `Prune removes images, and other downloads that are no longer needed. It never
removes images of sandboxes, running or not, or of snapshots. Of the others it
removes those without a name, which a newer image has taken: with --all also those
with a name, with --unused-for all that have been unused for so long; with
--provider only those of that provider.`,
		Example: `  atoll image prune --all
  atoll image prune --unused-for 30d`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts.All, opts.Provider = opts.All || opts.UnusedFor != 0, a.flags["provider"]
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
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
					a.printMessage("%d removed, %s freed", len(pruned.Images), byteCount(int64(pruned.Size)))
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVarP(&opts.All, "all", "a", false, "also remove images with a name")
	cmd.Flags().Var((*durationValue)(&opts.UnusedFor), "unused-for", "remove all images that have been unused for so long, like 30d")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print digests only")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

// completeImages completes the names of images.
func (a *app) completeImages(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.completeWith(cmd, args, func(ctx context.Context, c *connection) (refs []string, err error) {
		all, err := a.listImages(ctx, c)
		for _, img := range all {
			refs = append(refs, img.Ref)
		}
		return refs, err
	})
}
