package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seed46cd37a8/atoll"
)

// An Error is the JSON form of an error: the body of each unsuccessful response, the data of an
// "error" event, and the error of a stream message.
type Error struct {
	Op        string       `json:"op,omitempty"`         // the operation that failed
	ID        string       `json:"id,omitempty"`         // id or name of the object
	Kind      atoll.Kind   `json:"kind"`                 // the kind of the error, by which programs decide
	Message   string       `json:"message,omitempty"`    // the cause; absent if it adds nothing to the kind
	Also      []atoll.Kind `json:"also,omitempty"`       // further kinds of the cause
	Closing   string       `json:"closing,omitempty"`    // set if the server is closing: "undone" if it did nothing, "detached" if the operation continues
	RequestID string       `json:"request_id,omitempty"` // identifies the request in the server's log
	// RetryAfter is the number of seconds after which a retry may succeed, as in the header;
	// absent if unknown.
	RetryAfter int `json:"retry_after,omitempty"`
}

// Values of Error.Closing. The client can retry at another server, or later at this one.
const (
	ClosingUndone   = "undone"
	ClosingDetached = "detached"
)

// Errors of a handler that closes: ErrClosing means that it did nothing, ErrDetached that it
// stopped following an operation that continues.
var (
	ErrClosing  = atoll.Errorf("", "", atoll.ErrUnavailable, "the server is closing")
	ErrDetached = atoll.Errorf("", "", atoll.ErrUnavailable, "the server is closing")
)

// maxErrorMessage is the length at which EncodeError truncates a message, in bytes.
const maxErrorMessage = 16 << 10

// EncodeError returns err in its JSON form.
func EncodeError(err error, requestID string) Error {
	w := Error{Kind: atoll.KindOf(err), RequestID: requestID}
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
	case errors.Is(err, ErrDetached):
		w.Closing = ClosingDetached
	case errors.Is(err, ErrClosing):
		w.Closing = ClosingUndone
	}
	for _, k := range atoll.Kinds() {
		if k != w.Kind && !w.Kind.Is(k) && errors.Is(err, k) {
			w.Also = append(w.Also, k)
		}
	}
	return w
}

// ToError returns the *atoll.Error that w encodes. For kinds and the standard sentinels, errors.Is
// gives the same results as for the original error. op and id are the fallback for a w without an
// operation.
func (w Error) ToError(op, id string) error {
	e := &atoll.Error{Op: w.Op, ID: w.ID, Kind: w.Kind}
	if e.Op == "" {
		e.Op, e.ID = op, id
	}
	if e.Kind == "" {
		e.Kind = atoll.ErrInternal
	}
	if w.Message != "" || len(w.Also) > 0 || w.Closing != "" {
		e.Err = &RemoteError{message: w.Message, also: w.Also, kind: e.Kind, Closing: w.Closing}
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

// A RemoteError is a cause that the server reported.
type RemoteError struct {
	message string
	kind    atoll.Kind
	also    []atoll.Kind
	Closing string
	Proxy   bool // a proxy in front of the server sent it
}

func (e *RemoteError) Error() string {
	if e.message == "" {
		return e.kind.Error()
	}
	return e.message
}

// Is reports whether target is one of the kinds of the cause.
func (e *RemoteError) Is(target error) bool {
	return slices.ContainsFunc(e.also, func(k atoll.Kind) bool { return k == target || k.Is(target) })
}

// DecodeError returns the error in the body of an unsuccessful response. If the body has none, a
// proxy sent it; the error then has the kind that matches status.
func DecodeError(status int, body []byte, op, id string) error {
	var w Error
	if json.Unmarshal(body, &w) == nil && w.Kind != "" {
		return w.ToError(op, id)
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
	text := fmt.Sprintf("the server answered %d %s%s", status, http.StatusText(status), bodySnippet(body))
	return atoll.E(op, id, kind, &RemoteError{message: text, kind: kind, Proxy: kind == atoll.ErrUnavailable})
}

// bodySnippet returns the beginning of a text body on one line, for use in an error, or "" if the
// body is not text.
func bodySnippet(body []byte) string {
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

// MarshalError encodes err as in the body of a response.
func MarshalError(err error) []byte {
	data, marshalErr := json.Marshal(EncodeError(err, ""))
	if marshalErr != nil {
		panic(marshalErr) // strings and numbers only
	}
	return data
}

// UnmarshalError decodes an error from the body of a response. op and id are the fallback for an
// error without an operation.
func UnmarshalError(data []byte, op, id string) error {
	var w Error
	if err := json.Unmarshal(data, &w); err != nil {
		return atoll.Errorf(op, id, atoll.ErrInternal, "decode error %.200q: %w", data, err)
	}
	return w.ToError(op, id)
}
