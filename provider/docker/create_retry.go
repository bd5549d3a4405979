package docker

import (
	"context"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"
)

// The engine may finish the request of a program that has died since.
const (
	lateTimeout  = 10 * time.Second
	lateInterval = 50 * time.Millisecond
)

// createRetrying creates the container. If a container has its name, it may be one that the
// engine made for a program that has died since: then createRetrying removes that one and tries
// again, for up to lateTimeout and while caller has not ended. It gives up at once if the
// container is not this sandbox's.
func (c *creation) createRetrying(ctx, caller context.Context, as client.ContainerCreateOptions) (client.ContainerCreateResult, error) {
	made, err := c.p.engine.ContainerCreate(ctx, as)
	for end := time.Now().Add(lateTimeout); nameTaken(err) && caller.Err() == nil && time.Now().Before(end); time.Sleep(lateInterval) {
		if err := c.clearAbandoned(ctx); err != nil {
			return made, err
		}
		if c.isForeign(ctx, as.Name) {
			break
		}
		made, err = c.p.engine.ContainerCreate(ctx, as)
	}
	return made, err
}

// nameTaken reports whether err says that a container has the name, or is about to.
func nameTaken(err error) bool {
	return cerrdefs.IsConflict(err) || err != nil && strings.Contains(err.Error(), "that name is already in use") // from Podman
}

// isForeign reports whether a container that is not this sandbox's has the name.
func (c *creation) isForeign(ctx context.Context, name string) bool {
	found, err := c.p.engine.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
	return err == nil && !c.p.names.ownsContainer(c.spec.ID, &found.Container)
}
