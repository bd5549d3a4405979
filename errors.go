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

// A Kind classifies an error. Kinds are few and stable: they are what travels
// over the wire, what metrics are labelled with, and what callers compare with
// errors.Is. The leaf, which alone knows its backend, names the kind.
//
// A Kind is itself an error, and matches the standard library's sentinel of
// the same meaning where there is one.
type Kind string

// The kinds.
const (
	ErrInvalid         Kind = "invalid"           // the request makes no sense as it stands; matches fs.ErrInvalid
	ErrDenied          Kind = "denied"            // not allowed to this caller; matches fs.ErrPermission
	ErrNotFound        Kind = "not found"         // no such sandbox
	ErrNotExist        Kind = "not exist"         // the sandbox exists, the file, process, image or volume named does not; matches fs.ErrNotExist
	ErrAlreadyExists   Kind = "already exists"    // the id, name or file is taken; matches fs.ErrExist
	ErrConflict        Kind = "conflict"          // another operation on the same sandbox is in the way
	ErrStopped         Kind = "stopped"           // the sandbox is not running, or the process has ended; matches os.ErrProcessDone
	ErrExecFailed      Kind = "exec failed"       // the command could not be started
	ErrCommandNotFound Kind = "command not found" // the command could not be started because it is not there; matches ErrExecFailed too
	ErrExhausted       Kind = "exhausted"         // a limit, a quota or the disk is used up
	ErrInternal        Kind = "internal"          // a fault of Atoll or its backend
	ErrUnsupported     Kind = "unsupported"       // the provider cannot do this; matches errors.ErrUnsupported
	ErrUnavailable     Kind = "unavailable"       // the backend cannot be reached or does not work here; the only kind worth a retry
	ErrTimeout         Kind = "timeout"           // took longer than its limit; matches os.ErrDeadlineExceeded
)

// Kinds lists every kind, for those who must map all of them.
func Kinds() []Kind {
	return []Kind{
		ErrInvalid, ErrDenied, ErrNotFound, ErrNotExist, ErrAlreadyExists, ErrConflict, ErrStopped,
		ErrExecFailed, ErrCommandNotFound, ErrExhausted, ErrInternal, ErrUnsupported, ErrUnavailable, ErrTimeout,
	}
}

// Error is the sentence printed when nothing more is known.
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

// Is reports whether k means the same as target.
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

// An Error is what every method of this package's interfaces returns: what was
// being done, to which sandbox, the kind of failure, and its cause.
type Error struct {
	Op   string // the verb: "create", "exec", "read"
	ID   string // the sandbox's id or name, or what else was acted on; may be empty
	Kind Kind
	Err  error // the cause; nil when the kind says it all
}

// E builds an *Error. When err is an *Error that already says the same op and
// id it is returned as it is, so that no failure is wrapped twice.
func E(op, id string, kind Kind, err error) error {
	var e *Error
	if errors.As(err, &e) && e.Op == op && e.ID == id && e.Kind == kind {
		return err
	}
	return &Error{Op: op, ID: id, Kind: kind, Err: err}
}

// Errorf is E with a formatted cause.
func Errorf(op, id string, kind Kind, format string, args ...any) error {
	return &Error{Op: op, ID: id, Kind: kind, Err: fmt.Errorf(format, args...)}
}

// Error reads from left to right, outside in: `exec web: sandbox is stopped`.
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

// Unwrap gives the kind and the cause, so that errors.Is finds either.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// KindOf returns the kind of err: the outermost one named in its chain, else
// the one that a standard sentinel stands for, else ErrInternal. The kind of
// nil is "".
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

// A waiting error knows when it may be worth trying again.
type waiting interface{ RetryAfter() time.Duration }

// A later is an error that may be gone later.
type later struct {
	error
	after time.Duration
}

func (l later) RetryAfter() time.Duration { return l.after }

func (l later) Unwrap() error { return l.error }

// WithRetryAfter returns err, as the cause of an ErrExhausted, with the time after
// which it may be worth trying again.
func WithRetryAfter(err error, after time.Duration) error { return later{err, after} }

// RetryAfter is how long to wait before what failed with err is tried again, if that
// is known: a guess, of whoever refused it.
func RetryAfter(err error) (after time.Duration, known bool) {
	var w waiting
	if !errors.As(err, &w) {
		return 0, false
	}
	return w.RetryAfter(), true
}
