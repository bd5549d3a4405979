package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	"github.com/coder/websocket"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// maxErrorBody is the largest part of an unsuccessful response that the client reads, in bytes.
const maxErrorBody = 64 << 10

// readError returns the error in the unsuccessful response resp.
func readError(resp *http.Response, op, id string) error {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err != nil && len(body) == 0 {
		return atoll.Errorf(op, id, atoll.ErrUnavailable, "response ended early: %w", brokenConnError{err})
	}
	return wire.DecodeError(resp.StatusCode, body, op, id)
}

// ctxErr returns the error of ctx if ctx has ended and err is not nil, else err.
func ctxErr(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// wrapConnError returns err, an error of the connection and not of the server, as an *atoll.Error.
func (c *Client) wrapConnError(ctx context.Context, op, id string, err error) error {
	if err == nil {
		return nil
	}
	if c.ctx.Err() != nil {
		return atoll.E(op, id, atoll.ErrUnavailable, errClientClosed)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return atoll.E(op, id, atoll.ErrUnavailable, brokenConnError{c.describeLoss(err)})
}

// describeLoss returns err, the error of a broken connection, with a message for people.
func (c *Client) describeLoss(err error) error {
	if u, ok := err.(*url.Error); ok {
		err = u.Err
	}
	server := "the server"
	if c.opts.URL != "" {
		server += " at " + c.opts.URL
	}
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, end) {
			return rewordedError{server + " has gone", err}
		}
	}
	if err.Error() == idleClosedText {
		return rewordedError{server + " has gone", err}
	}
	if closed, ok := errors.AsType[websocket.CloseError](err); ok {
		return rewordedError{strings.TrimSuffix(fmt.Sprintf("%s ended the connection: %s", server, closed.Reason), ": "), err}
	}
	return fmt.Errorf("server at %s: %w", c.serverName, err)
}

// idleClosedText is the text of an unexported error of net/http. It means that the server closed an
// idle connection just before the client wrote the request.
const idleClosedText = "http: server closed idle connection"

// A rewordedError replaces the message of its cause.
type rewordedError struct {
	text  string
	cause error
}

func (e rewordedError) Error() string { return e.text }

func (e rewordedError) Unwrap() error { return e.cause }
