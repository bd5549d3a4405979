//go:build linux

package docker_test

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll/internal/testing/testengine"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
)

// A daemon is an engine of the tests' own.
type daemon struct{ *testengine.Engine }

func newDaemon() (*daemon, error) {
	e, err := testengine.New()
	return &daemon{e}, err
}

// loadBusybox gives it the image busybox.
func (d *daemon) loadBusybox(t testing.TB) error { return d.Load(busybox, testimage.WithSockets(t)) }

// makeNetworks gives it the networks that the tests use.
func (d *daemon) makeNetworks() error {
	c, err := client.New(client.WithHost(d.Host))
	if err != nil {
		return err
	}
	defer c.Close()
	for name, internal := range map[string]bool{openNetwork: false, internalNetwork: true} {
		if _, err := c.NetworkCreate(context.Background(), name, client.NetworkCreateOptions{Driver: "bridge", Internal: internal}); err != nil {
			return err
		}
	}
	return nil
}

// dropImages removes all images but busybox.
func (d *daemon) dropImages() {
	ctx := context.Background()
	c, err := client.New(client.WithHost(d.Host))
	if err != nil {
		return
	}
	defer c.Close()
	images, err := c.ImageList(ctx, client.ImageListOptions{})
	if err != nil {
		return
	}
	for _, im := range images.Items {
		if !slices.ContainsFunc(im.RepoTags, func(tag string) bool { return strings.HasSuffix(tag, busybox) }) {
			_, _ = c.ImageRemove(ctx, im.ID, client.ImageRemoveOptions{Force: true, PruneChildren: true})
		}
	}
}

// held is what the engine holds of anybody's sandboxes.
func held(t *testing.T) []string {
	t.Helper()
	needEngine(t)
	return engine.Held(t)
}

// inside calls fn in the engine's network namespace.
func inside(fn func() error) error { return engine.Inside(fn) }

// dialInside connects to an address of the engine's machine.
func dialInside(ctx context.Context, address string) (net.Conn, error) {
	return engine.Dial(ctx, address)
}

// serve starts a registry that the engine can reach.
func serve(t testing.TB) *testimage.Registry {
	t.Helper()
	needEngine(t)
	return engine.Registry(t, "127.0.0.1:0")
}
