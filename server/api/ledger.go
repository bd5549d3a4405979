package api

import (
	"context"
	"net/http"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/registry"
)

func ledgerRoutes() []Route {
	return []Route{
		{
			Method: "GET", Path: "/v1/sandboxes/{id}/secret", Name: "secret", Tag: "sandboxes", Summary: "Read the secret that programs inside know callers by",
			Doc:   "They expect it as a bearer token. Inside there is only its salted hash, in the variable `" + atoll.SecretVar + "`.",
			Reply: jsonOf[secretReply](), serve: (*Handler).serveSecret,
		},
		{
			Method: "POST", Path: "/v1/reconcile", Name: "reconcile", Tag: "server", Summary: "Compare the sandboxes that there are with those that there are meant to be",
			Doc:  "Does what has to be done about the difference, and says what that was. The server does this by itself from time to time.",
			Body: jsonOf[registry.ReconcileOptions](), Reply: jsonOf[registry.Reconciliation](), serve: (*Handler).serveReconcile,
		},
	}
}

type secretReply struct {
	Secret string `json:"secret"`
}

func (h *Handler) serveSecret(w http.ResponseWriter, r *http.Request) error {
	raw, err := atoll.Secret(r.Context(), h.provider, r.PathValue("id"))
	if err != nil {
		return err
	}
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, http.StatusOK, secretReply{raw})
	return nil
}

// Secret implements atoll.SecretKeeper.
func (c *Client) Secret(ctx context.Context, id string) (string, error) {
	norm, err := atoll.NormalizeID(id)
	if err != nil || norm == "" {
		return "", atoll.E("secret", id, atoll.ErrNotFound, nil)
	}
	var reply secretReply
	err = c.call(ctx, call{op: "secret", id: norm, path: "/v1/sandboxes/" + norm + "/secret", reply: &reply})
	return reply.Secret, err
}

func (h *Handler) serveReconcile(w http.ResponseWriter, r *http.Request) error {
	var opts registry.ReconcileOptions
	if err := h.body(w, r, &opts, false); err != nil {
		return err
	}
	found, err := registry.Reconcile(r.Context(), h.provider, opts)
	if err != nil {
		return err
	}
	if found.Findings == nil {
		found.Findings = []registry.Finding{}
	}
	writeJSON(w, http.StatusOK, found)
	return nil
}

// Reconcile implements registry.Reconciler.
func (c *Client) Reconcile(ctx context.Context, opts registry.ReconcileOptions) (registry.Reconciliation, error) {
	var found registry.Reconciliation
	err := c.call(ctx, call{op: "reconcile", method: "POST", path: "/v1/reconcile", body: opts, reply: &found, most: maxListReply})
	return found, err
}

var (
	_ atoll.SecretKeeper  = (*Client)(nil)
	_ registry.Reconciler = (*Client)(nil)
)
