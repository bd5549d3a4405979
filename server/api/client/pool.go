package client

import (
	"context"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/pool"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// Pools implements pool.Reporter.
func (c *Client) Pools(ctx context.Context) (pool.Report, error) {
	var report pool.Report
	err := c.callServer(ctx, call{op: "pools", path: "/v1/pools", reply: &report, replyLimit: maxListReply})
	return report, err
}

// Reserve implements atoll.Reserver.
func (c *Client) Reserve(ctx context.Context, spec *atoll.Spec) (string, error) {
	if err := spec.Validate(); err != nil { // JSON would change invalid values before the server validates them
		return "", err
	}
	var reply wire.IDReply
	err := c.callServer(ctx, call{op: "reserve", id: spec.Name, method: "POST", path: "/v1/pools/reserve", body: spec, reply: &reply})
	if atoll.KindOf(err) == atoll.ErrUnsupported {
		return "", nil // an older server; if spec is unsupported, Create returns the error
	}
	return reply.ID, err
}
