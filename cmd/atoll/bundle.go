//go:build !client

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config/stack"
	"github.com/seed46cd37a8/atoll/machine/image/bundle"
)

// bundlePrefix is the prefix of bundle names in lists of images.
const bundlePrefix = "bundle:"

// withBundles runs f with the store of bundles in the state directory, which may also be in use by a server.
func (a *app) withBundles(f func(*bundle.Store) error) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	if cfg.URL != "" {
		return usageErrorf("bundles belong to the machine on which the virtual machines run: run this command there, without --url")
	}
	b, err := stack.NewBuilder(cfg)
	if err != nil {
		return err
	}
	store, err := b.Bundles(a.newNoteLogger(cfg))
	if err != nil {
		return err
	}
	return errors.Join(f(store), store.Close())
}

// listImages returns all images of c's providers, and the bundles of this machine.
func (a *app) listImages(ctx context.Context, c *connection) ([]atoll.Image, error) {
	all, err := atoll.Images(ctx, c.Provider)
	if err != nil {
		return nil, err
	}
	cfg, err := a.loadConfig()
	if err != nil || cfg.URL != "" || a.flags["provider"] != "" {
		return all, err
	}
	if _, err := os.Stat(cfg.BundleDir()); err != nil {
		return all, nil // there are none, and a list must not create the directory
	}
	err = a.withBundles(func(s *bundle.Store) error {
		list, err := s.List()
		for _, b := range list {
			for _, name := range orDigest(b) {
				all = append(all, atoll.Image{
					Ref: bundlePrefix + name, Provider: "-", Digest: b.Digest, Platform: "linux/" + b.Arch, Size: b.Size(), Fetched: b.Made, Used: b.Used,
				})
			}
		}
		return err
	})
	return all, err
}

// orDigest returns the names of b, or its digest if it has none.
func orDigest(b *bundle.Bundle) []string {
	if len(b.Names) == 0 {
		return []string{b.Digest}
	}
	return b.Names
}

func newImageBuild(a *app) *cobra.Command {
	var r bundle.Recipe
	var out string
	var show bundleOutput
	cmd := &cobra.Command{
		Use:   "build [flags] [NAME]",
		Short: "Build a bundle that virtual machines boot",
		Long: `Build creates a bundle: a kernel, an initrd with Atoll's guest, and a read-only
root disk. The kernel is the newest cloud kernel of Debian, unless --kernel names
one. The root disk is built from an OCI image, with --image, or from Debian's
packages.

WSL has a kernel of its own: with --wsl the bundle is an archive of the root file
system and the guest, from which vmdocker creates machines on Windows.

The state directory caches what was built: installed packages until --fresh
installs newer ones, and images until they change.

Build requires squashfs-tools and e2fsprogs, mmdebstrap for packages, and apt for
the kernel; for --wsl only mmdebstrap. For an ordinary user, mmdebstrap requires
uidmap, and root owns all files of an image.`,
		Example: `  atoll image build
  atoll image build --image python:3.11-slim
  atoll image build --docker
  atoll image build --docker --wsl -o ./docker-wsl
  atoll image build small --packages busybox --kernel linux-image.deb -o ./small`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				r.Name = args[0]
			}
			if r.Image != "" {
				image, err := absImage(r.Image)
				if err != nil {
					return err
				}
				r.Name, r.Image = cmp.Or(r.Name, r.Image), image
			}
			return a.runBundle(cmd, &show, func(ctx context.Context, s *bundle.Store, progress func(atoll.Progress)) (*bundle.Bundle, error) {
				if out != "" {
					if entries, err := os.ReadDir(out); err == nil && len(entries) > 0 {
						return nil, atoll.Errorf("build", out, atoll.ErrAlreadyExists, "the directory is not empty")
					}
				}
				b, err := s.Build(ctx, r, progress)
				if err != nil || out == "" {
					return b, err
				}
				return b, s.Export(ctx, b, out)
			})
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&r.Image, "image", "", "build the root disk from this OCI image")
	fs.StringSliceVar(&r.Packages, "packages", nil, "build it from these Debian packages, and those that Debian requires")
	fs.BoolVar(&r.Docker, "docker", false, "for a machine that runs a Docker Engine")
	fs.BoolVar(&r.Archive, "wsl", false, "for a distribution of WSL: a root archive without a kernel")
	fs.StringVar(&r.Suite, "suite", "", "Debian suite (default \""+bundle.DefaultSuite+"\")")
	fs.StringVar(&r.Mirror, "mirror", "", "URL of the Debian mirror (default deb.debian.org)")
	fs.StringVar(&r.Kernel, "kernel", "", "file with a Debian package of a kernel, or a kernel with all drivers built in")
	fs.StringSliceVar(&r.Modules, "modules", nil, "additional kernel modules to load")
	fs.BoolVar(&r.Compress, "compress", false, "compress the initrd to about a third; emulated machines boot a little slower")
	fs.BoolVar(&r.Fresh, "fresh", false, "install packages again, possibly in newer versions")
	fs.StringVarP(&out, "output", "o", "", "also copy the bundle to this new directory, for atoll image pull on other machines")
	show.addFlags(fs)
	return cmd
}

