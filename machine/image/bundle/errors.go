package bundle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// A damageError is a fault in a kernel, a package or a bundle, which no retry repairs.
type damageError struct {
	msg string
	err error // may be nil
}

func newDamageError(err error, format string, args ...any) error {
	return &damageError{fmt.Sprintf(format, args...), err}
}

func (d *damageError) Error() string {
	if d.err == nil {
		return d.msg
	}
	return d.msg + ": " + d.err.Error()
}

func (d *damageError) Unwrap() error { return d.err }

// wrapError gives the failure of op on name its kind; nil for a nil err.
func (s *Store) wrapError(op, name string, err error) error {
	var e *atoll.Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	var bad *damageError
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return atoll.E(op, name, atoll.KindOf(err), err)
	case fsutil.IsFull(err):
		return atoll.Errorf(op, name, atoll.ErrExhausted, "no space left in %s: %w", s.dir, err)
	case errors.As(err, &bad):
		return atoll.E(op, name, atoll.ErrInvalid, err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return atoll.E(op, name, atoll.ErrDenied, err)
	}
	return atoll.E(op, name, atoll.KindOf(err), err)
}
