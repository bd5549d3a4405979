package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/api"
)

// A server serves a provider on any number of listeners.
type server struct {
	handler *api.Handler
	http    *http.Server
	serving sync.WaitGroup
	log     *slog.Logger
}

// closeTimeout is how long calls that are under way may take to end when the
// server is closed.
const closeTimeout = 5 * time.Second

func newServer(p atoll.Provider, opts api.Options) (*server, error) {
	h, err := api.NewHandler(p, opts)
	if err != nil {
		return nil, err
	}
	log := opts.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &server{handler: h, http: &http.Server{Handler: h}, log: log}, nil
}

// serve accepts calls from l until close.
func (s *server) serve(l net.Listener) {
	s.serving.Go(func() {
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("serve", "addr", l.Addr().String(), "err", err)
		}
	})
}

// close stops accepting, ends streams, lets other calls end for a while, then
// cuts them off, and returns when all that the server started has ended.
func (s *server) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	var err error
	s.serving.Go(func() {
		if err = s.http.Shutdown(ctx); err != nil {
			err = s.http.Close() // out of patience
		}
	})
	closeErr := s.handler.Close()
	s.serving.Wait()
	return errors.Join(err, closeErr)
}

// A pipeListener accepts connections from its own process.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (l *pipeListener) dial(ctx context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		return ours, nil
	case <-l.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return pipeAddr{} }

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "this process" }
