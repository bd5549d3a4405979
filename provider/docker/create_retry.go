package docker

import (
	"context"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"
)

// How long the engine may take for what one that has died told it, and between two looks.
const (
	lateTimeout  = 10 * time.Second
	lateInterval = 50 * time.Millisecond
)

// createRetrying makes the container. The engine goes on with what it was told by a program that
// has died since: then there is one of that name now that was not there before, which is
// removed, for as long as caller waits. One that is not ours has the name for good.
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

// nameTaken reports whether there is a container of that name, or is about to be.
func nameTaken(err error) bool {
	return cerrdefs.IsConflict(err) || err != nil && strings.Contains(err.Error(), "that name is already in use") // podman's words
}

// isForeign reports whether there is a container of that name which is not the sandbox's.
func (c *creation) isForeign(ctx context.Context, name string) bool {
	found, err := c.p.engine.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
	return err == nil && !c.p.names.ownsContainer(c.spec.ID, &found.Container)
}
