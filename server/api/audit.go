package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// An AuditLog tells who has done what. Package audit has one.
type AuditLog interface {
	Events(ctx context.Context, q store.AuditQuery) ([]store.AuditEvent, error)
}

func auditRoutes() []Route {
	return []Route{{
		Method: "GET", Path: "/v1/audit", Name: "audit", Tag: "audit", Summary: "Who has done what to what, and what came of it", Admin: true,
		Doc: "The newest events, or with `after` those that follow one; the oldest of them first. What was done in the last second may be missing.",
		Params: []Param{
			{Name: "project", Type: "string", Doc: "only in this project"},
			{Name: "sandbox", Type: "string", Doc: "only to the sandbox of this id"},
			{Name: "account", Type: "string", Doc: "only by this account"},
			{Name: "since", Type: "string", Doc: "only from this time on, as in RFC 3339"},
			{Name: "after", Type: "integer", Doc: "only after the event of this id"},
			{Name: "before", Type: "integer", Doc: "only before the event of this id"},
			{Name: "limit", Type: "integer", Doc: "how many at most, up to 1000; 100 if it is not given"},
		},
		Reply: jsonOf[auditReply](), serve: (*Handler).serveAudit,
	}}
}

type auditReply struct {
	Events []store.AuditEvent `json:"events"`
}

func (h *Handler) serveAudit(w http.ResponseWriter, r *http.Request) error {
	if h.opts.Audit == nil {
		return atoll.Errorf("", "", atoll.ErrUnsupported, "this server has no audit log")
	}
	q := queryOf(r)
	query := store.AuditQuery{
		Project: q.str("project"), Sandbox: q.str("sandbox"), Account: q.str("account"),
		After: q.int("after", 0), Before: q.int("before", 0), Limit: int(q.int("limit", 0)),
	}
	if since := q.str("since"); since != "" {
		at, err := time.Parse(time.RFC3339, since)
		if err != nil {
			q.fail(invalid("parameter since: %q is no time like 2006-01-02T15:04:05Z", since))
		}
		query.Since = at
	}
	if q.err == nil && (query.After < 0 || query.Before < 0 || query.Limit < 0 || query.Limit > store.MaxAuditEvents) {
		q.fail(invalid("after, before: must not be negative; limit: must be within 1..%d", store.MaxAuditEvents))
	}
	if q.err != nil {
		return q.err
	}
	all, err := h.opts.Audit.Events(r.Context(), query)
	if err != nil {
		return err
	}
	if all == nil {
		all = []store.AuditEvent{}
	}
	writeJSON(w, http.StatusOK, auditReply{all})
	return nil
}

// Events reads the audit log of the server. Kinds: ErrDenied, ErrUnsupported (it has
// none).
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
	var reply auditReply
	err := c.call(ctx, call{op: "audit", path: "/v1/audit", query: values, reply: &reply, most: maxListReply})
	return reply.Events, err
}

var _ AuditLog = (*Client)(nil)
