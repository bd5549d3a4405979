//go:build linux

// Package imagestore has the images of providers whose sandboxes start with the files of an
// OCI image, which a store unpacks, or with those of this machine: gvisor, native.
package imagestore

import (
	"context"
	"os"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/userdb"
	"github.com/seed46cd37a8/atoll/machine/image"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
)

// Host is the image that is the machine's own file system.
const Host = "host"

// IsHost reports whether the image is the machine's own file system.
func IsHost(image string) bool { return image == "" || image == Host }

// Options configure a Backend. HostEnv is required.
type Options struct {
	// Store configures the image store.
	Store image.Options
	// Users says that sandboxes have users other than root.
	Users bool
	// HostEnv returns the environment of programs of the image "host". Image calls it.
	HostEnv func() []string
}

// A Backend implements the methods of supervised.Backend that concern images. Backends of
// providers embed it.
type Backend struct {
	opts  Options
	store *image.Store
}

// NewBackend returns a Backend, which supervised.New opens.
func NewBackend(opts Options) *Backend { return &Backend{opts: opts} }

// Open implements supervised.Backend.
func (b *Backend) Open(dir statedir.Dir) (err error) {
	b.store, err = image.Open(dir.Images(), b.opts.Store)
	return err
}

// Close implements supervised.Backend.
func (b *Backend) Close() error { return b.store.Close() }

// Image implements supervised.Backend: it finds the root file system.
func (b *Backend) Image(ctx context.Context, rec *statedir.Record) error {
	st := &rec.Status
	if IsHost(st.Spec.Image) {
		st.Image, rec.Env = Host, b.opts.HostEnv()
		return nil
	}
	im, err := b.store.GetBy(ctx, st.Spec.Pull, st.Spec.Image, nil)
	if err != nil {
		return err
	}
	if st.Spec.User == "" && !userdb.IsRoot(im.User) && !b.opts.Users {
		return atoll.Errorf("create", st.ID, atoll.ErrUnsupported,
			"image %s runs as user %q, and only root exists without privileges: set the user to root, or run Atoll as root", im.Ref, im.User)
	}
	st.Image = pinnedRef(im)
	rec.Image, rec.Digest, rec.Env, rec.User = im.Root, im.Digest, im.Env, im.User
	return nil
}

// pinnedRef returns the reference by which the same image can be fetched again: with its
// digest, unless it is a path ("oci:/lay"), which cannot have one.
func pinnedRef(im *image.Image) string {
	if im.Digest == "" || im.Ref == im.Digest || strings.Contains(im.Ref, ":/") {
		return im.Ref
	}
	name, _, _ := strings.Cut(im.Ref, "@sha")
	return name + "@" + im.Digest
}

// Hold implements supervised.Backend: it keeps the sandbox's image in the store until all
// holders of the returned file have closed it; nil for the host's file system. It fetches
// an image again that was removed while the sandbox was stopped.
func (b *Backend) Hold(ctx context.Context, rec *statedir.Record) (*os.File, error) {
	if rec.Image == "" {
		return nil, nil
	}
	im := &image.Image{Ref: rec.Status.Image, Digest: rec.Digest, Root: rec.Image}
	f, err := im.Hold()
	if err == nil || atoll.KindOf(err) != atoll.ErrNotExist {
		return f, err
	}
	im, getErr := b.store.Get(ctx, rec.Status.Image, nil)
	if getErr != nil {
		return nil, atoll.Errorf("start", rec.Status.ID, atoll.KindOf(getErr), "image %s was removed, and cannot be fetched again: %w", rec.Status.Image, getErr)
	}
	if im.Digest != rec.Digest {
		return nil, atoll.Errorf("start", rec.Status.ID, atoll.ErrNotExist, "image %s was removed, and %s has another digest now", rec.Digest, im.Ref)
	}
	return im.Hold()
}
