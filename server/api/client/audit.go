package client

import (
	"context"
	"net/url"
	"strconv"
	"time"

	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// Events reads the audit log of the server. Kinds: ErrDenied, ErrUnsupported (the server has no
// audit log).
func (c *Client) Events(ctx context.Context, q store.AuditQuery) ([]store.AuditEvent, error) {
	values := url.Values{}
	for name, text := range map[string]string{"project": q.Project, "sandbox": q.Sandbox, "account": q.Account} {
		if text != "" {
			values.Set(name, text)
		}
	}
	for name, n := range map[string]int64{"after": q.After, "before": q.Before, "limit": int64(q.Limit)} {
		if n != 0 {
			values.Set(name, strconv.FormatInt(n, 10))
		}
	}
	if !q.Since.IsZero() {
		values.Set("since", q.Since.UTC().Format(time.RFC3339))
	}
	var reply wire.AuditReply
	err := c.callServer(ctx, call{op: "audit", path: "/v1/audit", query: values, reply: &reply, replyLimit: maxListReply})
	return reply.Events, err
}
