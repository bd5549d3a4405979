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

// A daemon is an engine that belongs to the tests.
type daemon struct{ *testengine.Engine }

func newDaemon() (*daemon, error) {
	e, err := testengine.New()
	return &daemon{e}, err
}

// loadBusybox loads the image busybox.
func (d *daemon) loadBusybox(t testing.TB) error { return d.Load(busybox, testimage.WithSockets(t)) }

// makeNetworks creates the networks that the tests use.
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

// heldObjects returns the engine's containers, volumes and networks of all sandboxes.
func heldObjects(t *testing.T) []string {
	t.Helper()
	needEngine(t)
	return engine.Held(t)
}

// runInEngine calls fn in the engine's network namespace.
func runInEngine(fn func() error) error { return engine.Inside(fn) }

// dialInEngine connects to an address on the engine's machine.
func dialInEngine(ctx context.Context, address string) (net.Conn, error) {
	return engine.Dial(ctx, address)
}

// serveRegistry starts a registry that the engine can reach.
func serveRegistry(t testing.TB) *testimage.Registry {
	t.Helper()
	needEngine(t)
	return engine.Registry(t, "127.0.0.1:0")
}
