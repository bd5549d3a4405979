package client

import (
	"context"
	"errors"
	"time"

	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// A dialError means that no connection was made, so nothing was sent.
type dialError struct{ error }

func (e dialError) Unwrap() error { return e.error }

// A brokenConnError means that an established connection broke.
type brokenConnError struct{ error }

func (e brokenConnError) Unwrap() error { return e.error }

// An outcome tells how much of a failed request the server may have done.
type outcome int

const (
	outcomeFinal   outcome = iota // the server answered, or the caller gave up
	outcomeUndone                 // the server did nothing
	outcomeUnknown                // the server did all, some or nothing of it
)

// outcomeOf returns the outcome of a request that failed with err.
func outcomeOf(err error) outcome {
	if err == nil {
		return outcomeFinal
	}
	if _, ok := errors.AsType[dialError](err); ok {
		return outcomeUndone
	}
	if remote, ok := errors.AsType[*wire.RemoteError](err); ok {
		switch {
		case remote.Closing == wire.ClosingUndone:
			return outcomeUndone
		case remote.Closing != "" || remote.Proxy:
			return outcomeUnknown
		}
		return outcomeFinal
	}
	if _, ok := errors.AsType[brokenConnError](err); ok && !errors.Is(err, errClientClosed) {
		return outcomeUnknown
	}
	return outcomeFinal
}

// A retrier paces the attempts at one request or stream. It is not safe for concurrent use.
type retrier struct {
	c        *Client
	attempts int
	deadline time.Time // when retrying ends; zero before the first failure
	pause    time.Duration
}

const (
	minRetryPause = 50 * time.Millisecond
	maxRetryPause = 2 * time.Second
)

// allowRetry reports whether a request that failed with err should be sent again. It blocks for the
// pause before the next attempt. idempotent reports whether the request may be done twice.
func (t *retrier) allowRetry(ctx context.Context, err error, idempotent bool) bool {
	t.attempts++
	switch f := outcomeOf(err); {
	case f == outcomeFinal, f == outcomeUnknown && !idempotent:
		return false
	case t.attempts < len(t.c.endpoints) && ctx.Err() == nil:
		return true // at once, since the next attempt goes to another server
	}
	return t.waitPause(ctx)
}

// startClock starts the client's patience and reports whether it had not started yet.
func (t *retrier) startClock() bool {
	if !t.deadline.IsZero() {
		return false
	}
	t.deadline, t.pause = time.Now().Add(t.c.opts.Patience), minRetryPause
	return true
}

// waitPause blocks for a pause that doubles with each call. It returns false if
// Options.Patience is used up, or if ctx or the client has ended.
func (t *retrier) waitPause(ctx context.Context) bool {
	t.startClock()
	if !time.Now().Add(t.pause).Before(t.deadline) {
		return false
	}
	select {
	case <-time.After(t.pause):
	case <-ctx.Done():
		return false
	case <-t.c.ctx.Done():
		return false
	}
	t.pause = min(2*t.pause, maxRetryPause)
	return true
}
