package client

import (
	"context"
	"net"
	"net/url"
	"strconv"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// Dial implements atoll.Dialer.
func (s *sandbox) Dial(ctx context.Context, port int) (net.Conn, error) {
	q := call{op: "dial", id: s.id, path: s.path + "/dial", query: url.Values{"port": {strconv.Itoa(port)}}}
	return s.c.openTunnel(ctx, q)
}

func (c *Client) openTunnel(ctx context.Context, q call) (net.Conn, error) {
	w, err := c.upgradeConn(ctx, q, wire.ProtocolTCP)
	if err != nil {
		return nil, err
	}
	return w, nil
}

var _ atoll.Dialer = (*sandbox)(nil)
