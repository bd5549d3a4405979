//go:build !unix

package api

import (
	"context"
	"net"
)

// dialUnix connects to the unix socket at path.
func dialUnix(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", path)
}
