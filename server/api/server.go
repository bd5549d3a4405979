package api

import (
	"net/http"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

func serverRoutes() []Route {
	health := func(path, name string) Route {
		return Route{
			Method: "GET", Path: path, Name: name, Tag: "server", Summary: "Check that the server answers", Public: true,
			Reply: jsonOf[healthReply](), serve: (*Handler).serveHealth,
		}
	}
	return []Route{
		health("/health", "getHealth"),
		health("/api/health", "getAPIHealth"),
		{
			Method: "GET", Path: "/readyz", Name: "getReadiness", Tag: "server", Summary: "Check that the server is ready for requests", Public: true,
			Doc:   "The HTTP status is 503, and `status` is `closing` or `not ready`, if the server closes or if its store or provider does not answer.",
			Reply: jsonOf[readyReply](), serve: (*Handler).serveReady,
		},
		{
			Method: "GET", Path: "/v1/info", Name: "getServerInfo", Tag: "server", Summary: "Get the name and the capabilities of the provider",
			Reply: jsonOf[wire.ServerInfo](), serve: (*Handler).serveInfo,
		},
		{
			Method: "GET", Path: "/v1/providers", Name: "listProviders", Tag: "server", Summary: "List the providers, default provider first",
			Doc:   "The list does not contact the providers: `problem` is the error of the last attempt to use one.",
			Reply: jsonOf[wire.ProvidersReply](), serve: (*Handler).serveProviders,
		},
		{
			Method: "GET", Path: "/v1/probe", Name: "probeServer", Tag: "server", Summary: "Check that the provider works on this machine, and get the remedy if not",
			Reply: jsonOf[atoll.Probe](), serve: (*Handler).serveProbe,
		},
		{
			Method: "POST", Path: "/v1/prepare", Name: "prepareImage", Tag: "server", Summary: "Fetch the image of a spec ahead of a create",
			Doc:  "The stream has events `progress` and ends with `done`, which has no data, or `error`.",
			Body: jsonOf[atoll.Spec](), Reply: eventsOf[atoll.Progress](), serve: (*Handler).servePrepare,
		},
		{
			Method: "GET", Path: "/v1/projects", Name: "listProjects", Tag: "projects", Summary: "List projects with resources of their own, such as machines and disks",
			Doc:   "The list omits projects that have only sandboxes and volumes.",
			Reply: jsonOf[wire.ProjectsReply](), serve: (*Handler).serveProjects,
		},
		{
			Method: "DELETE", Path: "/v1/projects/{project}", Name: "removeProject", Tag: "projects",
			Summary: "Remove a project with all its sandboxes and volumes", Status: http.StatusNoContent, serve: (*Handler).serveRemoveProject,
		},
	}
}

// A healthReply says that the server answers.
type healthReply struct {
	Status string `json:"status"` // "ok"
}

func (h *Handler) serveHealth(w http.ResponseWriter, r *http.Request) error {
	writeJSON(w, http.StatusOK, healthReply{"ok"})
	return nil
}

func (h *Handler) serveInfo(w http.ResponseWriter, r *http.Request) error {
	writeJSON(w, http.StatusOK, wire.ServerInfo{Info: h.provider.Info(), Server: h.opts.Version})
	return nil
}

func (h *Handler) serveProviders(w http.ResponseWriter, r *http.Request) error {
	members, err := atoll.Members(r.Context(), h.provider)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, wire.ProvidersReply{Providers: members})
	return nil
}

func (h *Handler) serveProbe(w http.ResponseWriter, r *http.Request) error {
	writeJSON(w, http.StatusOK, atoll.ProbeProvider(r.Context(), h.provider))
	return nil
}

func (h *Handler) servePrepare(w http.ResponseWriter, r *http.Request) error {
	var spec atoll.Spec
	if err := h.decodeBody(w, r, &spec, true); err != nil {
		return err
	}
	ctx, done, err := h.beginStream(w, r)
	if err != nil {
		return err
	}
	defer done()
	events := newEventWriter(ctx, w)
	defer events.stopWriter()
	err = atoll.Prepare(ctx, h.provider, &spec, func(p atoll.Progress) { _ = events.sendEvent("progress", p) })
	if err != nil {
		return alreadyAnswered(events.sendError(err))
	}
	return alreadyAnswered(events.sendEvent("done", struct{}{}))
}

func (h *Handler) serveProjects(w http.ResponseWriter, r *http.Request) error {
	all, err := atoll.Projects(r.Context(), h.provider)
	if err != nil {
		return err
	}
	if all == nil {
		all = []atoll.Project{}
	}
	writeJSON(w, http.StatusOK, wire.ProjectsReply{Projects: all})
	return nil
}

func (h *Handler) serveRemoveProject(w http.ResponseWriter, r *http.Request) error {
	if err := atoll.RemoveProject(r.Context(), h.provider, r.PathValue("project")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
