package api

import (
	"context"
	"net/http"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// An AuditLog reads audit events. Package audit implements it.
type AuditLog interface {
	Events(ctx context.Context, q store.AuditQuery) ([]store.AuditEvent, error)
}

func auditRoutes() []Route {
	return []Route{{
		Method: "GET", Path: "/v1/audit", Name: "listAuditEvents", Tag: "audit", Summary: "Read the audit log", Admin: true,
		Doc: "An event has the account, the operation, its object and its result. The reply has the newest events, or with `after` the events that follow that one, oldest first. Events of the last second may be missing.",
		Params: []Param{
			{Name: "project", Type: "string", Doc: "only events in this project"},
			{Name: "sandbox", Type: "string", Doc: "only events of the sandbox with this id"},
			{Name: "account", Type: "string", Doc: "only events of this account"},
			{Name: "since", Type: "string", Doc: "only events since this time, in RFC 3339"},
			{Name: "after", Type: "integer", Doc: "only events after the event with this id"},
			{Name: "before", Type: "integer", Doc: "only events before the event with this id"},
			{Name: "limit", Type: "integer", Doc: "the most events to return, up to 1000; default 100"},
		},
		Reply: jsonOf[wire.AuditReply](), serve: (*Handler).serveAudit,
	}}
}

func (h *Handler) serveAudit(w http.ResponseWriter, r *http.Request) error {
	if h.opts.Audit == nil {
		return atoll.Errorf("", "", atoll.ErrUnsupported, "this server has no audit log")
	}
	q := parseQuery(r)
	query := store.AuditQuery{
		Project: q.getString("project"), Sandbox: q.getString("sandbox"), Account: q.getString("account"),
		After: q.getInt("after", 0), Before: q.getInt("before", 0), Limit: int(q.getInt("limit", 0)),
	}
	if since := q.getString("since"); since != "" {
		at, err := time.Parse(time.RFC3339, since)
		if err != nil {
			q.setError(invalidError("parameter since: %q is not a time like 2006-01-02T15:04:05Z", since))
		}
		query.Since = at
	}
	if q.err == nil && (query.After < 0 || query.Before < 0 || query.Limit < 0 || query.Limit > store.MaxAuditEvents) {
		q.setError(invalidError("after, before: must not be negative; limit: must be within 1..%d", store.MaxAuditEvents))
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
	writeJSON(w, http.StatusOK, wire.AuditReply{Events: all})
	return nil
}
