package api

import (
	"context"
	"net/http"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/session"
)

func sessionRoutes() []Route {
	own := []Param{{Name: "project", Type: "string", Doc: "whose it is; " + atoll.DefaultProject + " when empty"}}
	return []Route{
		{
			Method: "GET", Path: "/v1/sessions", Name: "listSessions", Tag: "sessions", Summary: "List sessions, oldest first",
			Params: []Param{{Name: "project", Type: "string", Doc: "of this project only"}}, Reply: jsonOf[sessionsReply](), serve: (*Handler).serveSessions,
		},
		{
			Method: "POST", Path: "/v1/sessions", Name: "openSession", Tag: "sessions", Summary: "Open the session of a workflow, an agent or a conversation",
			Doc: "Whoever opens the session of a scope has the same sandbox: made by the first, started again if it has stopped, replaced if it is gone; " +
				"`opening` says which, and `note` what became of the one before.",
			Body: jsonOf[session.Spec](), Reply: jsonOf[session.Opened](), serve: (*Handler).serveOpenSession,
		},
		{
			Method: "DELETE", Path: "/v1/sessions/{key}", Name: "closeSession", Tag: "sessions", Summary: "Close a session, and remove its sandbox",
			Params: own, Status: http.StatusNoContent, serve: (*Handler).serveCloseSession,
		},
		{
			Method: "POST", Path: "/v1/scopes/{kind}/{scope}/end", Name: "endScope", Tag: "sessions", Summary: "Close the sessions of a run that has ended",
			Doc:    "With a workflow end the sessions of the agents that were part of it, too.",
			Params: own, Reply: jsonOf[endReply](), serve: (*Handler).serveEndScope,
		},
	}
}

type sessionsReply struct {
	Sessions []session.Session `json:"sessions"`
}

type endReply struct {
	Closed []string `json:"closed"` // keys
}

func (h *Handler) serveSessions(w http.ResponseWriter, r *http.Request) error {
	all, err := session.List(r.Context(), h.provider, queryOf(r).str("project"))
	if err != nil {
		return err
	}
	if all == nil {
		all = []session.Session{}
	}
	writeJSON(w, http.StatusOK, sessionsReply{all})
	return nil
}

// Sessions implements session.Manager.
func (c *Client) Sessions(ctx context.Context, project string) ([]session.Session, error) {
	var reply sessionsReply
	err := c.call(ctx, call{op: "sessions", path: "/v1/sessions", query: projectQuery(project), reply: &reply, most: maxListReply})
	return reply.Sessions, err
}

func (h *Handler) serveOpenSession(w http.ResponseWriter, r *http.Request) error {
	var spec session.Spec
	if err := h.body(w, r, &spec, true); err != nil {
		return err
	}
	o, err := session.Open(r.Context(), h.provider, &spec)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, o) // whoever has gone finds it again, by its scope
	return nil
}

// OpenSession implements session.Manager.
func (c *Client) OpenSession(ctx context.Context, spec *session.Spec) (o session.Opened, err error) {
	if err := spec.Validate(); err != nil { // the server would see what JSON makes of it
		return o, err
	}
	err = c.call(ctx, call{op: "open session", id: spec.Scope.Key(), method: "POST", path: "/v1/sessions", body: spec, reply: &o, safe: true})
	return o, err
}

func (h *Handler) serveCloseSession(w http.ResponseWriter, r *http.Request) error {
	if err := session.Close(r.Context(), h.provider, queryOf(r).str("project"), r.PathValue("key")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// CloseSession implements session.Manager.
func (c *Client) CloseSession(ctx context.Context, project, key string) error {
	const op = "close session"
	if key == "" {
		return atoll.Errorf(op, key, atoll.ErrNotExist, "no session given")
	}
	return c.call(ctx, call{op: op, id: key, method: "DELETE", path: "/v1/sessions/" + segment(key), query: projectQuery(project)})
}

func (h *Handler) serveEndScope(w http.ResponseWriter, r *http.Request) error {
	scope := session.Scope{Kind: session.ScopeKind(r.PathValue("kind")), ID: r.PathValue("scope")}
	closed, err := session.EndScope(r.Context(), h.provider, queryOf(r).str("project"), scope)
	if err != nil {
		return err
	}
	if closed == nil {
		closed = []string{}
	}
	writeJSON(w, http.StatusOK, endReply{closed})
	return nil
}

var _ session.Manager = (*Client)(nil)
