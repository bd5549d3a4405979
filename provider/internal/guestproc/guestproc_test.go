package guestproc

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// A fading process is one whose guest goes away when it has delivered said.
type fading struct {
	atoll.Process
	id, said string
}

var errGone = atoll.Errorf("", "", atoll.ErrUnavailable, "gone")

func (f fading) ID() string                               { return f.id }
func (fading) Wait(context.Context) (atoll.Exit, error)   { return atoll.Exit{}, errGone }
func (fading) Signal(context.Context, atoll.Signal) error { return errGone }
func (fading) Resize(context.Context, atoll.Size) error   { return errGone }
func (f fading) Attach(_ context.Context, a *atoll.Attachment) error {
	if _, err := io.WriteString(a.Stdout, f.said[min(int64(len(f.said)), max(0, a.StdoutFrom)):]); err != nil {
		return err
	}
	return errGone
}

// A memory is that process as it is remembered.
type memory struct {
	atoll.Process
	said string
}

func (memory) Wait(context.Context) (atoll.Exit, error) { return atoll.Exit{Code: 7}, nil }
func (m memory) Attach(_ context.Context, a *atoll.Attachment) error {
	if a.StdoutFrom > int64(len(m.said)) {
		return atoll.Errorf("attach", "", atoll.ErrInvalid, "past its end")
	}
	_, err := io.WriteString(a.Stdout, m.said[a.StdoutFrom:])
	return err
}

// remembered is a process with this id of which said was delivered, and all is remembered; it
// runs on if stopped is false.
func remembered(id, said, all string, stopped bool) *Process {
	return &Process{
		ProcessLayer: atoll.ProcessLayer{Process: fading{id: id, said: said}},
		Explain: func(_ context.Context, op string, err error) error {
			if err != nil && stopped {
				return atoll.E(op, "", atoll.ErrStopped, nil)
			}
			return err
		},
		Ended: func(context.Context) (atoll.Process, atoll.ProcessStatus, error) {
			return memory{said: all}, atoll.ProcessStatus{}, nil
		},
	}
}

func TestWait(t *testing.T) {
	ctx := t.Context()
	if exit, err := remembered(atoll.MainProcess, "", "", true).Wait(ctx); err != nil || exit.Code != 7 {
		t.Errorf("the main process: %+v, %v; want code 7", exit, err)
	}
	if _, err := remembered("p1", "", "", true).Wait(ctx); !errors.Is(err, atoll.ErrStopped) {
		t.Errorf("another: %v, want stopped", err)
	}
	if _, err := remembered(atoll.MainProcess, "", "", false).Wait(ctx); !errors.Is(err, atoll.ErrUnavailable) {
		t.Errorf("a guest that went away: %v, want unavailable", err)
	}
}

func TestExplained(t *testing.T) {
	p := remembered("p1", "", "", true)
	if err := p.Signal(t.Context(), atoll.SIGTERM); !errors.Is(err, atoll.ErrStopped) {
		t.Errorf("Signal: %v, want stopped", err)
	}
	if err := p.Resize(t.Context(), atoll.Size{Rows: 1, Cols: 1}); !errors.Is(err, atoll.ErrStopped) {
		t.Errorf("Resize: %v, want stopped", err)
	}
}

// What the guest did not deliver comes from where it broke off, and nothing twice.
func TestAttach(t *testing.T) {
	for _, tt := range []struct {
		name, id, said, all string
		from                int64
		want                string
		kind                atoll.Kind
	}{
		{"all of it", atoll.MainProcess, "abc", "abc", 0, "abc", ""},
		{"the rest", atoll.MainProcess, "abc", "abcdef", 0, "abcdef", ""},
		{"from an offset", atoll.MainProcess, "abc", "abcdef", 2, "cdef", ""},
		{"less than was delivered", atoll.MainProcess, "abc", "ab", 0, "abc", atoll.ErrStopped},
		{"from now on", atoll.MainProcess, "abc", "abcdef", atoll.FromNow, "abc", atoll.ErrStopped},
		{"another process", "p1", "abc", "abcdef", 0, "abc", atoll.ErrStopped},
	} {
		var got strings.Builder
		err := remembered(tt.id, tt.said, tt.all, true).Attach(t.Context(), &atoll.Attachment{Stdout: &got, StdoutFrom: tt.from})
		if got.String() != tt.want || atoll.KindOf(err) != tt.kind {
			t.Errorf("%s: %q, %v; want %q, %q", tt.name, got.String(), err, tt.want, tt.kind)
		}
	}
}
