package api

import (
	"context"
	"net/http"
	"net/url"

	"github.com/seed46cd37a8/atoll"
)

func storeRoutes() []Route {
	project := []Param{{Name: "project", Type: "string", Doc: "only volumes of this project"}}
	return []Route{
		{
			Method: "GET", Path: "/v1/volumes", Name: "listVolumes", Tag: "volumes", Summary: "List volumes",
			Params: project, Reply: jsonOf[volumesReply](), serve: (*Handler).serveVolumes,
		},
		{
			Method: "DELETE", Path: "/v1/volumes/{name}", Name: "removeVolume", Tag: "volumes", Summary: "Delete a volume",
			Doc:    "If several providers have a volume with this name, the status is a conflict; `PROVIDER=NAME` selects one.",
			Params: project, Status: http.StatusNoContent, serve: (*Handler).serveRemoveVolume,
		},
		{
			Method: "GET", Path: "/v1/images", Name: "listImages", Tag: "images", Summary: "List the fetched images",
			Reply: jsonOf[imagesReply](), serve: (*Handler).serveImages,
		},
		{
			Method: "DELETE", Path: "/v1/images", Name: "removeImage", Tag: "images", Summary: "Delete an image or one of its names",
			Doc: "The status is a conflict if a running sandbox uses the image, or, without `force`, if a stopped sandbox or a snapshot does. " +
				"It is also a conflict if several providers have the image; `PROVIDER=REF` selects one.",
			Params: []Param{
				{Name: "ref", Type: "string", Doc: "the name or the digest of the image", Required: true},
				{Name: "force", Type: "boolean", Doc: "delete it even if stopped sandboxes use it"},
			},
			Status: http.StatusNoContent, serve: (*Handler).serveRemoveImage,
		},
		{
			Method: "POST", Path: "/v1/images/prune", Name: "pruneImages", Tag: "images", Summary: "Delete unused images",
			Body: jsonOf[atoll.PruneOptions](), Reply: jsonOf[atoll.Pruned](), serve: (*Handler).servePruneImages,
		},
		{
			Method: "GET", Path: "/v1/images/resolve", Name: "resolveImage", Tag: "images", Summary: "Find the digest of an image",
			Doc:    "The operation fetches nothing and considers only fetched images.",
			Params: []Param{{Name: "ref", Type: "string", Doc: "the name of the image; default the image of sandboxes without one"}},
			Reply:  jsonOf[digestReply](), serve: (*Handler).serveResolveImage,
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
	imagesReply struct {
		Images []atoll.Image `json:"images"`
	}
	digestReply struct {
		// Digest is empty for an image without a digest.
		Digest string `json:"digest"`
	}
	snapshotsReply struct {
		Snapshots []atoll.Snapshot `json:"snapshots"`
	}
)

func (h *Handler) serveVolumes(w http.ResponseWriter, r *http.Request) error {
	project := parseQuery(r).getString("project")
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
	err := c.callServer(ctx, call{op: "volumes", path: "/v1/volumes", query: projectQuery(project), reply: &reply, replyLimit: maxListReply})
	return reply.Volumes, err
}

func (h *Handler) serveRemoveVolume(w http.ResponseWriter, r *http.Request) error {
	project := parseQuery(r).getString("project")
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
	return c.callServer(ctx, call{op: op, id: name, method: "DELETE", path: "/v1/volumes/" + pathSegment(name), query: projectQuery(project)})
}

func (h *Handler) serveImages(w http.ResponseWriter, r *http.Request) error {
	all, err := atoll.Images(r.Context(), h.provider)
	if err != nil {
		return err
	}
	if all == nil {
		all = []atoll.Image{}
	}
	writeJSON(w, http.StatusOK, imagesReply{all})
	return nil
}

// Images implements atoll.ImageStore.
func (c *Client) Images(ctx context.Context) ([]atoll.Image, error) {
	var reply imagesReply
	err := c.callServer(ctx, call{op: "images", path: "/v1/images", reply: &reply, replyLimit: maxListReply})
	return reply.Images, err
}

func (h *Handler) serveRemoveImage(w http.ResponseWriter, r *http.Request) error {
	q := parseQuery(r)
	ref, force := q.getString("ref"), q.getBool("force")
	if q.err != nil {
		return q.err
	}
	if err := atoll.RemoveImage(r.Context(), h.provider, ref, force); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// RemoveImage implements atoll.ImageStore.
func (c *Client) RemoveImage(ctx context.Context, ref string, force bool) error {
	query := url.Values{"ref": {ref}}
	if force {
		query.Set("force", "true")
	}
	return c.callServer(ctx, call{op: "remove image", id: ref, method: "DELETE", path: "/v1/images", query: query})
}

func (h *Handler) servePruneImages(w http.ResponseWriter, r *http.Request) error {
	var opts atoll.PruneOptions
	if err := h.decodeBody(w, r, &opts, false); err != nil {
		return err
	}
	pruned, err := atoll.PruneImages(r.Context(), h.provider, opts)
	if err != nil {
		return err
	}
	if pruned.Images == nil {
		pruned.Images = []string{}
	}
	writeJSON(w, http.StatusOK, pruned)
	return nil
}

// PruneImages implements atoll.ImageStore. After a failure it does not report the images that it
// removed before.
func (c *Client) PruneImages(ctx context.Context, opts atoll.PruneOptions) (atoll.Pruned, error) {
	var pruned atoll.Pruned
	err := c.callServer(ctx, call{op: "prune images", method: "POST", path: "/v1/images/prune", body: opts, reply: &pruned, replyLimit: maxListReply})
	return pruned, err
}

func (h *Handler) serveResolveImage(w http.ResponseWriter, r *http.Request) error {
	digest, err := atoll.ResolveImage(r.Context(), h.provider, parseQuery(r).getString("ref"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, digestReply{digest})
	return nil
}

// ResolveImage implements atoll.ImageResolver.
func (c *Client) ResolveImage(ctx context.Context, ref string) (string, error) {
	q := url.Values{}
	if ref != "" {
		q.Set("ref", ref)
	}
	var reply digestReply
	err := c.callServer(ctx, call{op: "resolve image", id: ref, path: "/v1/images/resolve", query: q, reply: &reply})
	return reply.Digest, err
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
	err := c.callServer(ctx, call{op: "snapshots", path: "/v1/snapshots", reply: &reply, replyLimit: maxListReply})
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
	return c.callServer(ctx, call{op: op, id: id, method: "DELETE", path: "/v1/snapshots/" + pathSegment(id)})
}

var (
	_ atoll.VolumeStore   = (*Client)(nil)
	_ atoll.ImageStore    = (*Client)(nil)
	_ atoll.SnapshotStore = (*Client)(nil)
	_ atoll.ImageResolver = (*Client)(nil)
)
