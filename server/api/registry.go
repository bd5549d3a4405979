package api

import (
	"net/http"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

func registryRoutes() []Route {
	return []Route{
		{
			Method: "GET", Path: "/v1/sandboxes/{id}/secret", Name: "getSandboxSecret", Tag: "sandboxes", Summary: "Read the secret by which programs inside authenticate callers",
			Doc:   "The programs expect it as a bearer token. The sandbox itself has only the salted hash, in the variable `" + atoll.SecretVar + "`.",
			Reply: jsonOf[wire.SecretReply](), serve: (*Handler).serveSecret,
		},
		{
			Method: "POST", Path: "/v1/reconcile", Name: "reconcileSandboxes", Tag: "server", Summary: "Reconcile the sandboxes with the desired state",
			Doc:  "Compares the desired state with reality, repairs the differences and reports them. The server also does this in the background.",
			Body: jsonOf[registry.ReconcileOptions](), Reply: jsonOf[registry.Reconciliation](), serve: (*Handler).serveReconcile,
		},
	}
}

func (h *Handler) serveSecret(w http.ResponseWriter, r *http.Request) error {
	raw, err := atoll.SecretOf(r.Context(), h.provider, r.PathValue("id"))
	if err != nil {
		return err
	}
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, http.StatusOK, wire.SecretReply{Secret: raw})
	return nil
}

func (h *Handler) serveReconcile(w http.ResponseWriter, r *http.Request) error {
	var opts registry.ReconcileOptions
	if err := h.decodeBody(w, r, &opts, false); err != nil {
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