func newImagePull(a *app) *cobra.Command {
	var opts bundle.PullOptions
	var show bundleOutput
	cmd := &cobra.Command{
		Use:   "pull [flags] URL|DIR",
		Short: "Pull a bundle that virtual machines boot",
		Long: `Pull downloads a bundle of atoll image build -o from the URL of its directory on
any web server, or copies it from a directory. It refuses files that do not match
the manifest, and a bundle with another digest than --digest. It resumes
interrupted downloads.`,
		Example: `  atoll image pull https://example.com/bundles/debian
  atoll image pull --digest sha256:6c1f... http://10.0.0.7/docker
  atoll image pull '\\wsl.localhost\Debian\home\me\docker-wsl'`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.runBundle(cmd, &show, func(ctx context.Context, s *bundle.Store, progress func(atoll.Progress)) (*bundle.Bundle, error) {
				opts.Progress = progress
				return s.Pull(ctx, args[0], opts)
			})
		},
	}
	cmd.Flags().StringVar(&opts.Name, "name", "", "name of the bundle on this machine (default the last part of the URL)")
	cmd.Flags().StringVar(&opts.Digest, "digest", "", "required digest of the bundle, like sha256:0123...")
	show.addFlags(cmd.Flags())
	return cmd
}

// A bundleOutput has the flags for the output of a new bundle.
type bundleOutput struct{ quiet, asJSON bool }

func (o *bundleOutput) addFlags(fs *pflag.FlagSet) {
	registerQuiet(fs, &o.quiet)
	fs.BoolVar(&o.asJSON, "json", false, "print a JSON object")
}

// runBundle calls make, shows its progress, and prints its bundle.
func (a *app) runBundle(cmd *cobra.Command, o *bundleOutput, make func(context.Context, *bundle.Store, func(atoll.Progress)) (*bundle.Bundle, error)) error {
	ctx, stop := interruptContext(cmd.Context())
	defer stop()
	var b *bundle.Bundle
	err := a.withBundles(func(s *bundle.Store) (err error) {
		show, end := a.startProgress(o.quiet)
		defer end()
		b, err = make(ctx, s, show)
		return err
	})
	if err != nil {
		return preferSignal(ctx, err)
	}
	if o.asJSON {
		return a.printJSON(struct {
			Names  []string `json:"names"`
			Digest string   `json:"digest"`
			Dir    string   `json:"dir"`
			bundle.Manifest
		}{b.Names, b.Digest, b.Dir, b.Manifest})
	}
	fmt.Fprintln(a.stdout, b.Digest)
	if !o.quiet {
		what := "kernel " + b.Kernel.Release
		if b.IsArchive() {
			what = "root archive"
		}
		a.printMessage("%s in %s: %s, %s", strings.Join(b.Names, ", "), filepath.Clean(b.Dir), what, byteCount(int64(b.Size())))
	}
	return nil
}
