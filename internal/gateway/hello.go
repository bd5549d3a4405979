package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
)

// The types of TLS records, and the major version in a ClientHello.
const (
	firstRecord  = 20
	lastRecord   = 23
	majorVersion = 3
)

// maxHello is the size in bytes of the longest ClientHello.
const maxHello = 64 << 10

// errHello is the error for a client that begins like TLS and does not go on like it.
var errHello = errors.New("the connection begins like TLS, but without a valid ClientHello")

// readHello reads the rest of a ClientHello, of which h has the beginning.
func (h *Head) readHello(c net.Conn) error {
	var seen bytes.Buffer
	source := io.TeeReader(io.MultiReader(bytes.NewReader(h.Client), io.LimitReader(c, maxHello)), &seen)
	said := false
	config := &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		said, h.ServerName, h.Protocols = true, strings.ToLower(hello.ServerName), hello.SupportedProtos
		return nil, errHello // for the handshake is the server's
	}}
	_ = tls.Server(listener{c, source}, config).HandshakeContext(context.Background())
	h.Client = seen.Bytes()
	if !said {
		return errHello
	}
	h.Protocol = TLS
	return nil
}

// A listener is a connection on which a server hears the client, and says nothing.
type listener struct {
	net.Conn
	source io.Reader
}

func (l listener) Read(p []byte) (int, error) { return l.source.Read(p) }

func (l listener) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func (l listener) Close() error { return nil }
