package main

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// writeImages writes the image of the server for each platform that is Linux, in the format that all versions
// of docker load read.
func (r *release) writeImages(ctx context.Context) error {
	var platforms []string
	for _, b := range r.built {
		if b.OS == "linux" {
			platforms = append(platforms, b.String())
		}
	}
	if len(platforms) == 0 {
		return nil
	}
	dir := filepath.Join(r.work, "image")
	cmd := exec.CommandContext(ctx, "go", "run", "./packaging/image", "-version", "v"+r.version, "-platforms", strings.Join(platforms, ","), "-o", dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the image: %w\n%s", err, out)
	}
	all, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return err
	}
	images, err := listImages(all)
	if err != nil {
		return err
	}
	tag, err := name.NewTag("atoll:" + r.version)
	if err != nil {
		return err
	}
	for _, image := range images {
		config, err := image.ConfigFile()
		if err != nil {
			return err
		}
		file := fmt.Sprintf("atoll_%s_%s_%s.image.tar", r.version, config.OS, config.Architecture)
		if err := r.createFile(file, func(w io.Writer) error { return tarball.Write(tag, image, w) }); err != nil {
			return err
		}
	}
	return nil
}

// listImages returns the images of an index and of the indexes in it.
func listImages(index v1.ImageIndex) ([]v1.Image, error) {
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	var images []v1.Image
	for _, m := range manifest.Manifests {
		if m.MediaType.IsIndex() {
			inner, err := index.ImageIndex(m.Digest)
			if err != nil {
				return nil, err
			}
			more, err := listImages(inner)
			if err != nil {
				return nil, err
			}
			images = append(images, more...)
			continue
		}
		image, err := index.Image(m.Digest)
		if err != nil {
			return nil, err
		}
		images = append(images, image)
	}
	return images, nil
}
