package api

import (
	"context"
	"net/http"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/pool"
)

func poolRoutes() []Route {
	return []Route{
		{
			Method: "GET", Path: "/v1/pools", Name: "pools", Tag: "server", Summary: "What sandboxes are kept running ahead of need, and what use they were",
			Doc: "Whoever creates a sandbox like those of a pool gets one of them, at once. Until then they are in no list, and cannot be used by their ids. " +
				"What is counted is since the server began.",
			Reply: jsonOf[pool.Report](), serve: (*Handler).servePools,
		},
		{
			Method: "POST", Path: "/v1/pools/reserve", Name: "reserve", Tag: "server", Summary: "Set aside a sandbox that is ready",
			Doc: "Of those that are kept running ahead of need, one that is like the body, which names no id. Whoever creates what the body says with the id of the reply " +
				"gets it, within a minute; who comes later has one made. The id is empty if none is ready.",
			Body: jsonOf[atoll.Spec](), Reply: jsonOf[idReply](), serve: (*Handler).serveReserve,
		},
	}
}

func (h *Handler) serveReserve(w http.ResponseWriter, r *http.Request) error {
	var spec atoll.Spec
	if err := h.body(w, r, &spec, true); err != nil {
		return err
	}
	id, err := atoll.Reserve(r.Context(), h.provider, &spec)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, idReply{id})
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

// Pools implements pool.Reporter.
func (c *Client) Pools(ctx context.Context) (pool.Report, error) {
	var report pool.Report
	err := c.call(ctx, call{op: "pools", path: "/v1/pools", reply: &report, most: maxListReply})
	return report, err
}

// Reserve implements atoll.Reserver.
func (c *Client) Reserve(ctx context.Context, spec *atoll.Spec) (string, error) {
	if err := spec.Validate(); err != nil { // the server would see what JSON makes of it
		return "", err
	}
	var reply idReply
	err := c.call(ctx, call{op: "reserve", id: spec.Name, method: "POST", path: "/v1/pools/reserve", body: spec, reply: &reply})
	if atoll.KindOf(err) == atoll.ErrUnsupported {
		return "", nil // by an older server; if it is about spec, Create says so
	}
	return reply.ID, err
}

var (
	_ pool.Reporter  = (*Client)(nil)
	_ atoll.Reserver = (*Client)(nil)
)
