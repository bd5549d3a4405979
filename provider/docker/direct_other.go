//go:build !linux

package docker

import (
	"context"
	"errors"
	"net"
)

// direct is for engines on the same machine, whose containers have Linux.
func (p *Provider) direct(context.Context, int) (net.Conn, error) { return nil, errors.ErrUnsupported }
