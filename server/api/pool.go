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
			Method: "GET", Path: "/v1/pools", Name: "pools", Tag: "server", Summary: "Report on the pools of warm sandboxes",
			Doc: "A create whose spec matches a pool gets a warm sandbox at once. Until then no list has the warm sandboxes, and their ids are unusable. " +
				"The counters start with the server.",
			Reply: jsonOf[pool.Report](), serve: (*Handler).servePools,
		},
		{
			Method: "POST", Path: "/v1/pools/reserve", Name: "reserve", Tag: "server", Summary: "Reserve a warm sandbox",
			Doc: "The body is a spec without an id. A create with this spec and the id in the reply, within a minute, gets the reserved sandbox; " +
				"a later one creates a new sandbox. The id is empty if no warm sandbox is ready.",
			Body: jsonOf[atoll.Spec](), Reply: jsonOf[idReply](), serve: (*Handler).serveReserve,
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
	err := c.callServer(ctx, call{op: "pools", path: "/v1/pools", reply: &report, replyLimit: maxListReply})
	return report, err
}

// Reserve implements atoll.Reserver.
func (c *Client) Reserve(ctx context.Context, spec *atoll.Spec) (string, error) {
	if err := spec.Validate(); err != nil { // JSON would change invalid values before the server validates them
		return "", err
	}
	var reply idReply
	err := c.callServer(ctx, call{op: "reserve", id: spec.Name, method: "POST", path: "/v1/pools/reserve", body: spec, reply: &reply})
	if atoll.KindOf(err) == atoll.ErrUnsupported {
		return "", nil // an older server; if spec is unsupported, Create returns the error
	}
	return reply.ID, err
}

var (
	_ pool.Reporter  = (*Client)(nil)
	_ atoll.Reserver = (*Client)(nil)
)
