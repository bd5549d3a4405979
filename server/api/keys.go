package api

import (
	"context"
	"net/http"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// Keys manages the API keys of a server. Package authz implements it.
type Keys interface {
	CreateKey(ctx context.Context, spec auth.KeySpec) (auth.NewKey, error)
	Keys(ctx context.Context) ([]auth.Key, error)
	// RotateKey and RevokeKey take the id or the name of a key. A negative grace means
	// auth.DefaultRotateGrace.
	RotateKey(ctx context.Context, ref string, grace atoll.Duration) (auth.NewKey, error)
	RevokeKey(ctx context.Context, ref string) error
}

func keyRoutes() []Route {
	return []Route{
		{
			Method: "GET", Path: "/v1/keys", Name: "listKeys", Tag: "keys", Summary: "List API keys, oldest first", Admin: true,
			Doc:   "The list includes revoked keys. It has no secrets: the server stores only their hashes.",
			Reply: jsonOf[wire.KeysReply](), serve: withKeys((*Handler).serveKeys),
		},
		{
			Method: "POST", Path: "/v1/keys", Name: "createKey", Tag: "keys", Summary: "Create an API key", Admin: true,
			Doc: "The response has the secret of the key, which is the bearer token and is not shown again. A key with the role `project` can use everything in its projects " +
				"and sees nothing else; a key with the role `admin` can use everything.",
			Body: jsonOf[auth.KeySpec](), Status: http.StatusCreated, Reply: jsonOf[auth.NewKey](), serve: withKeys((*Handler).serveCreateKey),
		},
		{
			Method: "POST", Path: "/v1/keys/{key}/rotate", Name: "rotateKey", Tag: "keys", Summary: "Replace the secret of an API key", Admin: true,
			Doc: "`key` is an id or a name. The current secret stays valid for `grace`, by default an hour; an older one becomes invalid at once. " +
				"All servers that share a store apply the change within 5 seconds.",
			Body: jsonOf[wire.RotateRequest](), Reply: jsonOf[auth.NewKey](), serve: withKeys((*Handler).serveRotateKey),
		},
		{
			Method: "DELETE", Path: "/v1/keys/{key}", Name: "revokeKey", Tag: "keys", Summary: "Revoke an API key", Admin: true,
			Doc: "`key` is an id or a name. The key becomes invalid at once, and its requests in progress are broken off within 15 seconds.", Status: http.StatusNoContent,
			serve: withKeys((*Handler).serveRevokeKey),
		},
	}
}

// withKeys adapts a function that needs the handler's keys to Route.serve.
func withKeys(serve func(*Handler, Keys, http.ResponseWriter, *http.Request) error) func(*Handler, http.ResponseWriter, *http.Request) error {
	return func(h *Handler, w http.ResponseWriter, r *http.Request) error {
		if h.opts.Keys == nil {
			return atoll.Errorf("", "", atoll.ErrUnsupported, "this server has no API keys")
		}
		return serve(h, h.opts.Keys, w, r)
	}
}

func (h *Handler) serveKeys(keys Keys, w http.ResponseWriter, r *http.Request) error {
	all, err := keys.Keys(r.Context())
	if err != nil {
		return err
	}
	if all == nil {
		all = []auth.Key{}
	}
	writeJSON(w, http.StatusOK, wire.KeysReply{Keys: all})
	return nil
}

func (h *Handler) serveCreateKey(keys Keys, w http.ResponseWriter, r *http.Request) error {
	var spec auth.KeySpec
	if err := h.decodeBody(w, r, &spec, true); err != nil {
		return err
	}
	made, err := keys.CreateKey(r.Context(), spec)
	if err != nil {
		return err
	}
	return showSecret(w, http.StatusCreated, made)
}

// showSecret sends a response with a secret, which no cache may store.
func showSecret(w http.ResponseWriter, status int, made auth.NewKey) error {
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, status, made)
	return nil
}

func (h *Handler) serveRotateKey(keys Keys, w http.ResponseWriter, r *http.Request) error {
	var req wire.RotateRequest
	if err := h.decodeBody(w, r, &req, false); err != nil {
		return err
	}
	grace := atoll.Duration(-1)
	if req.Grace != nil {
		if grace = *req.Grace; grace < 0 {
			return invalidError("grace %s: must not be negative", grace)
		}
	}
	made, err := keys.RotateKey(r.Context(), r.PathValue("key"), grace)
	if err != nil {
		return err
	}
	return showSecret(w, http.StatusOK, made)
}

func (h *Handler) serveRevokeKey(keys Keys, w http.ResponseWriter, r *http.Request) error {
	if err := keys.RevokeKey(r.Context(), r.PathValue("key")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
