package api

import (
	"context"
	"net/http"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/workspace"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

func workspaceRoutes() []Route {
	project := []Param{{Name: "project", Type: "string", Doc: "only workspaces of this project"}}
	own := []Param{{Name: "project", Type: "string", Doc: "the project of the workspace; default " + atoll.DefaultProject}}
	const stream = "The stream has events `progress` and ends with `done`, which has the workspace, or `error`. The server stops the work if the client disconnects."
	return []Route{
		{
			Method: "GET", Path: "/v1/workspaces", Name: "listWorkspaces", Tag: "workspaces", Summary: "List workspaces",
			Params: project, Reply: jsonOf[wire.WorkspacesReply](), serve: (*Handler).serveWorkspaces,
		},
		{
			Method: "POST", Path: "/v1/workspaces", Name: "addWorkspace", Tag: "workspaces", Summary: "Add a workspace from a directory or a git repository",
			Doc: stream, Body: jsonOf[workspace.Spec](), Reply: eventsOf[wire.WorkspaceEvent](), serve: (*Handler).serveAddWorkspace,
		},
		{
			Method: "POST", Path: "/v1/workspaces/{name}/update", Name: "updateWorkspace", Tag: "workspaces", Summary: "Update a workspace",
			Doc: stream, Params: own, Reply: eventsOf[wire.WorkspaceEvent](), serve: (*Handler).serveUpdateWorkspace,
		},
		{
			Method: "DELETE", Path: "/v1/workspaces/{name}", Name: "removeWorkspace", Tag: "workspaces", Summary: "Remove a workspace and delete its clone",
			Doc:    "The server does not touch a directory that is used in place. The status is a conflict if a sandbox has the workspace.",
			Params: own, Status: http.StatusNoContent, serve: (*Handler).serveRemoveWorkspace,
		},
	}
}

func (h *Handler) serveWorkspaces(w http.ResponseWriter, r *http.Request) error {
	all, err := workspace.List(r.Context(), h.provider, parseQuery(r).getString("project"))
	if err != nil {
		return err
	}
	if all == nil {
		all = []workspace.Workspace{}
	}
	writeJSON(w, http.StatusOK, wire.WorkspacesReply{Workspaces: all})
	return nil
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

func (h *Handler) serveUpdateWorkspace(w http.ResponseWriter, r *http.Request) error {
	return h.serveWorkspaceEvents(w, r, func(ctx context.Context, progress func(atoll.Progress)) (workspace.Workspace, error) {
		return workspace.Update(ctx, h.provider, parseQuery(r).getString("project"), r.PathValue("name"), progress)
	})
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
	made, err := work(ctx, func(p atoll.Progress) { _ = events.sendEvent("progress", wire.WorkspaceEvent{Progress: &p}) })
	if err != nil {
		return alreadyAnswered(events.sendError(err))
	}
	return alreadyAnswered(events.sendEvent("done", wire.WorkspaceEvent{Workspace: &made}))
}

func (h *Handler) serveRemoveWorkspace(w http.ResponseWriter, r *http.Request) error {
	if err := workspace.Remove(r.Context(), h.provider, parseQuery(r).getString("project"), r.PathValue("name")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
