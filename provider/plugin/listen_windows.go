package plugin

import (
	"context"
	"net"
)

// listenSocket listens on the Unix socket at path. The directory for temporary files is its user's
// own: no other user can connect.
func listenSocket(ctx context.Context, path string) (net.Listener, error) {
	var lc net.ListenConfig
	return lc.Listen(ctx, "unix", path)
}
