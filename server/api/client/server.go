package client

import (
	"context"
	"net/url"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// Members implements atoll.Combiner.
func (c *Client) Members(ctx context.Context) ([]atoll.Member, error) {
	var reply wire.ProvidersReply
	err := c.callServer(ctx, call{op: "providers", path: "/v1/providers", reply: &reply})
	return reply.Providers, err
}

// Probe implements atoll.Prober. If the server cannot be reached, the result is not OK.
func (c *Client) Probe(ctx context.Context) atoll.Probe {
	var probe atoll.Probe
	if err := c.callServer(ctx, call{op: "probe", path: "/v1/probe", reply: &probe}); err != nil {
		return atoll.Probe{Reason: err.Error()}
	}
	return probe
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

// Projects implements atoll.ProjectLister.
func (c *Client) Projects(ctx context.Context) ([]atoll.Project, error) {
	var reply wire.ProjectsReply
	err := c.callServer(ctx, call{op: "projects", path: "/v1/projects", reply: &reply, replyLimit: maxListReply})
	return reply.Projects, err
}

// RemoveProject implements atoll.ProjectRemover.
func (c *Client) RemoveProject(ctx context.Context, project string) error {
	const op = "remove project"
	if project == "" {
		return atoll.Errorf(op, project, atoll.ErrInvalid, "no project given")
	}
	return c.callServer(ctx, call{op: op, id: project, method: "DELETE", path: "/v1/projects/" + wire.PathSegment(project)})
}

// projectQuery returns the query parameter project, or nil if project is empty.
func projectQuery(project string) url.Values {
	if project == "" {
		return nil
	}
	return url.Values{"project": {project}}
}
