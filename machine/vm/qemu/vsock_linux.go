package qemu

import (
	"net"

	"github.com/mdlayher/vsock"
)

// dialVsock connects to a port of a guest by the kernel's vsock.
func dialVsock(cid, port uint32) (net.Conn, error) { return vsock.Dial(cid, port, nil) }
