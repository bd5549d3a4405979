package api

import (
	"context"
	"net/http"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/workspace"
)

func workspaceRoutes() []Route {
	project := []Param{{Name: "project", Type: "string", Doc: "of this project only"}}
	own := []Param{{Name: "project", Type: "string", Doc: "whose it is; " + atoll.DefaultProject + " when empty"}}
	const stream = "Events `progress` follow each other until one `done`, which has the workspace, or `error`. The work ends with the connection."
	return []Route{
		{
			Method: "GET", Path: "/v1/workspaces", Name: "listWorkspaces", Tag: "workspaces", Summary: "List what sandboxes work on",
			Params: project, Reply: jsonOf[workspacesReply](), serve: (*Handler).serveWorkspaces,
		},
		{
			Method: "POST", Path: "/v1/workspaces", Name: "addWorkspace", Tag: "workspaces", Summary: "Make a workspace of a directory or a git repository",
			Doc: stream, Body: jsonOf[workspace.Spec](), Reply: eventsOf[workspaceEvent](), serve: (*Handler).serveAddWorkspace,
		},
		{
			Method: "POST", Path: "/v1/workspaces/{name}/update", Name: "updateWorkspace", Tag: "workspaces", Summary: "Bring a workspace up to date",
			Doc: stream, Params: own, Reply: eventsOf[workspaceEvent](), serve: (*Handler).serveUpdateWorkspace,
		},
		{
			Method: "DELETE", Path: "/v1/workspaces/{name}", Name: "removeWorkspace", Tag: "workspaces", Summary: "Forget a workspace, and delete its clone",
			Doc:    "A directory that is used in place is not touched. One that a sandbox was made with is a conflict.",
			Params: own, Status: http.StatusNoContent, serve: (*Handler).serveRemoveWorkspace,
		},
	}
}

type workspacesReply struct {
	Workspaces []workspace.Workspace `json:"workspaces"`
}

// workspaceEvent is the data of an event on the way to a workspace.
type workspaceEvent struct {
	Progress  *atoll.Progress      `json:"progress,omitempty"`
	Workspace *workspace.Workspace `json:"workspace,omitempty"` // of the last one
}

func (h *Handler) serveWorkspaces(w http.ResponseWriter, r *http.Request) error {
	all, err := workspace.List(r.Context(), h.provider, queryOf(r).str("project"))
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
	err := c.call(ctx, call{op: "workspaces", path: "/v1/workspaces", query: projectQuery(project), reply: &reply, most: maxListReply})
	return reply.Workspaces, err
}

func (h *Handler) serveAddWorkspace(w http.ResponseWriter, r *http.Request) error {
	var spec workspace.Spec
	if err := h.body(w, r, &spec, true); err != nil {
		return err
	}
	return h.workOn(w, r, func(ctx context.Context, progress func(atoll.Progress)) (workspace.Workspace, error) {
		return workspace.Add(ctx, h.provider, &spec, progress)
	})
}

// AddWorkspace implements workspace.Manager.
func (c *Client) AddWorkspace(ctx context.Context, spec *workspace.Spec, progress func(atoll.Progress)) (workspace.Workspace, error) {
	if err := spec.Validate(); err != nil { // the server would see what JSON makes of it
		return workspace.Workspace{}, err
	}
	return c.workOn(ctx, call{op: "add workspace", id: spec.Name, path: "/v1/workspaces", body: spec}, progress)
}

func (h *Handler) serveUpdateWorkspace(w http.ResponseWriter, r *http.Request) error {
	return h.workOn(w, r, func(ctx context.Context, progress func(atoll.Progress)) (workspace.Workspace, error) {
		return workspace.Update(ctx, h.provider, queryOf(r).str("project"), r.PathValue("name"), progress)
	})
}

// UpdateWorkspace implements workspace.Manager.
func (c *Client) UpdateWorkspace(ctx context.Context, project, name string, progress func(atoll.Progress)) (workspace.Workspace, error) {
	const op = "update workspace"
	if name == "" {
		return workspace.Workspace{}, atoll.Errorf(op, name, atoll.ErrNotExist, "no workspace given")
	}
	return c.workOn(ctx, call{op: op, id: name, path: "/v1/workspaces/" + segment(name) + "/update", query: projectQuery(project)}, progress)
}

// workOn answers with the events of what work does.
func (h *Handler) workOn(w http.ResponseWriter, r *http.Request, work func(context.Context, func(atoll.Progress)) (workspace.Workspace, error)) error {
	ctx, done, err := h.stream(w, r)
	if err != nil {
		return err
	}
	defer done()
	events := newEventWriter(ctx, w)
	defer events.close()
	made, err := work(ctx, func(p atoll.Progress) { _ = events.send("progress", workspaceEvent{Progress: &p}) })
	if err != nil {
		return answered(events.fail(err))
	}
	return answered(events.send("done", workspaceEvent{Workspace: &made}))
}

// workOn follows the events to the last one.
func (c *Client) workOn(ctx context.Context, q call, progress func(atoll.Progress)) (made workspace.Workspace, err error) {
	q.method = "POST"
	for event, err := range events[workspaceEvent](ctx, c, q) {
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
	if err := workspace.Remove(r.Context(), h.provider, queryOf(r).str("project"), r.PathValue("name")); err != nil {
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
	return c.call(ctx, call{op: op, id: name, method: "DELETE", path: "/v1/workspaces/" + segment(name), query: projectQuery(project)})
}

var _ workspace.Manager = (*Client)(nil)
