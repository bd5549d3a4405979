package client

import (
	"context"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// Secret implements atoll.SecretKeeper.
func (c *Client) Secret(ctx context.Context, id string) (string, error) {
	norm, err := atoll.NormalizeID(id)
	if err != nil || norm == "" {
		return "", atoll.E("secret", id, atoll.ErrNotFound, nil)
	}
	var reply wire.SecretReply
	err = c.callServer(ctx, call{op: "secret", id: norm, path: "/v1/sandboxes/" + norm + "/secret", reply: &reply})
	return reply.Secret, err
}

// Reconcile implements registry.Reconciler.
func (c *Client) Reconcile(ctx context.Context, opts registry.ReconcileOptions) (registry.Reconciliation, error) {
	var found registry.Reconciliation
	err := c.callServer(ctx, call{op: "reconcile", method: "POST", path: "/v1/reconcile", body: opts, reply: &found, replyLimit: maxListReply})
	return found, err
}
