package jobs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/seed46cd37a8/atoll"
)

// Ran is the result of a command.
type Ran struct {
	Exit   atoll.Exit    `json:"exit"`
	Took   time.Duration `json:"took"`
	Stdout Text          `json:"stdout"`
	Stderr Text          `json:"stderr"`
}

// Run runs a command in a sandbox to its end, and keeps the first max bytes of each of
// its streams. When ctx ends first, the command is killed. A non-zero exit is no error.
// report may be nil; see Job. Kinds: those of atoll.Run, and ErrConflict (the sandbox
// ended while the command ran).
func Run(ctx context.Context, sb atoll.Sandbox, cmd *atoll.Command, max int64, report func(time.Duration, string)) (Ran, error) {
	stdout, stderr := NewStream(max), NewStream(max)
	with := *cmd
	with.Stdout, with.Stderr = stdout, stderr
	began := time.Now()
	stop := Reporting(ctx, began, stdout, report)
	box := &starter{Sandbox: sb}
	err := atoll.Run(ctx, box, &with)
	stop()
	if k := atoll.KindOf(err); box.started && (k == atoll.ErrStopped || k == atoll.ErrNotFound) { // callers must not run it again
		err = Interrupted(nil)
	}
	r := Ran{Stdout: stdout.End(), Stderr: stderr.End(), Took: time.Since(began)}
	if failed, ok := errors.AsType[*atoll.ExitError](err); ok {
		r.Exit, err = failed.Exit, nil
	}
	return r, err
}

// Interrupted returns the error of a command whose sandbox, or container, ended while
// it ran: callers must not run it again without checking its effects. cause may be nil.
// Kind: ErrConflict.
func Interrupted(cause error) error {
	why := ""
	if cause != nil {
		why = fmt.Sprintf(" (%v)", cause)
	}
	return atoll.Errorf("", "", atoll.ErrConflict, "the sandbox ended while the command ran%s, which may have done a part of its work: check its effects, and run it again if needed", why)
}

// A starter records whether a command was started.
type starter struct {
	atoll.Sandbox
	started bool
}

func (s *starter) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	p, err := s.Sandbox.Exec(ctx, cmd)
	s.started = err == nil
	return p, err
}

// reportEvery is the interval of reports.
const reportEvery = time.Second

// Reporting calls report, if it is not nil, every second with the last line of out,
// until stop is called or ctx ends.
func Reporting(ctx context.Context, began time.Time, out *Stream, report func(time.Duration, string)) (stop func()) {
	if report == nil {
		return func() {}
	}
	done := make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		tick := time.NewTicker(reportEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				report(time.Since(began), out.lastLine())
			case <-done:
				return
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		close(done)
		work.Wait()
	}
}

// A Stream keeps the beginning and the end of its input.
type Stream struct {
	limit int64

	mu    sync.Mutex
	head  []byte
	tail  []byte // of everything
	cut   bool
	ended bool
}

const tailSize = 200

// NewStream returns a Stream that keeps the first limit bytes.
func NewStream(limit int64) *Stream { return &Stream{limit: limit} }

// Write implements io.Writer, and never fails.
func (s *Stream) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return len(b), nil // End was called
	}
	keep := max(0, min(int64(len(b)), s.limit-int64(len(s.head))))
	s.head, s.cut = append(s.head, b[:keep]...), s.cut || keep < int64(len(b))
	s.tail = append(s.tail, b[max(0, len(b)-tailSize):]...)
	s.tail = s.tail[max(0, len(s.tail)-tailSize):]
	return len(b), nil
}

// lastLine returns the last non-empty line.
func (s *Stream) lastLine() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := strings.Split(strings.TrimRight(strings.ToValidUTF8(string(s.tail), ""), "\r\n"), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

// End returns the kept beginning, and stops keeping input.
func (s *Stream) End() Text {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	return Text{s.head, s.cut}
}

// A Text is output that may be truncated.
type Text struct {
	Data []byte `json:"data,omitempty"`
	Cut  bool   `json:"cut,omitempty"`
}

// String returns the text as UTF-8: without an incomplete character at a truncated end,
// and with invalid bytes replaced.
func (t Text) String() string {
	data := t.Data
	if t.Cut {
		data = data[:Whole(data)]
	}
	return strings.ToValidUTF8(string(data), "\ufffd")
}

// Whole returns the length of data without an incomplete character at its end.
func Whole(data []byte) int {
	for i := 1; i <= min(utf8.UTFMax, len(data)); i++ {
		if b := data[len(data)-i]; utf8.RuneStart(b) {
			if !utf8.FullRune(data[len(data)-i:]) {
				return len(data) - i
			}
			break
		}
	}
	return len(data)
}
