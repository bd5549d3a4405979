package api

import (
	"context"
	"net/http"
	"net/url"

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
			Doc:    "A name that several providers keep a volume of is a conflict; `PROVIDER=NAME` is that of one.",
			Params: project, Status: http.StatusNoContent, serve: (*Handler).serveRemoveVolume,
		},
		{
			Method: "GET", Path: "/v1/images", Name: "listImages", Tag: "images", Summary: "List the images that were fetched",
			Reply: jsonOf[imagesReply](), serve: (*Handler).serveImages,
		},
		{
			Method: "DELETE", Path: "/v1/images", Name: "removeImage", Tag: "images", Summary: "Delete an image, or one of its names",
			Doc: "An image that a sandbox or a snapshot was made from is a conflict, unless by `force`; one that runs always is. " +
				"So is one that several providers keep; `PROVIDER=REF` is that of one.",
			Params: []Param{
				{Name: "ref", Type: "string", Doc: "its name, or its digest", Required: true},
				{Name: "force", Type: "boolean", Doc: "also when sandboxes that do not run were made from it"},
			},
			Status: http.StatusNoContent, serve: (*Handler).serveRemoveImage,
		},
		{
			Method: "POST", Path: "/v1/images/prune", Name: "pruneImages", Tag: "images", Summary: "Delete images that nobody uses",
			Body: jsonOf[atoll.PruneOptions](), Reply: jsonOf[atoll.Pruned](), serve: (*Handler).servePruneImages,
		},
		{
			Method: "GET", Path: "/v1/images/resolve", Name: "resolveImage", Tag: "images", Summary: "Find the digest that an image's name stands for",
			Doc:    "Nothing is fetched: the answer is about what is kept.",
			Params: []Param{{Name: "ref", Type: "string", Doc: "its name; absent for the image of sandboxes that name none"}},
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
		// Digest is empty for an image that has none.
		Digest string `json:"digest"`
	}
	snapshotsReply struct {
		Snapshots []atoll.Snapshot `json:"snapshots"`
	}
)

func (h *Handler) serveVolumes(w http.ResponseWriter, r *http.Request) error {
	project := queryOf(r).str("project")
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
	project := queryOf(r).str("project")
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
	err := c.call(ctx, call{op: "images", path: "/v1/images", reply: &reply, most: maxListReply})
	return reply.Images, err
}

func (h *Handler) serveRemoveImage(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	ref, force := q.str("ref"), q.bool("force")
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
	return c.call(ctx, call{op: "remove image", id: ref, method: "DELETE", path: "/v1/images", query: query})
}

func (h *Handler) servePruneImages(w http.ResponseWriter, r *http.Request) error {
	var opts atoll.PruneOptions
	if err := h.body(w, r, &opts, false); err != nil {
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

// PruneImages implements atoll.ImageStore. What was removed before a failure is
// not told.
func (c *Client) PruneImages(ctx context.Context, opts atoll.PruneOptions) (atoll.Pruned, error) {
	var pruned atoll.Pruned
	err := c.call(ctx, call{op: "prune images", method: "POST", path: "/v1/images/prune", body: opts, reply: &pruned, most: maxListReply})
	return pruned, err
}

func (h *Handler) serveResolveImage(w http.ResponseWriter, r *http.Request) error {
	digest, err := atoll.ResolveImage(r.Context(), h.provider, queryOf(r).str("ref"))
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
	err := c.call(ctx, call{op: "resolve image", id: ref, path: "/v1/images/resolve", query: q, reply: &reply})
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
	_ atoll.ImageStore    = (*Client)(nil)
	_ atoll.SnapshotStore = (*Client)(nil)
	_ atoll.ImageResolver = (*Client)(nil)
)
