package guestproc

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// A vanishingProcess delivers said, and then its guest goes away.
type vanishingProcess struct {
	atoll.Process
	id, said string
}

var errGone = atoll.Errorf("", "", atoll.ErrUnavailable, "gone")

func (f vanishingProcess) ID() string                               { return f.id }
func (vanishingProcess) Wait(context.Context) (atoll.Exit, error)   { return atoll.Exit{}, errGone }
func (vanishingProcess) Signal(context.Context, atoll.Signal) error { return errGone }
func (vanishingProcess) Resize(context.Context, atoll.Size) error   { return errGone }
func (f vanishingProcess) Attach(_ context.Context, a *atoll.Attachment) error {
	if _, err := io.WriteString(a.Stdout, f.said[min(int64(len(f.said)), max(0, a.StdoutFrom)):]); err != nil {
		return err
	}
	return errGone
}

// A recordedProcess is the same process as the provider recorded it.
type recordedProcess struct {
	atoll.Process
	said string
}

func (recordedProcess) Wait(context.Context) (atoll.Exit, error) { return atoll.Exit{Code: 7}, nil }
func (m recordedProcess) Attach(_ context.Context, a *atoll.Attachment) error {
	if a.StdoutFrom > int64(len(m.said)) {
		return atoll.Errorf("attach", "", atoll.ErrInvalid, "past its end")
	}
	_, err := io.WriteString(a.Stdout, m.said[a.StdoutFrom:])
	return err
}

// newVanishingProcess returns a process whose guest delivers said and whose record holds all. The
// sandbox still runs if stopped is false.
func newVanishingProcess(id, said, all string, stopped bool) *Process {
	return &Process{
		ProcessLayer: atoll.ProcessLayer{Process: vanishingProcess{id: id, said: said}},
		ExplainError: func(_ context.Context, op string, err error) error {
			if err != nil && stopped {
				return atoll.E(op, "", atoll.ErrStopped, nil)
			}
			return err
		},
		Ended: func(context.Context) (atoll.Process, atoll.ProcessStatus, error) {
			return recordedProcess{said: all}, atoll.ProcessStatus{}, nil
		},
	}
}

func TestWait(t *testing.T) {
	ctx := t.Context()
	if exit, err := newVanishingProcess(atoll.MainProcess, "", "", true).Wait(ctx); err != nil || exit.Code != 7 {
		t.Errorf("the main process: %+v, %v; want code 7", exit, err)
	}
	if _, err := newVanishingProcess("p1", "", "", true).Wait(ctx); !errors.Is(err, atoll.ErrStopped) {
		t.Errorf("another: %v, want stopped", err)
	}
	if _, err := newVanishingProcess(atoll.MainProcess, "", "", false).Wait(ctx); !errors.Is(err, atoll.ErrUnavailable) {
		t.Errorf("a guest that went away: %v, want unavailable", err)
	}
}

func TestExplained(t *testing.T) {
	p := newVanishingProcess("p1", "", "", true)
	if err := p.Signal(t.Context(), atoll.SIGTERM); !errors.Is(err, atoll.ErrStopped) {
		t.Errorf("Signal: %v, want stopped", err)
	}
	if err := p.Resize(t.Context(), atoll.Size{Rows: 1, Cols: 1}); !errors.Is(err, atoll.ErrStopped) {
		t.Errorf("Resize: %v, want stopped", err)
	}
}

// Output that the guest did not deliver comes from the record, and no output comes twice.
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
		err := newVanishingProcess(tt.id, tt.said, tt.all, true).Attach(t.Context(), &atoll.Attachment{Stdout: &got, StdoutFrom: tt.from})
		if got.String() != tt.want || atoll.KindOf(err) != tt.kind {
			t.Errorf("%s: %q, %v; want %q, %q", tt.name, got.String(), err, tt.want, tt.kind)
		}
	}
}
