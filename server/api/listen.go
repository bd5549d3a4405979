package api

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// Listen listens on unix:///path or tcp://host:port.
//
// A unix socket is made with mode 0600, in a directory that must exist, and is
// deleted by Close. One that is there already is replaced only when nobody
// answers on it. Kinds: ErrInvalid, ErrAlreadyExists (somebody listens there),
// ErrUnavailable.
func Listen(ctx context.Context, addr string) (net.Listener, error) {
	u, err := url.Parse(addr)
	switch {
	case err != nil:
		return nil, atoll.Errorf("listen", "", atoll.ErrInvalid, "address %w", err)
	case u.Scheme == "unix" && u.Host == "" && u.Path != "":
		return listenUnix(ctx, u.Path)
	case u.Scheme == "tcp" && u.Host != "" && u.Path == "":
		var lc net.ListenConfig
		l, err := lc.Listen(ctx, "tcp", u.Host)
		if err != nil {
			return nil, atoll.E("listen", "", atoll.ErrUnavailable, err)
		}
		return l, nil
	}
	return nil, atoll.Errorf("listen", "", atoll.ErrInvalid, "address %q: write it like unix:///path or tcp://host:port", addr)
}

const (
	shutdownGrace     = 10 * time.Second // for requests in progress
	endGrace          = createGrace      // for those that were cancelled, after that
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeader         = 64 << 10
)

// Serve serves h on the listeners until ctx ends or one of them fails. Then it
// ends the streams, lets other requests in progress finish, for 10 seconds at
// most, cancels those that have not, and closes listeners and h. When it returns
// no call to h's provider is in progress, unless one takes more than 35 seconds
// to end once it is cancelled: that is ErrTimeout. It returns nil when ctx has
// ended.
//
// It refuses, with ErrDenied, to serve a handler that asks for no token on
// anything but unix sockets and a Pipe.
func Serve(ctx context.Context, h *Handler, listeners ...net.Listener) error {
	defer h.end()
	for _, l := range listeners {
		defer l.Close()
	}
	for _, l := range listeners {
		if !h.Authenticates() && !private(l) {
			return atoll.Errorf("serve", l.Addr().String(), atoll.ErrDenied, "a token is needed to serve on %s", l.Addr().Network())
		}
	}
	base, cut := context.WithCancel(context.Background())
	defer cut()
	server := &http.Server{
		Handler:           h,
		BaseContext:       func(net.Listener) context.Context { return base },
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(h.log.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { failed <- server.Serve(l) }()
	}
	var err error
	left := len(listeners)
	select {
	case <-ctx.Done():
	case err = <-failed:
		left--
	}
	late := shut(server, h, cut)
	for range left {
		<-failed
	}
	return errors.Join(err, late)
}

// private reports whether only the user that runs the server can connect.
func private(l net.Listener) bool {
	network := l.Addr().Network()
	return network == "unix" || network == pipeNetwork
}

// shut ends the server: nobody is let in and streams are ended, then what has
// not finished in time is cancelled, and cut off from its client.
func shut(server *http.Server, h *Handler, cut func()) error {
	h.end()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ctx, cancel := context.WithTimeout(context.Background(), shutdownGrace)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			cut()
			_ = server.Close()
		}
		h.requests.Wait()
	}()
	select {
	case <-ended:
		return nil
	case <-time.After(shutdownGrace + endGrace):
		return atoll.Errorf("serve", "", atoll.ErrTimeout, "a call is still in progress %s after it was cancelled", endGrace)
	}
}

// NewToken returns a token of 32 random bytes.
func NewToken() string {
	var b [32]byte
	rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// LoadToken reads the token in a file, which must belong to the user that runs
// this, and be readable by its owner only. When there is no such file it makes
// one, with mode 0600, and says so: that is the moment to show the token. Kinds:
// ErrDenied (others may read it, or made it), ErrInvalid (it is empty or no
// file), ErrInternal.
func LoadToken(path string) (token string, made bool, err error) {
	const op, most = "token", 4 << 10
	data, made, err := fsutil.LoadSecret(op, path, most, func() ([]byte, error) { return []byte(NewToken() + "\n"), nil })
	if err != nil {
		return "", false, err
	}
	token = strings.TrimSpace(string(data))
	if token == "" {
		return "", false, atoll.Errorf(op, path, atoll.ErrInvalid, "the file is empty: delete it to get a new token")
	}
	return token, made, nil
}

// errTaken is why a socket is not replaced.
func errTaken(path string) error {
	return atoll.E("listen", path, atoll.ErrAlreadyExists, errors.New("somebody listens on it already"))
}
