package api

import (
	"net/http"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

func storeRoutes() []Route {
	project := []Param{{Name: "project", Type: "string", Doc: "only volumes of this project"}}
	return []Route{
		{
			Method: "GET", Path: "/v1/volumes", Name: "listVolumes", Tag: "volumes", Summary: "List volumes",
			Params: project, Reply: jsonOf[wire.VolumesReply](), serve: (*Handler).serveVolumes,
		},
		{
			Method: "DELETE", Path: "/v1/volumes/{name}", Name: "removeVolume", Tag: "volumes", Summary: "Delete a volume",
			Doc:    "If several providers have a volume with this name, the status is a conflict; `PROVIDER=NAME` selects one.",
			Params: project, Status: http.StatusNoContent, serve: (*Handler).serveRemoveVolume,
		},
		{
			Method: "GET", Path: "/v1/images", Name: "listImages", Tag: "images", Summary: "List the fetched images",
			Reply: jsonOf[wire.ImagesReply](), serve: (*Handler).serveImages,
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
			Reply:  jsonOf[wire.DigestReply](), serve: (*Handler).serveResolveImage,
		},
		{
			Method: "GET", Path: "/v1/snapshots", Name: "listSnapshots", Tag: "snapshots", Summary: "List snapshots",
			Reply: jsonOf[wire.SnapshotsReply](), serve: (*Handler).serveSnapshots,
		},
		{
			Method: "DELETE", Path: "/v1/snapshots/{id}", Name: "removeSnapshot", Tag: "snapshots", Summary: "Delete a snapshot",
			Status: http.StatusNoContent, serve: (*Handler).serveRemoveSnapshot,
		},
	}
}

func (h *Handler) serveVolumes(w http.ResponseWriter, r *http.Request) error {
	project := parseQuery(r).getString("project")
	all, err := atoll.Volumes(r.Context(), h.provider, project)
	if err != nil {
		return err
	}
	if all == nil {
		all = []atoll.Volume{}
	}
	writeJSON(w, http.StatusOK, wire.VolumesReply{Volumes: all})
	return nil
}

func (h *Handler) serveRemoveVolume(w http.ResponseWriter, r *http.Request) error {
	project := parseQuery(r).getString("project")
	if err := atoll.RemoveVolume(r.Context(), h.provider, project, r.PathValue("name")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (h *Handler) serveImages(w http.ResponseWriter, r *http.Request) error {
	all, err := atoll.Images(r.Context(), h.provider)
	if err != nil {
		return err
	}
	if all == nil {
		all = []atoll.Image{}
	}
	writeJSON(w, http.StatusOK, wire.ImagesReply{Images: all})
	return nil
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

func (h *Handler) serveResolveImage(w http.ResponseWriter, r *http.Request) error {
	digest, err := atoll.ResolveImage(r.Context(), h.provider, parseQuery(r).getString("ref"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, wire.DigestReply{Digest: digest})
	return nil
}

func (h *Handler) serveSnapshots(w http.ResponseWriter, r *http.Request) error {
	all, err := atoll.Snapshots(r.Context(), h.provider)
	if err != nil {
		return err
	}
	if all == nil {
		all = []atoll.Snapshot{}
	}
	writeJSON(w, http.StatusOK, wire.SnapshotsReply{Snapshots: all})
	return nil
}

func (h *Handler) serveRemoveSnapshot(w http.ResponseWriter, r *http.Request) error {
	if err := atoll.RemoveSnapshot(r.Context(), h.provider, r.PathValue("id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
