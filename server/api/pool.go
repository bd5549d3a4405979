package api

import (
	"net/http"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/pool"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

func poolRoutes() []Route {
	return []Route{
		{
			Method: "GET", Path: "/v1/pools", Name: "listPools", Tag: "server", Summary: "Report on the pools of warm sandboxes",
			Doc: "A create whose spec matches a pool gets a warm sandbox at once. Until then no list has the warm sandboxes, and their ids are unusable. " +
				"The counters start with the server.",
			Reply: jsonOf[pool.Report](), serve: (*Handler).servePools,
		},
		{
			Method: "POST", Path: "/v1/pools/reserve", Name: "reservePooledSandbox", Tag: "server", Summary: "Reserve a warm sandbox",
			Doc: "The body is a spec without an id. A create with this spec and the id in the reply, within a minute, gets the reserved sandbox; " +
				"a later one creates a new sandbox. The id is empty if no warm sandbox is ready.",
			Body: jsonOf[atoll.Spec](), Reply: jsonOf[wire.IDReply](), serve: (*Handler).serveReserve,
		},
	}
}

func (h *Handler) serveReserve(w http.ResponseWriter, r *http.Request) error {
	var spec atoll.Spec
	if err := h.decodeBody(w, r, &spec, true); err != nil {
		return err
	}
	id, err := atoll.Reserve(r.Context(), h.provider, &spec)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, wire.IDReply{ID: id})
	return nil
}

func (h *Handler) servePools(w http.ResponseWriter, r *http.Request) error {
	report, err := pool.ReportOf(r.Context(), h.provider)
	if err != nil {
		return err
	}
	if report.Pools == nil {
		report.Pools = []pool.Pool{}
	}
	writeJSON(w, http.StatusOK, report)
	return nil
}
