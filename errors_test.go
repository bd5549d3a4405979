package atoll

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"testing"
)

func TestKinds(t *testing.T) {
	seen := map[Kind]bool{}
	for _, k := range Kinds() {
		if seen[k] || k.Error() == "" {
			t.Errorf("kind %q: twice, or without a text", string(k))
		}
		seen[k] = true
		if err := E("op", "id", k, nil); KindOf(err) != k || !errors.Is(err, k) {
			t.Errorf("the kind of %v is %q, want %q", err, KindOf(err), k)
		}
	}
	for kind, standard := range map[Kind]error{
		ErrInvalid: fs.ErrInvalid, ErrDenied: fs.ErrPermission, ErrNotExist: fs.ErrNotExist, ErrAlreadyExists: fs.ErrExist,
		ErrUnsupported: errors.ErrUnsupported, ErrTimeout: os.ErrDeadlineExceeded, ErrStopped: os.ErrProcessDone,
		ErrCommandNotFound: ErrExecFailed,
	} {
		for _, k := range Kinds() {
			if got, want := errors.Is(E("op", "", k, io.EOF), standard), k == kind || k == standard; got != want {
				t.Errorf("errors.Is(%s, %v) = %v, want %v", string(k), standard, got, want)
			}
		}
	}
	for kind, text := range map[Kind]string{
		ErrNotFound: "sandbox not found", ErrStopped: "sandbox is stopped", ErrExecFailed: "exec failed",
	} {
		if kind.Error() != text {
			t.Errorf("%s prints %q, want %q", string(kind), kind.Error(), text)
		}
	}
}

func TestKindOf(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want Kind
	}{
		{nil, ""},
		{io.EOF, ErrInternal},
		{ErrConflict, ErrConflict},
		{fmt.Errorf("outer: %w", ErrConflict), ErrConflict},
		{fmt.Errorf("outer: %w", E("x", "", ErrStopped, io.EOF)), ErrStopped},
		{E("outer", "", ErrInternal, E("inner", "", ErrNotFound, nil)), ErrInternal},
		{context.Canceled, ErrUnavailable},
		{context.DeadlineExceeded, ErrTimeout},
		{os.ErrDeadlineExceeded, ErrTimeout},
		{&fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist}, ErrNotExist},
		{fs.ErrExist, ErrAlreadyExists},
		{fs.ErrPermission, ErrDenied},
		{fs.ErrInvalid, ErrInvalid},
		{errors.ErrUnsupported, ErrUnsupported},
	} {
		if got := KindOf(tt.err); got != tt.want {
			t.Errorf("KindOf(%v) = %q, want %q", tt.err, got, tt.want)
		}
	}
}

func TestErrorText(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{E("exec", "web", ErrStopped, nil), "exec web: sandbox is stopped"},
		{E("exec", "", ErrInvalid, errors.New("no command given")), "exec: no command given"},
		{E("", "", ErrInternal, io.EOF), "EOF"},
		{Errorf("create", "web", ErrNotExist, "no image %q", "x"), `create web: no image "x"`},
		{E("create", "web", ErrInternal, E("pull", "x", ErrUnavailable, nil)), "create web: pull x: unavailable"},
	} {
		if got := tt.err.Error(); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
	inner := E("exec", "web", ErrStopped, nil)
	if got := E("exec", "web", ErrStopped, inner); got != inner {
		t.Errorf("the same thing was said twice: %v", got)
	}
	if err := Errorf("x", "", ErrInternal, "outer: %w", io.EOF); !errors.Is(err, io.EOF) {
		t.Errorf("%v does not unwrap to its cause", err)
	}
}

// The end of a context has a kind that is worth a retry, however often it is wrapped.
func TestContextsAreNotInternal(t *testing.T) {
	for cause, want := range map[error]Kind{
		context.DeadlineExceeded: ErrTimeout, context.Canceled: ErrUnavailable, os.ErrDeadlineExceeded: ErrTimeout,
		E("dial", "", ErrUnavailable, errors.New("refused")): ErrUnavailable, errors.New("x"): ErrInternal, io.EOF: ErrInternal,
	} {
		wrapped := fmt.Errorf("boot: %w", cause)
		for name, err := range map[string]error{
			"itself": cause, "E": E("create", "id", ErrInternal, cause), "E of fmt": E("create", "id", ErrInternal, wrapped),
			"Errorf": Errorf("create", "id", ErrInternal, "boot: %w", cause), "E of E": E("start", "id", ErrInternal, E("boot", "id", ErrInternal, wrapped)),
			"joined": E("create", "id", ErrInternal, errors.Join(errors.New("cleanup"), wrapped)),
		} {
			if got := KindOf(err); got != want || !errors.Is(err, cause) {
				t.Errorf("%v by %s: kind %q, want %q", cause, name, got, want)
			}
		}
		if got := KindOf(E("create", "id", ErrDenied, wrapped)); got != ErrDenied {
			t.Errorf("%v as ErrDenied is %q", cause, got)
		}
	}
}
