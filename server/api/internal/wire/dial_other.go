//go:build !unix

package wire

import (
	"context"
	"net"
)

// DialUnix connects to the unix socket at path.
func DialUnix(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", path)
}
