// Package terminal ends the input of a terminal that a person uses over a network, and
// hangs up its process. The servers for HTTP and SSH share it.
package terminal

import (
	"bytes"
	"context"
	"io"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// Characters of a terminal.
const (
	endOfFile = 4  // ^D: ends the input after a whole line
	killLine  = 21 // ^U: discards the unfinished line
)

// Input returns a reader of r that appends the end-of-file character at the end. A
// terminal stays open when the connection's input ends: only the character tells the
// program. After an unfinished line, Input appends two: the first one sends the line,
// and the second one is the end.
func Input(r io.Reader) io.Reader { return &input{r: r, last: '\n'} }

type input struct {
	r    io.Reader
	last byte   // the last byte read
	rest []byte // characters still to append
	over bool   // r has ended
}

func (in *input) Read(p []byte) (int, error) {
	if !in.over {
		n, err := in.r.Read(p)
		if n > 0 {
			in.last = p[n-1]
		}
		if err != io.EOF {
			return n, err
		}
		in.over, in.rest = true, []byte{endOfFile}
		if in.last != '\n' && in.last != '\r' {
			in.rest = []byte{endOfFile, endOfFile}
		}
		if n > 0 {
			return n, nil
		}
	}
	if len(in.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, in.rest)
	in.rest = in.rest[n:]
	return n, nil
}

// signalTimeout is the time limit of HangUp and of BreakPipe.
const signalTimeout = 10 * time.Second

// HangUp tells the process that its terminal is gone, as the kernel does when a line is
// cut. It sends SIGHUP, which ends a shell and its foreground job unless they ignore it.
// For programs that read on it discards the unfinished line and sends end-of-file
// characters. It repeats the characters with growing pauses: a shell that is just starting,
// or that is about to read a line, may miss the signal and them. HangUp returns when the
// process has ended, or after 10 seconds, even if ctx has ended.
func HangUp(ctx context.Context, p atoll.Process) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), signalTimeout)
	defer cancel()
	err := p.Signal(ctx, atoll.SIGHUP)
	for pause := firstPause; err == nil && ctx.Err() == nil && !endsWithin(ctx, p, pause); pause *= 2 {
		err = p.Attach(ctx, &atoll.Attachment{Stdin: bytes.NewReader([]byte{killLine, endOfFile, endOfFile})})
	}
}

// firstPause is the time between SIGHUP and the first end-of-file characters.
const firstPause = 100 * time.Millisecond

// endsWithin waits for the process to end, and reports whether it did within that time,
// or cannot be reached.
func endsWithin(ctx context.Context, p atoll.Process, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	_, err := p.Wait(ctx)
	return err == nil || ctx.Err() == nil // it has ended, or cannot be reached
}

// BreakPipe sends SIGPIPE to a process without a terminal whose output nobody reads, as
// the kernel does on a write to a pipe without a reader.
func BreakPipe(ctx context.Context, p atoll.Process) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), signalTimeout)
	defer cancel()
	_ = p.Signal(ctx, sigPipe) // it may just have ended
}

// sigPipe is SIGPIPE.
const sigPipe atoll.Signal = 13
