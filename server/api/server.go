package api

import (
	"context"
	"net/http"
	"net/url"

	"github.com/seed46cd37a8/atoll"
)

func serverRoutes() []Route {
	health := func(path, name string) Route {
		return Route{
			Method: "GET", Path: path, Name: name, Tag: "server", Summary: "Check that the server answers", Public: true,
			Reply: jsonOf[healthReply](), serve: (*Handler).serveHealth,
		}
	}
	return []Route{
		health("/health", "health"),
		health("/api/health", "apiHealth"),
		{
			Method: "GET", Path: "/readyz", Name: "ready", Tag: "server", Summary: "Check that the server is ready for requests", Public: true,
			Doc:   "The HTTP status is 503, and `status` is `closing` or `not ready`, if the server closes or if its store or provider does not answer.",
			Reply: jsonOf[readyReply](), serve: (*Handler).serveReady,
		},
		{
			Method: "GET", Path: "/v1/info", Name: "info", Tag: "server", Summary: "Get the name and the capabilities of the provider",
			Reply: jsonOf[serverInfo](), serve: (*Handler).serveInfo,
		},
		{
			Method: "GET", Path: "/v1/providers", Name: "listProviders", Tag: "server", Summary: "List the providers, default provider first",
			Doc:   "The list does not contact the providers: `problem` is the error of the last attempt to use one.",
			Reply: jsonOf[providersReply](), serve: (*Handler).serveProviders,
		},
		{
			Method: "GET", Path: "/v1/probe", Name: "probe", Tag: "server", Summary: "Check that the provider works on this machine, and get the remedy if not",
			Reply: jsonOf[atoll.Probe](), serve: (*Handler).serveProbe,
		},
		{
			Method: "POST", Path: "/v1/prepare", Name: "prepare", Tag: "server", Summary: "Fetch the image of a spec ahead of a create",
			Doc:  "The stream has events `progress` and ends with `done`, which has no data, or `error`.",
			Body: jsonOf[atoll.Spec](), Reply: eventsOf[atoll.Progress](), serve: (*Handler).servePrepare,
		},
		{
			Method: "GET", Path: "/v1/projects", Name: "listProjects", Tag: "projects", Summary: "List projects with resources of their own, such as machines and disks",
			Doc:   "The list omits projects that have only sandboxes and volumes.",
			Reply: jsonOf[projectsReply](), serve: (*Handler).serveProjects,
		},
		{
			Method: "DELETE", Path: "/v1/projects/{project}", Name: "removeProject", Tag: "projects",
			Summary: "Remove a project with all its sandboxes and volumes", Status: http.StatusNoContent, serve: (*Handler).serveRemoveProject,
		},
	}
}

type healthReply struct {
	Status string `json:"status"` // "ok"
}

// A serverInfo is the provider's Info and the version of the server.
type serverInfo struct {
	atoll.Info
	Server string `json:"server_version,omitempty"`
}

func (h *Handler) serveHealth(w http.ResponseWriter, r *http.Request) error {
	writeJSON(w, http.StatusOK, healthReply{"ok"})
	return nil
}

func (h *Handler) serveInfo(w http.ResponseWriter, r *http.Request) error {
	writeJSON(w, http.StatusOK, serverInfo{h.provider.Info(), h.opts.Version})
	return nil
}

type providersReply struct {
	Providers []atoll.Member `json:"providers"`
}

func (h *Handler) serveProviders(w http.ResponseWriter, r *http.Request) error {
	members, err := atoll.Members(r.Context(), h.provider)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, providersReply{members})
	return nil
}

// Members implements atoll.Combiner.
func (c *Client) Members(ctx context.Context) ([]atoll.Member, error) {
	var reply providersReply
	err := c.callServer(ctx, call{op: "providers", path: "/v1/providers", reply: &reply})
	return reply.Providers, err
}

func (h *Handler) serveProbe(w http.ResponseWriter, r *http.Request) error {
	writeJSON(w, http.StatusOK, atoll.ProbeProvider(r.Context(), h.provider))
	return nil
}

// Probe implements atoll.Prober. If the server cannot be reached, the result is not OK.
func (c *Client) Probe(ctx context.Context) atoll.Probe {
	var probe atoll.Probe
	if err := c.callServer(ctx, call{op: "probe", path: "/v1/probe", reply: &probe}); err != nil {
		return atoll.Probe{Reason: err.Error()}
	}
	return probe
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

// Prepare implements atoll.Preparer.
func (c *Client) Prepare(ctx context.Context, spec *atoll.Spec, progress func(atoll.Progress)) error {
	if err := spec.Validate(); err != nil { // as in Create
		return err
	}
	q := call{op: "prepare", id: spec.Image, method: "POST", path: "/v1/prepare", body: spec}
	for event, err := range streamEvents[atoll.Progress](ctx, c, q) {
		switch {
		case err != nil:
			return err
		case event.name == "done":
			return nil
		case event.name == "progress" && progress != nil:
			progress(event.data)
		}
	}
	return nil
}

type projectsReply struct {
	Projects []atoll.Project `json:"projects"`
}

func (h *Handler) serveProjects(w http.ResponseWriter, r *http.Request) error {
	all, err := atoll.Projects(r.Context(), h.provider)
	if err != nil {
		return err
	}
	if all == nil {
		all = []atoll.Project{}
	}
	writeJSON(w, http.StatusOK, projectsReply{all})
	return nil
}

// Projects implements atoll.ProjectLister.
func (c *Client) Projects(ctx context.Context) ([]atoll.Project, error) {
	var reply projectsReply
	err := c.callServer(ctx, call{op: "projects", path: "/v1/projects", reply: &reply, replyLimit: maxListReply})
	return reply.Projects, err
}

func (h *Handler) serveRemoveProject(w http.ResponseWriter, r *http.Request) error {
	if err := atoll.RemoveProject(r.Context(), h.provider, r.PathValue("project")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// RemoveProject implements atoll.ProjectRemover.
func (c *Client) RemoveProject(ctx context.Context, project string) error {
	const op = "remove project"
	if project == "" {
		return atoll.Errorf(op, project, atoll.ErrInvalid, "no project given")
	}
	return c.callServer(ctx, call{op: op, id: project, method: "DELETE", path: "/v1/projects/" + pathSegment(project)})
}

// projectQuery returns the query parameter project, or nil if project is empty.
func projectQuery(project string) url.Values {
	if project == "" {
		return nil
	}
	return url.Values{"project": {project}}
}

var (
	_ atoll.Combiner       = (*Client)(nil)
	_ atoll.Prober         = (*Client)(nil)
	_ atoll.Preparer       = (*Client)(nil)
	_ atoll.ProjectRemover = (*Client)(nil)
	_ atoll.ProjectLister  = (*Client)(nil)
)
