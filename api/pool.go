package api

import (
	"context"
	"net/http"

	"github.com/seed46cd37a8/atoll"
)

func poolRoutes() []Route {
	return []Route{{
		Method: "GET", Path: "/v1/pools", Name: "pools", Tag: "server", Summary: "What sandboxes are kept running ahead of need, and what use they were",
		Doc: "Whoever creates a sandbox like those of a pool gets one of them, at once. Until then they are in no list, and cannot be used by their ids. " +
			"What is counted is since the server began.",
		Reply: jsonOf[atoll.PoolReport](), serve: (*Handler).servePools,
	}}
}

func (h *Handler) servePools(w http.ResponseWriter, r *http.Request) error {
	report, err := atoll.Pools(r.Context(), h.provider)
	if err != nil {
		return err
	}
	if report.Pools == nil {
		report.Pools = []atoll.Pool{}
	}
	writeJSON(w, http.StatusOK, report)
	return nil
}

// Pools implements atoll.PoolKeeper.
func (c *Client) Pools(ctx context.Context) (atoll.PoolReport, error) {
	var report atoll.PoolReport
	err := c.call(ctx, call{op: "pools", path: "/v1/pools", reply: &report, most: maxListReply})
	return report, err
}

var _ atoll.PoolKeeper = (*Client)(nil)
