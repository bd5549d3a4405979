//go:build unix

package plugin

import (
	"context"
	"net"

	"github.com/seed46cd37a8/atoll/server/api"
)

// listenSocket listens on the Unix socket at path, to which only this user can connect.
func listenSocket(ctx context.Context, path string) (net.Listener, error) {
	return api.Listen(ctx, "unix://"+path)
}
