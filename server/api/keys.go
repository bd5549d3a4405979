package api

import (
	"context"
	"net/http"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// Keys keep the API keys of a server. Package authz implements it.
type Keys interface {
	CreateKey(ctx context.Context, spec auth.KeySpec) (auth.NewKey, error)
	Keys(ctx context.Context) ([]auth.Key, error)
	// RotateKey and RevokeKey take the id of a key, or its name. A negative grace is
	// auth.DefaultRotateGrace.
	RotateKey(ctx context.Context, ref string, grace atoll.Duration) (auth.NewKey, error)
	RevokeKey(ctx context.Context, ref string) error
}

func keyRoutes() []Route {
	return []Route{
		{
			Method: "GET", Path: "/v1/keys", Name: "listKeys", Tag: "keys", Summary: "List API keys, oldest first", Admin: true,
			Doc:   "Those that were revoked are among them. Their secrets are not known: only hashes are kept.",
			Reply: jsonOf[keysReply](), serve: keyed((*Handler).serveKeys),
		},
		{
			Method: "POST", Path: "/v1/keys", Name: "createKey", Tag: "keys", Summary: "Make an API key", Admin: true,
			Doc: "The answer has its secret, which is shown this once: it is the bearer token. A key with the role `project` may use what is in its projects, " +
				"and finds nothing else; one with the role `admin` may do everything.",
			Body: jsonOf[auth.KeySpec](), Status: http.StatusCreated, Reply: jsonOf[auth.NewKey](), serve: keyed((*Handler).serveCreateKey),
		},
		{
			Method: "POST", Path: "/v1/keys/{key}/rotate", Name: "rotateKey", Tag: "keys", Summary: "Give an API key another secret", Admin: true,
			Doc: "`key` is an id or a name. The secret that it has stays good for `grace`, an hour unless it is said; the one before that does not. " +
				"All servers that share a store go by it within 5 seconds.",
			Body: jsonOf[rotateRequest](), Reply: jsonOf[auth.NewKey](), serve: keyed((*Handler).serveRotateKey),
		},
		{
			Method: "DELETE", Path: "/v1/keys/{key}", Name: "revokeKey", Tag: "keys", Summary: "Revoke an API key", Admin: true,
			Doc: "`key` is an id or a name. It is good for nothing from then on, and what goes on by it is broken off within 15 seconds.", Status: http.StatusNoContent,
			serve: keyed((*Handler).serveRevokeKey),
		},
	}
}

type (
	keysReply struct {
		Keys []auth.Key `json:"keys"`
	}
	rotateRequest struct {
		// Grace is how long the old secret stays good; absent means an hour.
		Grace *atoll.Duration `json:"grace,omitempty"`
	}
)

// keyed serves with the keys of the handler.
func keyed(serve func(*Handler, Keys, http.ResponseWriter, *http.Request) error) func(*Handler, http.ResponseWriter, *http.Request) error {
	return func(h *Handler, w http.ResponseWriter, r *http.Request) error {
		if h.opts.Keys == nil {
			return atoll.Errorf("", "", atoll.ErrUnsupported, "this server keeps no API keys")
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
	writeJSON(w, http.StatusOK, keysReply{all})
	return nil
}

// Keys lists the API keys of the server, revoked ones too, oldest first.
func (c *Client) Keys(ctx context.Context) ([]auth.Key, error) {
	var reply keysReply
	err := c.call(ctx, call{op: "list keys", path: "/v1/keys", reply: &reply, most: maxListReply})
	return reply.Keys, err
}

func (h *Handler) serveCreateKey(keys Keys, w http.ResponseWriter, r *http.Request) error {
	var spec auth.KeySpec
	if err := h.body(w, r, &spec, true); err != nil {
		return err
	}
	made, err := keys.CreateKey(r.Context(), spec)
	if err != nil {
		return err
	}
	return showSecret(w, http.StatusCreated, made)
}

// showSecret answers with what nobody on the way is to keep.
func showSecret(w http.ResponseWriter, status int, made auth.NewKey) error {
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, status, made)
	return nil
}

// CreateKey makes an API key. Kinds: ErrInvalid, ErrAlreadyExists (of the name),
// ErrConflict (its account is that of others who may do something else), ErrDenied.
func (c *Client) CreateKey(ctx context.Context, spec auth.KeySpec) (auth.NewKey, error) {
	var made auth.NewKey
	err := c.call(ctx, call{op: "create key", id: spec.Name, method: "POST", path: "/v1/keys", body: spec, reply: &made})
	return made, err
}

func (h *Handler) serveRotateKey(keys Keys, w http.ResponseWriter, r *http.Request) error {
	var req rotateRequest
	if err := h.body(w, r, &req, false); err != nil {
		return err
	}
	grace := atoll.Duration(-1)
	if req.Grace != nil {
		if grace = *req.Grace; grace < 0 {
			return invalid("grace %s: must not be negative", grace)
		}
	}
	made, err := keys.RotateKey(r.Context(), r.PathValue("key"), grace)
	if err != nil {
		return err
	}
	return showSecret(w, http.StatusOK, made)
}

// RotateKey gives the API key of that id or name another secret. The one that it has
// stays good for grace; a negative one is auth.DefaultRotateGrace. Kinds:
// ErrNotExist, ErrConflict (it has expired), ErrDenied.
func (c *Client) RotateKey(ctx context.Context, ref string, grace atoll.Duration) (auth.NewKey, error) {
	const op = "rotate key"
	var made auth.NewKey
	if ref == "" {
		return made, atoll.Errorf(op, ref, atoll.ErrNotExist, "no key given")
	}
	var req rotateRequest
	if grace >= 0 {
		req.Grace = &grace
	}
	err := c.call(ctx, call{op: op, id: ref, method: "POST", path: "/v1/keys/" + segment(ref) + "/rotate", body: req, reply: &made})
	return made, err
}

func (h *Handler) serveRevokeKey(keys Keys, w http.ResponseWriter, r *http.Request) error {
	if err := keys.RevokeKey(r.Context(), r.PathValue("key")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// RevokeKey ends the API key of that id or name for good. Kinds: ErrNotExist,
// ErrDenied.
func (c *Client) RevokeKey(ctx context.Context, ref string) error {
	const op = "remove key"
	if ref == "" {
		return atoll.Errorf(op, ref, atoll.ErrNotExist, "no key given")
	}
	return c.call(ctx, call{op: op, id: ref, method: "DELETE", path: "/v1/keys/" + segment(ref)})
}

var _ Keys = (*Client)(nil)
