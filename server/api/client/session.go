package client

import (
	"context"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// Sessions implements session.Manager.
func (c *Client) Sessions(ctx context.Context, project string) ([]session.Session, error) {
	var reply wire.SessionsReply
	err := c.callServer(ctx, call{op: "sessions", path: "/v1/sessions", query: projectQuery(project), reply: &reply, replyLimit: maxListReply})
	return reply.Sessions, err
}

// OpenSession implements session.Manager.
func (c *Client) OpenSession(ctx context.Context, spec *session.Spec) (o session.OpenResult, err error) {
	if err := spec.Validate(); err != nil { // JSON would change invalid values before the server validates them
		return o, err
	}
	err = c.callServer(ctx, call{op: "open session", id: spec.Scope.Key(), method: "POST", path: "/v1/sessions", body: wire.NewOpenSessionRequest(spec), reply: &o, idempotent: true})
	return o, err
}

// CloseSession implements session.Manager.
func (c *Client) CloseSession(ctx context.Context, project, key string) error {
	const op = "close session"
	if key == "" {
		return atoll.Errorf(op, key, atoll.ErrNotExist, "no session given")
	}
	return c.callServer(ctx, call{op: op, id: key, method: "DELETE", path: "/v1/sessions/" + wire.PathSegment(key), query: projectQuery(project)})
}
