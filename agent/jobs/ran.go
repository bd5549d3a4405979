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

// Ran is what came of a command.
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
	if k := atoll.KindOf(err); box.started && (k == atoll.ErrStopped || k == atoll.ErrNotFound) { // whoever calls us must not run it once more
		err = Interrupted(nil)
	}
	r := Ran{Stdout: stdout.End(), Stderr: stderr.End(), Took: time.Since(began)}
	if failed, ok := errors.AsType[*atoll.ExitError](err); ok {
		r.Exit, err = failed.Exit, nil
	}
	return r, err
}

// Interrupted is the error of a command whose sandbox, or container, ended while it ran:
// nobody is to run it once more without a look at what it has done. cause may be nil.
// Kind: ErrConflict.
func Interrupted(cause error) error {
	why := ""
	if cause != nil {
		why = fmt.Sprintf(" (%v)", cause)
	}
	return atoll.Errorf("", "", atoll.ErrConflict, "the sandbox ended while the command ran%s, which may have done a part of its work: look at that, and run it again if need be", why)
}

// A starter notes whether a command was started.
type starter struct {
	atoll.Sandbox
	started bool
}

func (s *starter) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	p, err := s.Sandbox.Exec(ctx, cmd)
	s.started = err == nil
	return p, err
}

// reportEvery is how often whoever waits is told.
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

// A Stream keeps the beginning of what is written to it, and the end.
type Stream struct {
	limit int64

	mu    sync.Mutex
	head  []byte
	tail  []byte // of all
	cut   bool
	ended bool
}

const tailSize = 200

// NewStream returns one that keeps the first limit bytes.
func NewStream(limit int64) *Stream { return &Stream{limit: limit} }

// Write implements io.Writer, and never fails.
func (s *Stream) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return len(b), nil // nobody waits for it any more
	}
	keep := max(0, min(int64(len(b)), s.limit-int64(len(s.head))))
	s.head, s.cut = append(s.head, b[:keep]...), s.cut || keep < int64(len(b))
	s.tail = append(s.tail, b[max(0, len(b)-tailSize):]...)
	s.tail = s.tail[max(0, len(s.tail)-tailSize):]
	return len(b), nil
}

// lastLine is the last one that is not empty.
func (s *Stream) lastLine() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := strings.Split(strings.TrimRight(strings.ToValidUTF8(string(s.tail), ""), "\r\n"), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

// End is all that is kept; nothing is from now on.
func (s *Stream) End() Text {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	return Text{s.head, s.cut}
}

// A Text is output, of which more may have been cut off.
type Text struct {
	Data []byte `json:"data,omitempty"`
	Cut  bool   `json:"cut,omitempty"`
}

// String is what is whole of it as UTF-8: what was cut in the middle of a character
// ends before that, and what is none is replaced.
func (t Text) String() string {
	data := t.Data
	if t.Cut {
		data = data[:Whole(data)]
	}
	return strings.ToValidUTF8(string(data), "\ufffd")
}

// Whole is the length of data without a character at its end that is not complete.
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
