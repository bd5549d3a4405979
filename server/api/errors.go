package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seed46cd37a8/atoll"
)

// A wireError is an error on the wire: the body of every answer that is not a
// success, the data of an "error" event, the error of a stream message.
type wireError struct {
	Op        string       `json:"op,omitempty"`
	ID        string       `json:"id,omitempty"`
	Kind      atoll.Kind   `json:"kind"`
	Message   string       `json:"message,omitempty"`    // the cause; absent when the kind says it all
	Also      []atoll.Kind `json:"also,omitempty"`       // kinds of the cause, where they are others
	Closing   string       `json:"closing,omitempty"`    // the server is, and has done nothing (undone), or what was begun goes on (detached)
	RequestID string       `json:"request_id,omitempty"` // to find it in the server's log
	// RetryAfter is in how many seconds it may be worth trying again, as in the header;
	// absent where that is not known.
	RetryAfter int `json:"retry_after,omitempty"`
}

// What a server that is closing has done with a request. Another one, or this one later,
// can be asked.
const (
	closingUndone   = "undone"
	closingDetached = "detached"
)

const maxErrorMessage = 16 << 10

func encodeError(err error, requestID string) wireError {
	w := wireError{Kind: atoll.KindOf(err), RequestID: requestID}
	if e, ok := err.(*atoll.Error); ok {
		w.Op, w.ID = e.Op, e.ID
		if e.Err != nil {
			w.Message = e.Err.Error()
		}
	} else if _, ok := err.(atoll.Kind); !ok {
		w.Message = err.Error()
	}
	if after, known := atoll.RetryAfter(err); known {
		w.RetryAfter = max(1, int(math.Ceil(after.Seconds())))
	}
	if len(w.Message) > maxErrorMessage {
		w.Message = w.Message[:maxErrorMessage]
	}
	switch {
	case errors.Is(err, errDetached):
		w.Closing = closingDetached
	case errors.Is(err, errClosing):
		w.Closing = closingUndone
	}
	for _, k := range atoll.Kinds() {
		if k != w.Kind && !w.Kind.Is(k) && errors.Is(err, k) {
			w.Also = append(w.Also, k)
		}
	}
	return w
}

// err is the error that w stands for, indistinguishable by errors.Is from the
// one it was made of as far as kinds and the standard sentinels go. op and id
// are the caller's, for a w that has none.
func (w wireError) err(op, id string) error {
	e := &atoll.Error{Op: w.Op, ID: w.ID, Kind: w.Kind}
	if e.Op == "" {
		e.Op, e.ID = op, id
	}
	if e.Kind == "" {
		e.Kind = atoll.ErrInternal
	}
	if w.Message != "" || len(w.Also) > 0 || w.Closing != "" {
		e.Err = &remoteError{message: w.Message, also: w.Also, kind: e.Kind, closing: w.Closing}
	}
	if w.RetryAfter > 0 {
		cause := e.Err
		if cause == nil {
			cause = e.Kind
		}
		e.Err = atoll.WithRetryAfter(cause, time.Duration(w.RetryAfter)*time.Second)
	}
	return e
}

// A remoteError is a cause that happened on the other side.
type remoteError struct {
	message string
	kind    atoll.Kind
	also    []atoll.Kind
	closing string
	proxy   bool // it comes from one before the server
}

func (e *remoteError) Error() string {
	if e.message == "" {
		return e.kind.Error()
	}
	return e.message
}

// Is lets errors.Is find the kinds of the cause.
func (e *remoteError) Is(target error) bool {
	return slices.ContainsFunc(e.also, func(k atoll.Kind) bool { return k == target || k.Is(target) })
}

