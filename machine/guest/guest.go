// Package guest is the program that Atoll runs inside a sandbox which it cannot access from
// outside: it serves the API of one sandbox, the system around it, over a single connection that
// carries many requests. Each request of its host has the sandbox's id.
package guest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/dirfs"
	"github.com/seed46cd37a8/atoll/internal/mux"
	"github.com/seed46cd37a8/atoll/server/api"
	"github.com/seed46cd37a8/atoll/server/api/client"
)

// guestCaps are the capabilities of the system around the guest.
var guestCaps = atoll.Caps{Durable: atoll.DurableNone, Files: true, Dial: true}

// Serve answers requests on conn until it ends. It serves files according to opts, and TCP ports of
// the system around it.
func Serve(conn io.ReadWriteCloser, opts dirfs.Options) error {
	handler, err := api.NewHandler(system{dirfs.System(opts)}, api.Options{})
	if err != nil {
		return err
	}
	defer handler.Close()
	return serveConn(context.Background(), conn, 0, handler, handler)
}

// The times that a guest waits at its end: for answers to requests, and for their delivery.
const (
	answerTime   = 2 * time.Second
	deliveryTime = time.Second
)

// serveConn answers requests on conn until conn or ctx ends, or the host has been silent for that
// long, if that is not 0. face is the handler or a wrapper of it.
func serveConn(ctx context.Context, conn io.ReadWriteCloser, silence time.Duration, handler *api.Handler, face http.Handler) error {
	session, err := mux.Server(conn, silence)
	if err != nil {
		return err
	}
	defer session.Close()
	server := &http.Server{Handler: face}
	defer server.Close()
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		grace, cancel := context.WithTimeout(context.Background(), answerTime)
		defer cancel()
		_ = server.Shutdown(grace) // later answers are cut off
		_ = handler.Close()        // ends streams, whose processes have ended
		if c, ok := conn.(interface{ CloseWrite() error }); ok && c.CloseWrite() == nil {
			select { // the other side closes when it has read everything
			case <-session.Done():
			case <-time.After(deliveryTime):
			}
		}
		_ = session.Close()
	})
	defer func() {
		if !stop() {
			<-ended
		}
	}()
	if err := server.Serve(session.Listen()); !errors.Is(err, http.ErrServerClosed) && !hostGone(err) {
		return err
	}
	return nil
}

// hostGone reports whether err is the error of a connection whose other end was closed, or whose
// owner has died.
func hostGone(err error) bool {
	return mux.IsEnd(err) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

// A Client is the host's end of a guest.
type Client struct {
	session *mux.Session
	client  *client.Client
	id      string
}

// Connect returns a client for the guest at the other end of conn, which it owns from then on, in
// the sandbox with that id. It does not wait for the guest.
func Connect(ctx context.Context, conn io.ReadWriteCloser, id string) (*Client, error) {
	session, err := mux.Client(conn)
	if err != nil {
		return nil, err
	}
	info := system{}.Info()
	client, err := client.New(ctx, client.Options{
		Info: &info,
		Dial: func(context.Context) (net.Conn, error) { return session.Open() },
	})
	if err != nil {
		session.Close()
		return nil, err
	}
	return &Client{session, client, id}, nil
}

// Acquaint is like Connect, but asks the guest whether its sandbox has this id; another id is an
// error. It blocks until the guest answers, or ctx ends. After an error, conn is closed.
func Acquaint(ctx context.Context, conn io.ReadWriteCloser, id string) (*Client, error) {
	g, err := Connect(ctx, conn, id)
	if err != nil {
		return nil, err
	}
	st, err := g.Sandbox().Status(ctx)
	if err == nil && st.ID != id {
		err = fmt.Errorf("connected to the guest of another sandbox, %s", st.ID)
	}
	if err != nil {
		_ = g.Close()
		return nil, err
	}
	return g, nil
}

// Sandbox returns the system around the guest.
func (c *Client) Sandbox() atoll.Sandbox { return c.client.Sandbox(c.id) }

// Closed reports whether the guest is gone.
func (c *Client) Closed() bool { return c.session.Closed() }

// Done returns a channel that is closed when the guest is gone, or the connection was closed.
func (c *Client) Done() <-chan struct{} { return c.session.Done() }

// Close ends the connection, and with it the guest.
func (c *Client) Close() error {
	return errors.Join(c.client.Close(), c.session.Close())
}

// system is a Provider whose one sandbox, under any id, is the system around the guest.
type system struct{ files *dirfs.FS }

func (s system) Info() atoll.Info { return atoll.Info{Name: "guest", Caps: guestCaps} }

func (s system) Get(_ context.Context, id string) (atoll.Sandbox, error) {
	return self{id, s.files}, nil
}

// List returns nothing: the guest has created no sandbox.
func (s system) List(context.Context, atoll.Filter) ([]atoll.Status, error) { return nil, nil }

func (s system) Create(context.Context, *atoll.Spec) (atoll.Sandbox, error) {
	return nil, unsupportedError("create", "")
}

func (s system) Watch(context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) { yield(atoll.Event{}, unsupportedError("watch", "")) }
}

func (s system) Close() error { return nil }

func unsupportedError(op, id string) error {
	return atoll.Errorf(op, id, atoll.ErrUnsupported, "the guest does not support this: use the provider of the sandbox")
}

// self is the system around the guest, as a sandbox.
type self struct {
	id    string
	files *dirfs.FS
}

func (s self) ID() string { return s.id }

func (s self) Status(context.Context) (atoll.Status, error) {
	return atoll.Status{ID: s.id, Provider: "guest", State: atoll.StateRunning, Ready: true, Caps: guestCaps}, nil
}

func (s self) Files() atoll.FS { return s.files }

func (s self) Dial(ctx context.Context, port int) (net.Conn, error) {
	if port < 1 || port > 65535 {
		return nil, atoll.Errorf("dial", s.id, atoll.ErrInvalid, "port %d: must be within 1..65535", port)
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
	return nil, atoll.Errorf("dial", s.id, atoll.ErrUnavailable, "nothing listens on port %d in the sandbox: %w", port, first)
}

func (s self) Start(context.Context) error               { return nil }
func (s self) Stop(context.Context, time.Duration) error { return unsupportedError("stop", s.id) }
func (s self) Exec(context.Context, *atoll.Command) (atoll.Process, error) {
	return nil, unsupportedError("exec", s.id)
}
func (s self) Process(context.Context, string) (atoll.Process, error) {
	return nil, unsupportedError("process", s.id)
}
func (s self) Remove(context.Context, ...atoll.RemoveOption) error {
	return unsupportedError("remove", s.id)
}

var (
	_ atoll.Provider = system{}
	_ atoll.Filer    = self{}
	_ atoll.Dialer   = self{}
)
