package atoll

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"
)

// A Kind classifies an error. The set of kinds is small and stable: the HTTP API transmits the
// kind, metrics use it as a label, and callers compare it with [errors.Is]. The provider that
// talks to the backend chooses the kind.
//
// A Kind is itself an error. It matches the sentinel of the standard library with the same
// meaning, if there is one.
type Kind string

// The kinds of error.
const (
	ErrInvalid         Kind = "invalid"           // the request is malformed or contradicts itself; matches fs.ErrInvalid
	ErrDenied          Kind = "denied"            // the caller lacks permission; matches fs.ErrPermission
	ErrNotFound        Kind = "not found"         // the sandbox does not exist
	ErrNotExist        Kind = "not exist"         // the sandbox exists, but the named file, process, image or volume does not; matches fs.ErrNotExist
	ErrAlreadyExists   Kind = "already exists"    // the id, name or file is taken; matches fs.ErrExist
	ErrConflict        Kind = "conflict"          // another operation on the same sandbox prevents this one
	ErrStopped         Kind = "stopped"           // the sandbox is not running, or the process has ended; matches os.ErrProcessDone
	ErrExecFailed      Kind = "exec failed"       // the command failed to start
	ErrCommandNotFound Kind = "command not found" // the command failed to start because it does not exist; also matches ErrExecFailed
	ErrExhausted       Kind = "exhausted"         // a limit, a quota or the disk is used up
	ErrInternal        Kind = "internal"          // a fault of Atoll or its backend
	ErrUnsupported     Kind = "unsupported"       // the provider cannot do this; matches errors.ErrUnsupported
	ErrUnavailable     Kind = "unavailable"       // the backend is unreachable or does not work on this machine; the only kind worth a retry
	ErrTimeout         Kind = "timeout"           // the operation exceeded its time limit; matches os.ErrDeadlineExceeded
)

// Kinds returns all kinds, for code that maps each of them to something else.
func Kinds() []Kind {
	return []Kind{
		ErrInvalid, ErrDenied, ErrNotFound, ErrNotExist, ErrAlreadyExists, ErrConflict, ErrStopped,
		ErrExecFailed, ErrCommandNotFound, ErrExhausted, ErrInternal, ErrUnsupported, ErrUnavailable, ErrTimeout,
	}
}

// Error returns a short message for an error without a cause.
func (k Kind) Error() string {
	switch k {
	case ErrNotFound:
		return "sandbox not found"
	case ErrStopped:
		return "sandbox is stopped"
	case ErrNotExist:
		return "does not exist"
	case ErrDenied:
		return "permission denied"
	case ErrUnsupported:
		return "not supported by this provider"
	}
	return string(k)
}

// Is reports whether k matches target, a Kind or a sentinel of the standard library.
func (k Kind) Is(target error) bool {
	switch target {
	case ErrExecFailed:
		return k == ErrCommandNotFound
	case fs.ErrInvalid:
		return k == ErrInvalid
	case fs.ErrPermission:
		return k == ErrDenied
	case fs.ErrNotExist:
		return k == ErrNotExist
	case fs.ErrExist:
		return k == ErrAlreadyExists
	case errors.ErrUnsupported:
		return k == ErrUnsupported
	case os.ErrDeadlineExceeded:
		return k == ErrTimeout
	case os.ErrProcessDone:
		return k == ErrStopped
	}
	return false
}

// An Error describes a failed operation. The methods of this package's interfaces return errors
// of this type.
type Error struct {
	Op   string // the operation, as a verb: "create", "exec", "read"
	ID   string // the id or name of the sandbox, or of another object of the operation; may be empty
	Kind Kind
	Err  error // the cause; nil if the kind says everything
}

// E returns an *Error. If err already is an *Error with the same op, id and kind, E returns err
// unchanged, so that no failure is wrapped twice. The end of a context is never internal: if kind is
// ErrInternal and err is ErrTimeout or ErrUnavailable, the result has the kind of err.
func E(op, id string, kind Kind, err error) error {
	kind = retryableKind(kind, err)
	var e *Error
	if errors.As(err, &e) && e.Op == op && e.ID == id && e.Kind == kind {
		return err
	}
	return &Error{Op: op, ID: id, Kind: kind, Err: err}
}

// Errorf returns an *Error whose cause is formatted as by [fmt.Errorf]. Its kind is that of E.
func Errorf(op, id string, kind Kind, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &Error{Op: op, ID: id, Kind: retryableKind(kind, err), Err: err}
}

// retryableKind returns kind, or the kind of err if that tells more than ErrInternal: that a
// retry may help.
func retryableKind(kind Kind, err error) Kind {
	if kind != ErrInternal {
		return kind
	}
	if k := KindOf(err); k == ErrTimeout || k == ErrUnavailable {
		return k
	}
	return kind
}

// Error returns the operation, its object and the cause, as in `exec web: sandbox is stopped`.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Op != "" {
		b.WriteString(e.Op)
		if e.ID != "" {
			b.WriteByte(' ')
			b.WriteString(e.ID)
		}
		b.WriteString(": ")
	}
	if e.Err != nil {
		b.WriteString(e.Err.Error())
	} else {
		b.WriteString(e.Kind.Error())
	}
	return b.String()
}

// Unwrap returns the kind and the cause, so that [errors.Is] finds both.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// KindOf returns the kind of err: the outermost Kind in its chain, or else the kind that matches
// a sentinel of the standard library, or else ErrInternal. KindOf(nil) returns "".
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) && e.Kind != "" {
		return e.Kind
	}
	var k Kind
	if errors.As(err, &k) {
		return k
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return ErrTimeout
	case errors.Is(err, context.Canceled):
		return ErrUnavailable
	case errors.Is(err, fs.ErrNotExist):
		return ErrNotExist
	case errors.Is(err, fs.ErrExist):
		return ErrAlreadyExists
	case errors.Is(err, fs.ErrPermission):
		return ErrDenied
	case errors.Is(err, fs.ErrInvalid):
		return ErrInvalid
	case errors.Is(err, errors.ErrUnsupported):
		return ErrUnsupported
	}
	return ErrInternal
}

// A retryable error knows how long to wait before the next attempt.
type retryable interface{ RetryAfter() time.Duration }

// A retryAfterError adds a waiting time to an error.
type retryAfterError struct {
	error
	after time.Duration
}

func (l retryAfterError) RetryAfter() time.Duration { return l.after }

func (l retryAfterError) Unwrap() error { return l.error }

// WithRetryAfter adds to err the time to wait before the next attempt. Use the result as the
// cause of an ErrExhausted.
func WithRetryAfter(err error, after time.Duration) error { return retryAfterError{err, after} }

// RetryAfter returns how long to wait before retrying the operation that failed with err. The
// time is an estimate by the code that refused the operation. known is false if err carries no
// such time.
func RetryAfter(err error) (after time.Duration, known bool) {
	var r retryable
	if !errors.As(err, &r) {
		return 0, false
	}
	return r.RetryAfter(), true
}
