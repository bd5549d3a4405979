// Package guest is what Atoll runs inside a sandbox, where it cannot reach in
// from outside: it serves the API of one sandbox, which is the system that it
// finds itself in, over a single connection that carries many requests. Its
// host tells it the sandbox's id, with each request.
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
)

// caps are those of the system around the guest, as seen through it.
var caps = atoll.Caps{Durable: atoll.DurableNone, Files: true, Dial: true}

// Serve answers requests on conn until it ends. It serves files as opts says
// and TCP ports of the system that it runs in.
func Serve(conn io.ReadWriteCloser, opts dirfs.Options) error {
	handler, err := api.NewHandler(system{dirfs.System(opts)}, api.Options{})
	if err != nil {
		return err
	}
	defer handler.Close()
	return serve(context.Background(), conn, 0, handler, handler)
}

// What may still be said when a guest ends: the answers to requests that have
// been made, and these on their way.
const (
	answerTime   = 2 * time.Second
	deliveryTime = time.Second
)

// serve answers requests on conn until it ends, or ctx does, or nobody has answered for
// silence if that is not 0. face is the handler, or what is around it.
func serve(ctx context.Context, conn io.ReadWriteCloser, silence time.Duration, handler *api.Handler, face http.Handler) error {
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
		_ = server.Shutdown(grace) // what is not answered by then is cut off
		_ = handler.Close()        // streams, which processes that have ended have ended too
		if c, ok := conn.(interface{ CloseWrite() error }); ok && c.CloseWrite() == nil {
			select { // the other side has read it all when it closes, too
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

// hostGone reports whether err is how a connection ends whose other end was
// closed, or whose owner has died.
func hostGone(err error) bool {
	return mux.IsEnd(err) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

// A Client is the host's end of a guest.
type Client struct {
	session *mux.Session
	client  *api.Client
	id      string
}

// Connect returns a client for the guest at the other end of conn, which it
// owns from then on, and which is in the sandbox with that id. It does not wait
// for the guest.
func Connect(ctx context.Context, conn io.ReadWriteCloser, id string) (*Client, error) {
	session, err := mux.Client(conn)
	if err != nil {
		return nil, err
	}
	info := system{}.Info()
	client, err := api.NewClient(ctx, api.ClientOptions{
		Info: &info,
		Dial: func(context.Context) (net.Conn, error) { return session.Open() },
	})
	if err != nil {
		session.Close()
		return nil, err
	}
	return &Client{session, client, id}, nil
}

// Acquaint is Connect that waits for the guest, and asks it whether it is that of
// the sandbox with this id: another one is an error. It blocks until the guest
// answers, or ctx ends. With an error, conn is closed.
func Acquaint(ctx context.Context, conn io.ReadWriteCloser, id string) (*Client, error) {
	g, err := Connect(ctx, conn, id)
	if err != nil {
		return nil, err
	}
	st, err := g.Sandbox().Status(ctx)
	if err == nil && st.ID != id {
		err = fmt.Errorf("it is the guest of %s", st.ID)
	}
	if err != nil {
		_ = g.Close()
		return nil, err
	}
	return g, nil
}

// Sandbox is the system around the guest.
func (c *Client) Sandbox() atoll.Sandbox { return c.client.Sandbox(c.id) }

// Closed reports whether the guest has gone.
func (c *Client) Closed() bool { return c.session.Closed() }

// Done is closed when the guest has gone, or the connection was closed.
func (c *Client) Done() <-chan struct{} { return c.session.Done() }

// Close ends the connection, and with it the guest.
func (c *Client) Close() error {
	return errors.Join(c.client.Close(), c.session.Close())
}

// system is a Provider whose one sandbox, whatever id it is asked for, is the
// system that it runs in.
type system struct{ files *dirfs.FS }

func (s system) Info() atoll.Info { return atoll.Info{Name: "guest", Caps: caps} }

func (s system) Get(_ context.Context, id string) (atoll.Sandbox, error) {
	return self{id, s.files}, nil
}

// List is empty: the guest has made no sandbox.
func (s system) List(context.Context, atoll.Filter) ([]atoll.Status, error) { return nil, nil }

func (s system) Create(context.Context, *atoll.Spec) (atoll.Sandbox, error) {
	return nil, unsupported("create", "")
}

func (s system) Watch(context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) { yield(atoll.Event{}, unsupported("watch", "")) }
}

func (s system) Close() error { return nil }

func unsupported(op, id string) error {
	return atoll.Errorf(op, id, atoll.ErrUnsupported, "not through the guest: ask whoever runs the sandbox")
}

// self is the system that the guest runs in.
type self struct {
	id    string
	files *dirfs.FS
}

func (s self) ID() string { return s.id }

func (s self) Status(context.Context) (atoll.Status, error) {
	return atoll.Status{ID: s.id, Provider: "guest", State: atoll.StateRunning, Ready: true, Caps: caps}, nil
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
func (s self) Stop(context.Context, time.Duration) error { return unsupported("stop", s.id) }
func (s self) Exec(context.Context, *atoll.Command) (atoll.Process, error) {
	return nil, unsupported("exec", s.id)
}
func (s self) Process(context.Context, string) (atoll.Process, error) {
	return nil, unsupported("process", s.id)
}
func (s self) Remove(context.Context, ...atoll.RemoveOption) error {
	return unsupported("remove", s.id)
}

var (
	_ atoll.Provider = system{}
	_ atoll.Filer    = self{}
	_ atoll.Dialer   = self{}
)
