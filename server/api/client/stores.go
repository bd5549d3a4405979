package client

import (
	"context"
	"net/url"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// Volumes implements atoll.VolumeStore.
func (c *Client) Volumes(ctx context.Context, project string) ([]atoll.Volume, error) {
	var reply wire.VolumesReply
	err := c.callServer(ctx, call{op: "volumes", path: "/v1/volumes", query: projectQuery(project), reply: &reply, replyLimit: maxListReply})
	return reply.Volumes, err
}

// RemoveVolume implements atoll.VolumeStore.
func (c *Client) RemoveVolume(ctx context.Context, project, name string) error {
	const op = "remove volume"
	if name == "" {
		return atoll.Errorf(op, name, atoll.ErrNotExist, "no volume given")
	}
	return c.callServer(ctx, call{op: op, id: name, method: "DELETE", path: "/v1/volumes/" + wire.PathSegment(name), query: projectQuery(project)})
}

// Images implements atoll.ImageStore.
func (c *Client) Images(ctx context.Context) ([]atoll.Image, error) {
	var reply wire.ImagesReply
	err := c.callServer(ctx, call{op: "images", path: "/v1/images", reply: &reply, replyLimit: maxListReply})
	return reply.Images, err
}

// RemoveImage implements atoll.ImageStore.
func (c *Client) RemoveImage(ctx context.Context, ref string, force bool) error {
	query := url.Values{"ref": {ref}}
	if force {
		query.Set("force", "true")
	}
	return c.callServer(ctx, call{op: "remove image", id: ref, method: "DELETE", path: "/v1/images", query: query})
}

// PruneImages implements atoll.ImageStore. After a failure it does not report the images that it
// removed before.
func (c *Client) PruneImages(ctx context.Context, opts atoll.PruneOptions) (atoll.Pruned, error) {
	var pruned atoll.Pruned
	err := c.callServer(ctx, call{op: "prune images", method: "POST", path: "/v1/images/prune", body: opts, reply: &pruned, replyLimit: maxListReply})
	return pruned, err
}

// ResolveImage implements atoll.ImageResolver.
func (c *Client) ResolveImage(ctx context.Context, ref string) (string, error) {
	q := url.Values{}
	if ref != "" {
		q.Set("ref", ref)
	}
	var reply wire.DigestReply
	err := c.callServer(ctx, call{op: "resolve image", id: ref, path: "/v1/images/resolve", query: q, reply: &reply})
	return reply.Digest, err
}

// Snapshots implements atoll.SnapshotStore.
func (c *Client) Snapshots(ctx context.Context) ([]atoll.Snapshot, error) {
	var reply wire.SnapshotsReply
	err := c.callServer(ctx, call{op: "snapshots", path: "/v1/snapshots", reply: &reply, replyLimit: maxListReply})
	return reply.Snapshots, err
}

// RemoveSnapshot implements atoll.SnapshotStore.
func (c *Client) RemoveSnapshot(ctx context.Context, id string) error {
	const op = "remove snapshot"
	if id == "" {
		return atoll.Errorf(op, id, atoll.ErrNotExist, "no snapshot given")
	}
	return c.callServer(ctx, call{op: op, id: id, method: "DELETE", path: "/v1/snapshots/" + wire.PathSegment(id)})
}
