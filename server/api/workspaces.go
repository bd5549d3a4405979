package api

import (
	"context"
	"net/http"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/workspace"
)

func workspaceRoutes() []Route {
	project := []Param{{Name: "project", Type: "string", Doc: "only workspaces of this project"}}
	own := []Param{{Name: "project", Type: "string", Doc: "the project of the workspace; default " + atoll.DefaultProject}}
	const stream = "The stream has events `progress` and ends with `done`, which has the workspace, or `error`. The server stops the work if the client disconnects."
	return []Route{
		{
			Method: "GET", Path: "/v1/workspaces", Name: "listWorkspaces", Tag: "workspaces", Summary: "List workspaces",
			Params: project, Reply: jsonOf[workspacesReply](), serve: (*Handler).serveWorkspaces,
		},
		{
			Method: "POST", Path: "/v1/workspaces", Name: "addWorkspace", Tag: "workspaces", Summary: "Add a workspace from a directory or a git repository",
			Doc: stream, Body: jsonOf[workspace.Spec](), Reply: eventsOf[workspaceEvent](), serve: (*Handler).serveAddWorkspace,
		},
		{
			Method: "POST", Path: "/v1/workspaces/{name}/update", Name: "updateWorkspace", Tag: "workspaces", Summary: "Update a workspace",
			Doc: stream, Params: own, Reply: eventsOf[workspaceEvent](), serve: (*Handler).serveUpdateWorkspace,
		},
		{
			Method: "DELETE", Path: "/v1/workspaces/{name}", Name: "removeWorkspace", Tag: "workspaces", Summary: "Remove a workspace and delete its clone",
			Doc:    "The server does not touch a directory that is used in place. The status is a conflict if a sandbox has the workspace.",
			Params: own, Status: http.StatusNoContent, serve: (*Handler).serveRemoveWorkspace,
		},
	}
}

type workspacesReply struct {
	Workspaces []workspace.Workspace `json:"workspaces"`
}

// A workspaceEvent is the data of an event of adding or updating a workspace.
type workspaceEvent struct {
	Progress  *atoll.Progress      `json:"progress,omitempty"`
	Workspace *workspace.Workspace `json:"workspace,omitempty"` // set in the event "done"
}

func (h *Handler) serveWorkspaces(w http.ResponseWriter, r *http.Request) error {
	all, err := workspace.List(r.Context(), h.provider, parseQuery(r).getString("project"))
	if err != nil {
		return err
	}
	if all == nil {
		all = []workspace.Workspace{}
	}
	writeJSON(w, http.StatusOK, workspacesReply{all})
	return nil
}

// Workspaces implements workspace.Manager.
func (c *Client) Workspaces(ctx context.Context, project string) ([]workspace.Workspace, error) {
	var reply workspacesReply
	err := c.callServer(ctx, call{op: "workspaces", path: "/v1/workspaces", query: projectQuery(project), reply: &reply, replyLimit: maxListReply})
	return reply.Workspaces, err
}

func (h *Handler) serveAddWorkspace(w http.ResponseWriter, r *http.Request) error {
	var spec workspace.Spec
	if err := h.decodeBody(w, r, &spec, true); err != nil {
		return err
	}
	return h.serveWorkspaceEvents(w, r, func(ctx context.Context, progress func(atoll.Progress)) (workspace.Workspace, error) {
		return workspace.Add(ctx, h.provider, &spec, progress)
	})
}

// AddWorkspace implements workspace.Manager.
func (c *Client) AddWorkspace(ctx context.Context, spec *workspace.Spec, progress func(atoll.Progress)) (workspace.Workspace, error) {
	if err := spec.Validate(); err != nil { // JSON would change invalid values before the server validates them
		return workspace.Workspace{}, err
	}
	return c.followWorkspaceEvents(ctx, call{op: "add workspace", id: spec.Name, path: "/v1/workspaces", body: spec}, progress)
}

func (h *Handler) serveUpdateWorkspace(w http.ResponseWriter, r *http.Request) error {
	return h.serveWorkspaceEvents(w, r, func(ctx context.Context, progress func(atoll.Progress)) (workspace.Workspace, error) {
		return workspace.Update(ctx, h.provider, parseQuery(r).getString("project"), r.PathValue("name"), progress)
	})
}

// UpdateWorkspace implements workspace.Manager.
func (c *Client) UpdateWorkspace(ctx context.Context, project, name string, progress func(atoll.Progress)) (workspace.Workspace, error) {
	const op = "update workspace"
	if name == "" {
		return workspace.Workspace{}, atoll.Errorf(op, name, atoll.ErrNotExist, "no workspace given")
	}
	return c.followWorkspaceEvents(ctx, call{op: op, id: name, path: "/v1/workspaces/" + pathSegment(name) + "/update", query: projectQuery(project)}, progress)
}

// serveWorkspaceEvents runs work and streams its progress and its result.
func (h *Handler) serveWorkspaceEvents(w http.ResponseWriter, r *http.Request, work func(context.Context, func(atoll.Progress)) (workspace.Workspace, error)) error {
	ctx, done, err := h.beginStream(w, r)
	if err != nil {
		return err
	}
	defer done()
	events := newEventWriter(ctx, w)
	defer events.stopWriter()
	made, err := work(ctx, func(p atoll.Progress) { _ = events.sendEvent("progress", workspaceEvent{Progress: &p}) })
	if err != nil {
		return alreadyAnswered(events.sendError(err))
	}
	return alreadyAnswered(events.sendEvent("done", workspaceEvent{Workspace: &made}))
}

// followWorkspaceEvents makes a request, reports the progress and returns the workspace in the last
// event.
func (c *Client) followWorkspaceEvents(ctx context.Context, q call, progress func(atoll.Progress)) (made workspace.Workspace, err error) {
	q.method = "POST"
	for event, err := range streamEvents[workspaceEvent](ctx, c, q) {
		switch data := event.data; {
		case err != nil:
			return made, err
		case event.name == "done" && data.Workspace != nil:
			return *data.Workspace, nil
		case event.name == "progress" && data.Progress != nil && progress != nil:
			progress(*data.Progress)
		}
	}
	return made, nil
}

func (h *Handler) serveRemoveWorkspace(w http.ResponseWriter, r *http.Request) error {
	if err := workspace.Remove(r.Context(), h.provider, parseQuery(r).getString("project"), r.PathValue("name")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// RemoveWorkspace implements workspace.Manager.
func (c *Client) RemoveWorkspace(ctx context.Context, project, name string) error {
	const op = "remove workspace"
	if name == "" {
		return atoll.Errorf(op, name, atoll.ErrNotExist, "no workspace given")
	}
	return c.callServer(ctx, call{op: op, id: name, method: "DELETE", path: "/v1/workspaces/" + pathSegment(name), query: projectQuery(project)})
}

var _ workspace.Manager = (*Client)(nil)
