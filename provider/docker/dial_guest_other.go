//go:build !linux

package docker

import (
	"context"
	"errors"
	"net"
)

// dialGuest returns ErrUnsupported: containers run Linux, so no engine shares its kernel with
// this system.
func (p *Provider) dialGuest(context.Context, int) (net.Conn, error) {
	return nil, errors.ErrUnsupported
}
