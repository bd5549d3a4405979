package gateway

import (
	"bytes"
	"errors"
	"io"
	"net"
	"slices"
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
	ServerName string   // that a TLS client asks for, in lower case; "" if it asks for none
	Protocols  []string // that a TLS client offers to speak in TLS; none if it does not say
	Client     []byte   // what the client has sent
	Server     []byte   // what the server has sent
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
	if err != nil || len(h.Server) > 0 && !isSettings(h.Server) {
		return h, err
	}
	if len(h.Client) == 0 && len(h.Server) == 0 { // one side has ended
		h.Protocol = Unclear
		return h, nil
	}
	// A deadline that cannot be set belongs to a connection that is over.
	_ = client.SetReadDeadline(time.Now().Add(lineTimeout))
	err = h.readClient(client)
	_ = client.SetReadDeadline(time.Time{})
	return h, err
}

// isSettings reports whether a server of HTTP/2 has spoken first.
func isSettings(b []byte) bool {
	const header, settings = 9, 4
	return len(b) >= header && b[3] == settings && bytes.Equal(b[5:header], make([]byte, 4))
}

// readFirst returns what the first side to speak says. It is empty if the first event is the end of a side.
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

// methods are the methods of HTTP that are enough to recognise a request by. OPTIONS is not: RTSP has it.
var methods = []string{"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "TRACE", "PATCH"}

// protocolOf returns the protocol of a client that has sent b. It is strict: servers take more for TLS and for HTTP than the standards
// allow, and a connection that is neither is not checked.
func protocolOf(b []byte) Protocol {
	if len(b) == 0 {
		return Unclear
	}
	if p, binary := protocolOfRecord(b); binary {
		return p
	}
	line, _, whole := bytes.Cut(bytes.TrimLeft(b, " \t\v\f\r\n"), []byte("\n"))
	method, rest := line, []byte(nil)
	// Servers split a line at more than spaces.
	if i := bytes.IndexFunc(line, func(r rune) bool { return r <= ' ' || r >= 0x7f }); i >= 0 {
		method, rest = line[:i], line[i:]
	}
	switch {
	case len(rest) > 0 && slices.Contains(methods, string(method)),
		string(method) == "PROXY" && len(rest) > 0: // the header of a proxy, after which a server takes anything
		return HTTP
	case len(line) > 0 && !isToken(line[0]), bytes.IndexByte(line, 0) >= 0:
		return Other
	case !whole:
		return Unclear
	case bytes.Contains(bytes.ToUpper(rest), []byte("HTTP/")):
		return HTTP
	}
	return Other
}

// protocolOfRecord returns the protocol of a client that begins with a byte that no text has, and whether it does.
func protocolOfRecord(b []byte) (p Protocol, binary bool) {
	switch {
	case bytes.HasPrefix([]byte(proxySignature), b[:min(len(b), len(proxySignature))]):
		// It consists of ends of lines and the header of a proxy, in its second version.
		if len(b) < len(proxySignature) {
			return Unclear, true
		}
		return HTTP, true
	case b[0] >= firstRecord && b[0] <= lastRecord:
		// Some servers ignore the version of a record, and warnings before a ClientHello.
		if len(b) == 1 {
			return Unclear, true
		}
		if b[1] < 0x10 {
			return TLS, true
		}
		return Other, true
	case b[0]&0x80 != 0:
		// A ClientHello in the form of SSL 2 has no name.
		if len(b) < 4 {
			return Unclear, true
		}
		if b[2] == 1 && b[3] == majorVersion {
			return TLS, true
		}
		return Other, true
	}
	return Other, false
}

// proxySignature is the beginning of the second version of the header of a proxy.
const proxySignature = "\r\n\r\n\x00\r\nQUIT\n"

// isToken reports whether a method can begin with c.
func isToken(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}