var statuses = map[atoll.Kind]int{
	atoll.ErrInvalid:         http.StatusBadRequest,
	atoll.ErrDenied:          http.StatusForbidden,
	atoll.ErrNotFound:        http.StatusNotFound,
	atoll.ErrNotExist:        http.StatusNotFound,
	atoll.ErrAlreadyExists:   http.StatusConflict,
	atoll.ErrConflict:        http.StatusConflict,
	atoll.ErrStopped:         http.StatusConflict,
	atoll.ErrExecFailed:      http.StatusUnprocessableEntity,
	atoll.ErrCommandNotFound: http.StatusUnprocessableEntity,
	atoll.ErrExhausted:       http.StatusTooManyRequests,
	atoll.ErrInternal:        http.StatusInternalServerError,
	atoll.ErrUnsupported:     http.StatusNotImplemented,
	atoll.ErrUnavailable:     http.StatusServiceUnavailable,
	atoll.ErrTimeout:         http.StatusGatewayTimeout,
}

// A statusError answers with another status than its kind's.
type statusError struct {
	error
	status int
}

func (e statusError) Unwrap() error { return e.error }

// writeError answers with err.
func writeError(w http.ResponseWriter, requestID string, err error) {
	status, ok := statuses[atoll.KindOf(err)]
	if !ok {
		status = http.StatusInternalServerError
	}
	if s, ok := err.(statusError); ok {
		status, err = s.status, s.error
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="atoll"`)
	}
	wire := encodeError(err, requestID)
	if wire.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(wire.RetryAfter))
	}
	writeJSON(w, status, wire)
}

// maxErrorBody is how much of an answer is read to find the error in it.
const maxErrorBody = 64 << 10

// readError returns the error that resp, which is not a success, stands for.
func readError(resp *http.Response, op, id string) error {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err != nil && len(body) == 0 {
		return atoll.Errorf(op, id, atoll.ErrUnavailable, "the answer broke off: %w", brokenError{err})
	}
	return decodeError(resp.StatusCode, body, op, id)
}

// decodeError finds the error in the body of an answer that is not a success.
// One that does not come from a Handler, but from a proxy before it, gets the
// kind that its status suggests.
func decodeError(status int, body []byte, op, id string) error {
	var w wireError
	if json.Unmarshal(body, &w) == nil && w.Kind != "" {
		return w.err(op, id)
	}
	kind := atoll.ErrInternal
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		kind = atoll.ErrDenied
	case status == http.StatusNotFound || status == http.StatusMethodNotAllowed || status == http.StatusNotImplemented:
		kind = atoll.ErrUnsupported
	case status == http.StatusTooManyRequests:
		kind = atoll.ErrExhausted
	case status >= 400 && status < 500:
		kind = atoll.ErrInvalid
	case status >= 502 && status <= 504:
		kind = atoll.ErrUnavailable
	}
	text := fmt.Sprintf("the server answered %d %s%s", status, http.StatusText(status), snippet(body))
	return atoll.E(op, id, kind, &remoteError{message: text, kind: kind, proxy: kind == atoll.ErrUnavailable})
}

// snippet is the beginning of a body that is text, to be shown in an error as
// part of a line.
func snippet(body []byte) string {
	const most = 200
	if len(body) == 0 || !utf8.Valid(body) {
		return ""
	}
	text := []rune(strings.Join(strings.Fields(string(body)), " "))
	if len(text) > most {
		return ": " + string(text[:most]) + "..."
	}
	return ": " + string(text)
}

// ctxErr prefers the error of a ctx that has ended to what it led to.
func ctxErr(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// MarshalError returns err as a server writes it into an answer.
func MarshalError(err error) []byte {
	data, marshalErr := json.Marshal(encodeError(err, ""))
	if marshalErr != nil {
		panic(marshalErr) // strings and numbers only
	}
	return data
}

// UnmarshalError returns the error in the answer of a server. op and id are used where it has
// none of its own.
func UnmarshalError(data []byte, op, id string) error {
	var w wireError
	if err := json.Unmarshal(data, &w); err != nil {
		return atoll.Errorf(op, id, atoll.ErrInternal, "the error %.200q: %w", data, err)
	}
	return w.err(op, id)
}
