//go:build !unix

package api

import (
	"context"
	"net"

	"github.com/seed46cd37a8/atoll"
)

// listenUnix returns ErrUnsupported, because the mode of a socket does not exclude other users on
// this system.
func listenUnix(_ context.Context, path string) (net.Listener, error) {
	return nil, atoll.Errorf("listen", path, atoll.ErrUnsupported, "unix sockets are not private on this system: use tcp with a token")
}

// hasPending reports whether a client has made a connection that l has not accepted yet, which is
// not known on this system.
func hasPending(net.Listener) bool { return false }
