package api

import (
	"net/http"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

func sessionRoutes() []Route {
	own := []Param{{Name: "project", Type: "string", Doc: "the project of the session; default " + atoll.DefaultProject}}
	return []Route{
		{
			Method: "GET", Path: "/v1/sessions", Name: "listSessions", Tag: "sessions", Summary: "List sessions, oldest first",
			Params: []Param{{Name: "project", Type: "string", Doc: "only sessions of this project"}}, Reply: jsonOf[wire.SessionsReply](), serve: (*Handler).serveSessions,
		},
		{
			Method: "POST", Path: "/v1/sessions", Name: "openSession", Tag: "sessions", Summary: "Open the session of a workflow, an agent or a conversation",
			Doc: "All sessions of a scope share one sandbox. The server creates it, starts it if it has stopped, or replaces it if it was removed; " +
				"`opening` says which, and `note` tells about the previous sandbox.",
			Body: jsonOf[wire.OpenSessionRequest](), Reply: jsonOf[session.OpenResult](), serve: (*Handler).serveOpenSession,
		},
		{
			Method: "DELETE", Path: "/v1/sessions/{key}", Name: "closeSession", Tag: "sessions", Summary: "Close a session and remove its sandbox",
			Params: own, Status: http.StatusNoContent, serve: (*Handler).serveCloseSession,
		},
		{
			Method: "POST", Path: "/v1/scopes/{kind}/{scope}/end", Name: "endScope", Tag: "sessions", Summary: "Close the sessions of a scope that has ended",
			Doc:    "The end of a workflow also closes the sessions of its agents.",
			Params: own, Reply: jsonOf[endReply](), serve: (*Handler).serveEndScope,
		},
	}
}

// An endReply says what the end of a scope did.
type endReply struct {
	Closed []string `json:"closed"` // keys
}

func (h *Handler) serveSessions(w http.ResponseWriter, r *http.Request) error {
	all, err := session.List(r.Context(), h.provider, parseQuery(r).getString("project"))
	if err != nil {
		return err
	}
	if all == nil {
		all = []session.Session{}
	}
	writeJSON(w, http.StatusOK, wire.SessionsReply{Sessions: all})
	return nil
}

func (h *Handler) serveOpenSession(w http.ResponseWriter, r *http.Request) error {
	var request wire.OpenSessionRequest
	if err := h.decodeBody(w, r, &request, true); err != nil {
		return err
	}
	spec := request.Spec
	if err := spec.Sandbox.SetSecretValues(request.SecretValues); err != nil {
		return err
	}
	o, err := session.Open(r.Context(), h.provider, &spec)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, o) // a client that has disconnected can open the session again
	return nil
}

func (h *Handler) serveCloseSession(w http.ResponseWriter, r *http.Request) error {
	if err := session.Close(r.Context(), h.provider, parseQuery(r).getString("project"), r.PathValue("key")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (h *Handler) serveEndScope(w http.ResponseWriter, r *http.Request) error {
	scope := session.Scope{Kind: session.ScopeKind(r.PathValue("kind")), ID: r.PathValue("scope")}
	closed, err := session.EndScope(r.Context(), h.provider, parseQuery(r).getString("project"), scope)
	if err != nil {
		return err
	}
	if closed == nil {
		closed = []string{}
	}
	writeJSON(w, http.StatusOK, endReply{closed})
	return nil
}
