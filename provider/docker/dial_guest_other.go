//go:build !linux

package docker

import (
	"context"
	"errors"
	"net"
)

// dialGuest is for engines on the same machine, whose containers have Linux.
func (p *Provider) dialGuest(context.Context, int) (net.Conn, error) {
	return nil, errors.ErrUnsupported
}
