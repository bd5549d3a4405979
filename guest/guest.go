// Package guest is what Atoll runs inside a sandbox, where it cannot reach in
// from outside: it serves the API of one sandbox, which is the system that it
// finds itself in, over a single connection that carries many requests.
package guest

import (
	"cmp"
	"context"
	"errors"
	"io"
	"iter"
	"net"
	"net/http"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/api"
	"github.com/seed46cd37a8/atoll/internal/dirfs"
)

// ID is the id that the one sandbox of a guest has.
const ID = "00000000000000000000000000000000"

// caps are those of the system around the guest, as seen through it.
var caps = atoll.Caps{Durable: atoll.DurableNone, Files: true, Dial: true}

// Serve answers requests on conn until it ends. It serves files as opts says
// and TCP ports of the system that it runs in.
func Serve(conn io.ReadWriteCloser, opts dirfs.Options) error {
	session, err := yamux.Server(conn, config())
	if err != nil {
		return err
	}
	defer session.Close()
	handler, err := api.NewHandler(system{self{dirfs.System(opts)}}, api.Options{})
	if err != nil {
		return err
	}
	defer handler.Close()
	server := &http.Server{Handler: handler}
	defer server.Close()
	if err := server.Serve(listener{session}); !errors.Is(err, io.EOF) && !errors.Is(err, yamux.ErrSessionShutdown) {
		return err
	}
	return nil
}

// A Client is the host's end of a guest.
type Client struct {
	session *yamux.Session
	client  *api.Client
}

// Connect returns a client for the guest at the other end of conn, which it
// owns from then on. It does not wait for the guest.
func Connect(ctx context.Context, conn io.ReadWriteCloser) (*Client, error) {
	session, err := yamux.Client(conn, config())
	if err != nil {
		conn.Close()
		return nil, err
	}
	info := system{}.Info()
	client, err := api.NewClient(ctx, api.ClientOptions{
		Info: &info,
		Dial: func(context.Context) (net.Conn, error) { return open(session) },
	})
	if err != nil {
		session.Close()
		return nil, err
	}
	return &Client{session, client}, nil
}

// Sandbox is the system around the guest.
func (c *Client) Sandbox() atoll.Sandbox { return c.client.Sandbox(ID) }

// Closed reports whether the guest has gone.
func (c *Client) Closed() bool { return c.session.IsClosed() }

// Close ends the connection, and with it the guest.
func (c *Client) Close() error {
	return errors.Join(c.client.Close(), c.session.Close())
}

// A stream is a yamux stream, whose Close lets the other side go on sending:
// what other connections call CloseWrite.
type stream struct{ *yamux.Stream }

func (s stream) CloseWrite() error { return s.Stream.Close() }

func open(session *yamux.Session) (net.Conn, error) {
	s, err := session.OpenStream()
	if err != nil {
		return nil, err
	}
	return stream{s}, nil
}

type listener struct{ *yamux.Session }

func (l listener) Accept() (net.Conn, error) {
	s, err := l.AcceptStream()
	if err != nil {
		return nil, err
	}
	return stream{s}, nil
}

// config suits a connection between two processes of one machine: nothing is
// lost on the way, and the window is large enough to keep both busy.
func config() *yamux.Config {
	c := yamux.DefaultConfig()
	c.EnableKeepAlive = false
	c.MaxStreamWindowSize = 4 << 20
	c.StreamOpenTimeout = 0
	c.LogOutput = io.Discard
	return c
}

// system is a Provider whose one sandbox is the system that it runs in.
type system struct{ sandbox self }

func (s system) Info() atoll.Info { return atoll.Info{Name: "guest", Caps: caps} }

func (s system) Get(_ context.Context, id string) (atoll.Sandbox, error) {
	if id != ID {
		return nil, atoll.E("get", id, atoll.ErrNotFound, nil)
	}
	return s.sandbox, nil
}

func (s system) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	st, _ := s.sandbox.Status(ctx)
	if !f.Match(st) {
		return nil, nil
	}
	return []atoll.Status{st}, nil
}

func (s system) Create(context.Context, *atoll.Spec) (atoll.Sandbox, error) {
	return nil, unsupported("create")
}

func (s system) Watch(context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) { yield(atoll.Event{}, unsupported("watch")) }
}

func (s system) Close() error { return nil }

func unsupported(op string) error {
	return atoll.Errorf(op, "", atoll.ErrUnsupported, "not through the guest: ask whoever runs the sandbox")
}

// self is the system that the guest runs in.
type self struct{ files *dirfs.FS }

func (s self) ID() string { return ID }

func (s self) Status(context.Context) (atoll.Status, error) {
	return atoll.Status{ID: ID, Provider: "guest", State: atoll.StateRunning, Ready: true, Caps: caps}, nil
}

func (s self) Files() atoll.FS { return s.files }

func (s self) Dial(ctx context.Context, port int) (net.Conn, error) {
	if port < 1 || port > 65535 {
		return nil, atoll.Errorf("dial", ID, atoll.ErrInvalid, "port %d: must be within 1..65535", port)
	}
	var d net.Dialer
	var first error
	for _, loopback := range []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback} {
		conn, err := d.DialContext(ctx, "tcp", (&net.TCPAddr{IP: loopback, Port: port}).String())
		if err == nil {
			return conn, nil
		}
		first = cmp.Or(first, err)
	}
	return nil, atoll.Errorf("dial", ID, atoll.ErrUnavailable, "nothing listens on port %d in the sandbox: %w", port, first)
}

func (s self) Start(context.Context) error               { return nil }
func (s self) Stop(context.Context, time.Duration) error { return unsupported("stop") }
func (s self) Exec(context.Context, *atoll.Command) (atoll.Process, error) {
	return nil, unsupported("exec")
}
func (s self) Process(context.Context, string) (atoll.Process, error) {
	return nil, unsupported("process")
}
func (s self) Remove(context.Context, ...atoll.RemoveOption) error { return unsupported("remove") }

var (
	_ atoll.Provider = system{}
	_ atoll.Filer    = self{}
	_ atoll.Dialer   = self{}
)
