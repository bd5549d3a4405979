//go:build linux

package microvm_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
	"github.com/seed46cd37a8/atoll/machine/image"
	"github.com/seed46cd37a8/atoll/machine/image/bundle"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// Machines boot OCI images, too. Each provider has a store of its own here, which has what
// does not depend on the image.
func TestConformanceImages(t *testing.T) {
	need(t)
	testenv.Need(t, testenv.Root, testenv.Program("sqfstar", "squashfs-tools"))
	reg := testimage.Serve(t)
	ref := reg.Push("tiny:1", testimage.Tiny(t, "text"))
	withStore := func(t *testing.T) atoll.Provider {
		opts := fresh(t)
		opts.Bundles = ownStore(t)
		return openWith(t, opts)
	}
	providertest.Run(t, withStore, append(maker(fresh).options(leftOut(t)...), providertest.Only("images"),
		providertest.PullableImage(ref), providertest.ImageSource("/file", "text", reg.Unplug), providertest.MovingImage(reg.PushTiny("moving:1")))...)
}

// ownStore is a store that can build bundles from images.
func ownStore(t testing.TB) *bundle.Store {
	t.Helper()
	dir := t.TempDir()
	if err := linkTree(testenv.BundleStore(t), filepath.Join(dir, "bundles")); err != nil {
		t.Fatal(err)
	}
	store, err := bundle.Open(filepath.Join(dir, "bundles"), bundle.Options{Guest: testenv.Guest, Tree: treeOpener(filepath.Join(dir, "images"))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store
}

// linkTree makes a tree with the same files.
func linkTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.Mkdir(filepath.Join(to, rel), 0o700)
		}
		err = os.Link(path, filepath.Join(to, rel))
		if err != nil { // on another disk
			var data []byte
			if data, err = os.ReadFile(path); err == nil {
				err = os.WriteFile(filepath.Join(to, rel), data, 0o600)
			}
		}
		return err
	})
}

// treeOpener returns a function that unpacks images in a directory.
func treeOpener(dir string) func(context.Context, string, atoll.PullPolicy, func(atoll.Progress)) (*bundle.Tree, error) {
	return func(ctx context.Context, ref string, policy atoll.PullPolicy, progress func(atoll.Progress)) (*bundle.Tree, error) {
		store, err := image.Open(dir, image.Options{})
		if err != nil {
			return nil, err
		}
		img, err := store.GetBy(ctx, policy, ref, progress)
		if err != nil {
			return nil, errors.Join(err, store.Close())
		}
		return &bundle.Tree{
			Dir: img.Root, Digest: img.Digest, Owners: store.Owners(),
			Config: bundle.Config{Env: img.Env, Cmd: img.Cmd, User: img.User, Workdir: img.Workdir},
			Close:  func() error { return errors.Join(store.Remove(ctx, ref, nil), store.Close()) }, // else it need not be fetched again
		}, nil
	}
}
