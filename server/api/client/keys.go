package client

import (
	"context"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// Keys lists the API keys of the server, including revoked ones, oldest first.
func (c *Client) Keys(ctx context.Context) ([]auth.Key, error) {
	var reply wire.KeysReply
	err := c.callServer(ctx, call{op: "list keys", path: "/v1/keys", reply: &reply, replyLimit: maxListReply})
	return reply.Keys, err
}

// CreateKey creates an API key. Kinds: ErrInvalid, ErrAlreadyExists (the name), ErrConflict (the
// account has keys with other rights), ErrDenied.
func (c *Client) CreateKey(ctx context.Context, spec auth.KeySpec) (auth.NewKey, error) {
	var made auth.NewKey
	err := c.callServer(ctx, call{op: "create key", id: spec.Name, method: "POST", path: "/v1/keys", body: spec, reply: &made})
	return made, err
}

// RotateKey replaces the secret of the API key with the given id or name. The old secret stays
// valid for grace; a negative grace means auth.DefaultRotateGrace. Kinds: ErrNotExist, ErrConflict
// (the key has expired), ErrDenied.
func (c *Client) RotateKey(ctx context.Context, ref string, grace atoll.Duration) (auth.NewKey, error) {
	const op = "rotate key"
	var made auth.NewKey
	if ref == "" {
		return made, atoll.Errorf(op, ref, atoll.ErrNotExist, "no key given")
	}
	var req wire.RotateRequest
	if grace >= 0 {
		req.Grace = &grace
	}
	err := c.callServer(ctx, call{op: op, id: ref, method: "POST", path: "/v1/keys/" + wire.PathSegment(ref) + "/rotate", body: req, reply: &made})
	return made, err
}

// RevokeKey permanently invalidates the API key with the given id or name. Kinds: ErrNotExist,
// ErrDenied.
func (c *Client) RevokeKey(ctx context.Context, ref string) error {
	const op = "remove key"
	if ref == "" {
		return atoll.Errorf(op, ref, atoll.ErrNotExist, "no key given")
	}
	return c.callServer(ctx, call{op: op, id: ref, method: "DELETE", path: "/v1/keys/" + wire.PathSegment(ref)})
}
