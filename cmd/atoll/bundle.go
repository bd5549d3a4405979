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
	"github.com/seed46cd37a8/atoll/machine/image/bundle"
)

// bundlePrefix begins the names of bundles where those of images are, too.
const bundlePrefix = "bundle:"

// withBundles runs f with the store of bundles of the state directory: also where a
// server runs, whose own it is.
func (a *app) withBundles(f func(*bundle.Store) error) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	if cfg.URL != "" {
		return usagef("bundles are those of the machine on which the virtual machines run: do this there, without --url")
	}
	store, err := cfg.Bundles(a.notes(cfg))
	if err != nil {
		return err
	}
	return errors.Join(f(store), store.Close())
}

// images returns all images that c keeps, and the bundles of this machine.
func (a *app) images(ctx context.Context, c *connection) ([]atoll.Image, error) {
	all, err := atoll.Images(ctx, c.Provider)
	if err != nil {
		return nil, err
	}
	cfg, err := a.config()
	if err != nil || cfg.URL != "" || a.flags["provider"] != "" {
		return all, err
	}
	if _, err := os.Stat(cfg.BundleDir()); err != nil {
		return all, nil // there are none, and a list makes nothing
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
		Short: "Build what virtual machines boot",
		Long: `Build makes a bundle: a kernel, an initrd with Atoll's guest, and a read-only root
disk. The kernel is the newest of Debian's for clouds, unless --kernel names one. The
root disk is made from an OCI image, with --image, or from Debian's packages.

WSL brings a kernel: with --wsl the bundle is an archive of the root file system and
the guest, from which the machines of vmdocker are made on Windows.

What was built is kept in the state directory and used again: what --packages has
installed until --fresh asks for newer ones, an image as long as it is the same.

It takes squashfs-tools and e2fsprogs, mmdebstrap for packages, and apt for the
kernel; for --wsl only mmdebstrap. As an ordinary user mmdebstrap needs uidmap, and all files of an image become root's.`,
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
			return a.bundle(cmd, &show, func(ctx context.Context, s *bundle.Store, progress func(atoll.Progress)) (*bundle.Bundle, error) {
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
	fs.StringVar(&r.Image, "image", "", "make the root disk from this OCI image")
	fs.StringSliceVar(&r.Packages, "packages", nil, "make it from these packages of Debian, and those that Debian requires")
	fs.BoolVar(&r.Docker, "docker", false, "for a machine that runs a Docker Engine")
	fs.BoolVar(&r.Archive, "wsl", false, "and that is a distribution of WSL: a root archive, and no kernel")
	fs.StringVar(&r.Suite, "suite", "", "of Debian (default \""+bundle.DefaultSuite+"\")")
	fs.StringVar(&r.Mirror, "mirror", "", "of Debian, its URL (default deb.debian.org)")
	fs.StringVar(&r.Kernel, "kernel", "", "a file: a Debian package with a kernel, or a kernel that has all it needs built in")
	fs.StringSliceVar(&r.Modules, "modules", nil, "modules of the kernel that are loaded besides the usual ones")
	fs.BoolVar(&r.Compress, "compress", false, "compress the initrd, to a third or so; a machine that is emulated boots a little slower")
	fs.BoolVar(&r.Fresh, "fresh", false, "install packages again, which may be newer by now")
	fs.StringVarP(&out, "output", "o", "", "also copy the bundle to this new directory, for atoll image pull elsewhere")
	show.register(fs)
	return cmd
}

func newImagePull(a *app) *cobra.Command {
	var opts bundle.PullOptions
	var show bundleOutput
	cmd := &cobra.Command{
		Use:   "pull [flags] URL|DIR",
		Short: "Fetch what virtual machines boot",
		Long: `Pull fetches a bundle that atoll image build -o has made, from the URL of its directory
on any web server, or from a directory. Files that do not match the manifest are
refused, and so is a bundle that is not the one of --digest. What was fetched in
part goes on from there.`,
		Example: `  atoll image pull https://example.com/bundles/debian
  atoll image pull --digest sha256:6c1f... http://10.0.0.7/docker
  atoll image pull '\\wsl.localhost\Debian\home\me\docker-wsl'`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.bundle(cmd, &show, func(ctx context.Context, s *bundle.Store, progress func(atoll.Progress)) (*bundle.Bundle, error) {
				opts.Progress = progress
				return s.Pull(ctx, args[0], opts)
			})
		},
	}
	cmd.Flags().StringVar(&opts.Name, "name", "", "what it is called here (default the last part of the URL)")
	cmd.Flags().StringVar(&opts.Digest, "digest", "", "that the bundle must have, like sha256:0123...")
	show.register(cmd.Flags())
	return cmd
}

// A bundleOutput is how a bundle that is there now is shown.
type bundleOutput struct{ quiet, asJSON bool }

func (o *bundleOutput) register(fs *pflag.FlagSet) {
	registerQuiet(fs, &o.quiet)
	fs.BoolVar(&o.asJSON, "json", false, "print a JSON object")
}

// bundle shows how make comes along, and what it has made.
func (a *app) bundle(cmd *cobra.Command, o *bundleOutput, make func(context.Context, *bundle.Store, func(atoll.Progress)) (*bundle.Bundle, error)) error {
	ctx, stop := interruptible(cmd.Context())
	defer stop()
	var b *bundle.Bundle
	err := a.withBundles(func(s *bundle.Store) (err error) {
		var progress func(atoll.Progress)
		if !o.quiet && isTerminal(a.stderr) {
			bar := &progressBar{app: a}
			defer bar.clear()
			progress = bar.show
		}
		b, err = make(ctx, s, progress)
		return err
	})
	if err != nil {
		return interrupted(ctx, err)
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
		a.say("%s in %s: %s, %s", strings.Join(b.Names, ", "), filepath.Clean(b.Dir), what, byteCount(int64(b.Size())))
	}
	return nil
}
