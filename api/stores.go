package api

import (
	"context"
	"net/http"

	"github.com/seed46cd37a8/atoll"
)

func storeRoutes() []Route {
	project := []Param{{Name: "project", Type: "string", Doc: "of this project only"}}
	return []Route{
		{
			Method: "GET", Path: "/v1/volumes", Name: "listVolumes", Tag: "volumes", Summary: "List volumes",
			Params: project, Reply: jsonOf[volumesReply](), serve: (*Handler).serveVolumes,
		},
		{
			Method: "DELETE", Path: "/v1/volumes/{name}", Name: "removeVolume", Tag: "volumes", Summary: "Delete a volume",
			Params: project, Status: http.StatusNoContent, serve: (*Handler).serveRemoveVolume,
		},
		{
			Method: "GET", Path: "/v1/snapshots", Name: "listSnapshots", Tag: "snapshots", Summary: "List snapshots",
			Reply: jsonOf[snapshotsReply](), serve: (*Handler).serveSnapshots,
		},
		{
			Method: "DELETE", Path: "/v1/snapshots/{id}", Name: "removeSnapshot", Tag: "snapshots", Summary: "Delete a snapshot",
			Status: http.StatusNoContent, serve: (*Handler).serveRemoveSnapshot,
		},
	}
}

type (
	volumesReply struct {
		Volumes []atoll.Volume `json:"volumes"`
	}
	snapshotsReply struct {
		Snapshots []atoll.Snapshot `json:"snapshots"`
	}
)

func (h *Handler) serveVolumes(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	project := q.str("project")
	if err := q.done(); err != nil {
		return err
	}
	all, err := atoll.Volumes(r.Context(), h.provider, project)
	if err != nil {
		return err
	}
	if all == nil {
		all = []atoll.Volume{}
	}
	writeJSON(w, http.StatusOK, volumesReply{all})
	return nil
}

// Volumes implements atoll.VolumeStore.
func (c *Client) Volumes(ctx context.Context, project string) ([]atoll.Volume, error) {
	var reply volumesReply
	err := c.call(ctx, call{op: "volumes", path: "/v1/volumes", query: projectQuery(project), reply: &reply, most: maxListReply})
	return reply.Volumes, err
}

func (h *Handler) serveRemoveVolume(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	project := q.str("project")
	if err := q.done(); err != nil {
		return err
	}
	if err := atoll.RemoveVolume(r.Context(), h.provider, project, r.PathValue("name")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// RemoveVolume implements atoll.VolumeStore.
func (c *Client) RemoveVolume(ctx context.Context, project, name string) error {
	const op = "remove volume"
	if name == "" {
		return atoll.Errorf(op, name, atoll.ErrNotExist, "no volume given")
	}
	return c.call(ctx, call{op: op, id: name, method: "DELETE", path: "/v1/volumes/" + segment(name), query: projectQuery(project)})
}

func (h *Handler) serveSnapshots(w http.ResponseWriter, r *http.Request) error {
	all, err := atoll.Snapshots(r.Context(), h.provider)
	if err != nil {
		return err
	}
	if all == nil {
		all = []atoll.Snapshot{}
	}
	writeJSON(w, http.StatusOK, snapshotsReply{all})
	return nil
}

// Snapshots implements atoll.SnapshotStore.
func (c *Client) Snapshots(ctx context.Context) ([]atoll.Snapshot, error) {
	var reply snapshotsReply
	err := c.call(ctx, call{op: "snapshots", path: "/v1/snapshots", reply: &reply, most: maxListReply})
	return reply.Snapshots, err
}

func (h *Handler) serveRemoveSnapshot(w http.ResponseWriter, r *http.Request) error {
	if err := atoll.RemoveSnapshot(r.Context(), h.provider, r.PathValue("id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// RemoveSnapshot implements atoll.SnapshotStore.
func (c *Client) RemoveSnapshot(ctx context.Context, id string) error {
	const op = "remove snapshot"
	if id == "" {
		return atoll.Errorf(op, id, atoll.ErrNotExist, "no snapshot given")
	}
	return c.call(ctx, call{op: op, id: id, method: "DELETE", path: "/v1/snapshots/" + segment(id)})
}

var (
	_ atoll.VolumeStore   = (*Client)(nil)
	_ atoll.SnapshotStore = (*Client)(nil)
)
