// Command image makes the container image of the server, from scratch and without a
// container engine: the programs, built for each platform, and directories to write to.
// The same source and compiler make the same image, byte for byte. It writes an OCI
// layout, pushes the image if -push is set, and prints its digest.
//
//	go run ./packaging/image [-o DIR] [-version VERSION] [-platforms OS/ARCH,...] [-push REGISTRY/NAME:TAG]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/seed46cd37a8/atoll/packaging/internal/programs"
)

func main() {
	var o options
	flag.StringVar(&o.out, "o", "bin/image", "`directory` of the OCI layout, which is replaced")
	flag.StringVar(&o.version, "version", "", "`version` of the release, such as v1.2.3")
	flag.StringVar(&o.platforms, "platforms", "linux/amd64,linux/arm64", "`platforms` that the image is for")
	flag.StringVar(&o.push, "push", "", "push it as this `image`, with the credentials of docker login")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := runBuild(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// options holds the flags of the program.
type options struct {
	out, version, platforms, push string
}

func runBuild(ctx context.Context, o options) error {
	var to name.Reference
	if o.push != "" { // check it before the builds
		var err error
		if to, err = name.ParseReference(o.push); err != nil {
			return err
		}
	}
	if err := checkReplaceable(o.out); err != nil {
		return err
	}
	index, err := buildIndex(ctx, o.version, strings.Split(o.platforms, ","))
	if err != nil {
		return err
	}
	if err := writeLayout(o.out, index); err != nil {
		return err
	}
	if to != nil {
		if err := remote.WriteIndex(to, index, remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithContext(ctx)); err != nil {
			return err
		}
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	fmt.Println(digest)
	return nil
}

// buildIndex makes the image for each platform, and returns the index of all.
func buildIndex(ctx context.Context, version string, platforms []string) (v1.ImageIndex, error) {
	dir, err := os.MkdirTemp("", "atoll-image-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	index := v1.ImageIndex(empty.Index)
	for i, text := range slices.Compact(slices.Sorted(slices.Values(platforms))) {
		platform, err := v1.ParsePlatform(text)
		if err != nil || platform.OS != "linux" {
			return nil, fmt.Errorf("platform %q: write it like linux/amd64; only linux has sandboxes in pods", text)
		}
		to := filepath.Join(dir, platform.Architecture)
		made, err := programs.Build(ctx, to, programs.Platform{OS: platform.OS, Arch: platform.Architecture}, version, "atoll-server", "atoll-kubernetes", "atoll-modal", "atoll-dagger")
		if err != nil {
			return nil, err
		}
		image, about, err := imageOf(made, platform, version)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			index = mutate.Annotations(index, about).(v1.ImageIndex)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform}})
	}
	return index, nil
}

// checkReplaceable fails if a directory has files other than those of writeLayout.
func checkReplaceable(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := layout.FromPath(dir); err != nil {
		return fmt.Errorf("%s has files other than an image: choose another directory", dir)
	}
	return nil
}

// writeLayout replaces the layout in dir by that of the image.
func writeLayout(dir string, index v1.ImageIndex) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	made, err := os.MkdirTemp(filepath.Dir(dir), ".image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(made)
	if err := os.Chmod(made, 0o755); err != nil {
		return err
	}
	path, err := layout.Write(made, empty.Index)
	if err != nil {
		return err
	}
	if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "atoll"})); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.Rename(made, dir)
}
