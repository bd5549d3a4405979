package gateway

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"time"
)

// A Protocol says how a connection begins.
type Protocol int

// The protocols. A connection is Other if the server speaks first, too. It is Unclear if the client has stopped before it is clear that it
// does not begin like TLS or HTTP.
const (
	Other Protocol = iota
	Unclear
	TLS
	HTTP
)

// A Head is the beginning of a connection.
type Head struct {
	Protocol   Protocol
	ServerName string // that a TLS client asks for, in lower case; "" if it asks for none
	Client     []byte // what the client has sent
	Server     []byte // what the server has sent
}

// From the first byte of a client, its protocol has to be clear within lineTimeout, and its ClientHello to have come within helloTimeout.
const (
	lineTimeout  = time.Second
	helloTimeout = 5 * time.Second
)

// maxLine is the size in bytes of the longest line with which a client begins.
const maxLine = 16 << 10

var (
	errLongLine = errors.New("the connection begins with a long line")
	errLate     = errors.New("the connection is TLS or HTTP after all")
)

// ReadHead waits until the client or the server speaks, and returns the head of their connection. It fails if the client begins with a line
// that is too long or like TLS without going on like it, and if a connection is reset.
func ReadHead(client, server net.Conn) (Head, error) {
	h, err := readFirst(client, server)
	if err != nil || len(h.Client) == 0 || len(h.Server) > 0 {
		return h, err
	}
	// A deadline that cannot be set belongs to a connection that is over.
	_ = client.SetReadDeadline(time.Now().Add(lineTimeout))
	err = h.readClient(client)
	_ = client.SetReadDeadline(time.Time{})
	return h, err
}

// readFirst returns what the first side to speak says; nothing if that ends its side instead.
func readFirst(client, server net.Conn) (Head, error) {
	type read struct {
		data []byte
		err  error
	}
	past := time.Unix(1, 0)
	fromServer := make(chan read, 1)
	go func() {
		data, err := readSome(server)
		_ = client.SetReadDeadline(past)
		fromServer <- read{data, err}
	}()
	data, err := readSome(client)
	_ = server.SetReadDeadline(past)
	s := <-fromServer
	h := Head{Client: data, Server: s.data}
	for _, err := range []error{err, s.err} {
		if err != nil && err != io.EOF && !isTimeout(err) {
			return h, err
		}
	}
	_ = client.SetReadDeadline(time.Time{})
	_ = server.SetReadDeadline(time.Time{})
	return h, nil
}

func readSome(c net.Conn) ([]byte, error) {
	b := make([]byte, 2<<10)
	n, err := c.Read(b)
	return b[:n], err
}

// isTimeout reports whether err is that of a deadline.
func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// readClient reads from the client until its protocol is clear.
func (h *Head) readClient(c net.Conn) error {
	for h.Protocol = protocolOf(h.Client); h.Protocol == Unclear; h.Protocol = protocolOf(h.Client) {
		if len(h.Client) >= maxLine {
			return errLongLine
		}
		more, err := readSome(c)
		h.Client = append(h.Client, more...)
		switch {
		case len(more) > 0 || err == nil:
		case err == io.EOF || isTimeout(err):
			return nil
		default:
			return err
		}
	}
	if h.Protocol != TLS {
		return nil
	}
	_ = c.SetReadDeadline(time.Now().Add(helloTimeout))
	return h.readHello(c)
}

// Watch returns a reader of the client of a connection that is Unclear, of which the server has got the head. It fails when it is clear that
// the connection is TLS or HTTP.
func (h *Head) Watch(client io.Reader) io.Reader { return &watch{client, bytes.Clone(h.Client)} }

type watch struct {
	client io.Reader
	said   []byte // nil when the protocol is clear
}

func (w *watch) Read(p []byte) (int, error) {
	n, err := w.client.Read(p)
	if w.said == nil || n == 0 {
		return n, err
	}
	w.said = append(w.said, p[:n]...)
	switch p := protocolOf(w.said); {
	case p == Other:
		w.said = nil
	case p != Unclear:
		return 0, errLate
	case len(w.said) >= maxLine:
		return 0, errLongLine
	}
	return n, err
}

// methods are the methods of HTTP that are enough to recognise a request by.
var methods = []string{"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"}

// protocolOf returns the protocol of a client that has sent b. A line that could be a request to any server makes it HTTP.
func protocolOf(b []byte) Protocol {
	if len(b) > 0 && b[0] == recordHandshake {
		switch {
		case len(b) == 1:
			return Unclear
		case b[1] == majorVersion:
			return TLS
		}
		return Other
	}
	line, _, whole := bytes.Cut(bytes.TrimLeft(b, " \t\r\n"), []byte("\n"))
	method, rest, found := bytes.Cut(line, []byte(" "))
	switch {
	case bytes.ContainsFunc(method, func(r rune) bool { return r <= ' ' || r >= 0x7f }), bytes.IndexByte(rest, 0) >= 0:
		return Other
	case found && containsMethod(string(method)):
		return HTTP
	case !whole:
		return Unclear
	case found && bytes.Contains(rest, []byte("HTTP/")):
		return HTTP
	}
	return Other
}

func containsMethod(s string) bool {
	for _, m := range methods {
		if strings.EqualFold(s, m) {
			return true
		}
	}
	return false
}
