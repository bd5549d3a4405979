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
// A unix socket has mode 0600; its directory must exist. Close deletes the socket. Listen replaces
// an existing socket only if no process answers on it. Kinds: ErrInvalid, ErrAlreadyExists (another
// process listens there), ErrUnavailable.
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
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeader         = 64 << 10
)

// Serve serves h on the listeners until ctx ends or one of them fails. It then ends the streams,
// refuses requests of the clients that are connected for up to half a second, lets other requests
// finish for up to 10 seconds, cancels the rest, and closes the listeners and h. When it returns,
// no call to h's provider is in progress, unless a call takes more than 35 seconds to end after it
// was cancelled: then Serve returns ErrTimeout. It returns nil if ctx has ended.
//
// Without tokens in h, Serve returns ErrDenied for any listener except a unix socket and a Pipe.
func Serve(ctx context.Context, h *Handler, listeners ...net.Listener) error {
	defer h.beginClose()
	for _, l := range listeners {
		defer l.Close()
	}
	for _, l := range listeners {
		if !h.Authenticates() && !isPrivate(l) {
			return atoll.Errorf("serve", l.Addr().String(), atoll.ErrDenied, "a token is needed to serve on %s", l.Addr().Network())
		}
	}
	base, cut := context.WithCancel(context.Background())
	defer cut()
	server := gracefulServer{Server: http.Server{
		Handler:           h,
		BaseContext:       func(net.Listener) context.Context { return base },
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(h.log.Handler(), slog.LevelDebug),
	}}
	failed := server.serveListeners(listeners)
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	return errors.Join(err, server.shutDown(h, cut))
}

// isPrivate reports whether only the user of the server can connect.
func isPrivate(l net.Listener) bool {
	network := l.Addr().Network()
	return network == "unix" || network == pipeNetwork
}

// NewToken returns a token with 32 random bytes.
func NewToken() string {
	var b [32]byte
	rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// LoadToken reads the token in a file. The file must belong to the user of this process, and only
// its owner may have access. If there is no file, LoadToken creates one with mode 0600 and returns
// made, so that the caller can show the token. Kinds: ErrDenied (other users can read the file or
// own it), ErrInvalid (the file is empty or not a regular file), ErrInternal.
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

// socketTakenError returns the error for a socket that another process listens on.
func socketTakenError(path string) error {
	return atoll.E("listen", path, atoll.ErrAlreadyExists, errors.New("another process listens on it"))
}
