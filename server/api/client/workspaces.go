package client

import (
	"context"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/workspace"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// Workspaces implements workspace.Manager.
func (c *Client) Workspaces(ctx context.Context, project string) ([]workspace.Workspace, error) {
	var reply wire.WorkspacesReply
	err := c.callServer(ctx, call{op: "workspaces", path: "/v1/workspaces", query: projectQuery(project), reply: &reply, replyLimit: maxListReply})
	return reply.Workspaces, err
}

// AddWorkspace implements workspace.Manager.
func (c *Client) AddWorkspace(ctx context.Context, spec *workspace.Spec, progress func(atoll.Progress)) (workspace.Workspace, error) {
	if err := spec.Validate(); err != nil { // JSON would change invalid values before the server validates them
		return workspace.Workspace{}, err
	}
	return c.followWorkspaceEvents(ctx, call{op: "add workspace", id: spec.Name, path: "/v1/workspaces", body: spec}, progress)
}

// UpdateWorkspace implements workspace.Manager.
func (c *Client) UpdateWorkspace(ctx context.Context, project, name string, progress func(atoll.Progress)) (workspace.Workspace, error) {
	const op = "update workspace"
	if name == "" {
		return workspace.Workspace{}, atoll.Errorf(op, name, atoll.ErrNotExist, "no workspace given")
	}
	return c.followWorkspaceEvents(ctx, call{op: op, id: name, path: "/v1/workspaces/" + wire.PathSegment(name) + "/update", query: projectQuery(project)}, progress)
}

// followWorkspaceEvents makes a request, reports the progress and returns the workspace in the last
// event.
func (c *Client) followWorkspaceEvents(ctx context.Context, q call, progress func(atoll.Progress)) (made workspace.Workspace, err error) {
	q.method = "POST"
	for event, err := range streamEvents[wire.WorkspaceEvent](ctx, c, q) {
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

// RemoveWorkspace implements workspace.Manager.
func (c *Client) RemoveWorkspace(ctx context.Context, project, name string) error {
	const op = "remove workspace"
	if name == "" {
		return atoll.Errorf(op, name, atoll.ErrNotExist, "no workspace given")
	}
	return c.callServer(ctx, call{op: op, id: name, method: "DELETE", path: "/v1/workspaces/" + wire.PathSegment(name), query: projectQuery(project)})
}
