// Package terminal is what front doors that lend terminals to people over a
// network have in common: how their input ends, and what becomes of a process
// whose terminal is gone.
package terminal

import (
	"bytes"
	"context"
	"io"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// endOfFile is the character that ends the input of a terminal, ^D.
const endOfFile = 4

// Input returns a reader of what is typed: r, and when that has ended, what a
// person would press to say so. A terminal stays open when its input ends, so
// that is the only way for it to get through. In a line that was begun the first
// one sends that off, and the second one is the end.
func Input(r io.Reader) io.Reader { return &input{r: r, last: '\n'} }

type input struct {
	r    io.Reader
	last byte   // that was read
	rest []byte // of what ends the input
	over bool
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

// timeout is how long a process may take to be told something.
const timeout = 10 * time.Second

// HangUp tells the process that its terminal is gone, as the kernel does when a
// line is cut: with SIGHUP, which ends a shell and what it has in the foreground,
// unless they have asked to live on, and with an end of file for whoever reads on.
// That is said again now and then: a shell that is just starting may miss both.
// HangUp returns when the process has ended, or after 10 seconds, whatever has
// become of ctx.
func HangUp(ctx context.Context, p atoll.Process) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	err := p.Signal(ctx, atoll.SIGHUP)
	for pause := firstPause; err == nil && ctx.Err() == nil && !ends(ctx, p, pause); pause *= 2 {
		err = p.Attach(ctx, &atoll.Attachment{Stdin: bytes.NewReader([]byte{endOfFile, endOfFile})})
	}
}

// firstPause is how long a process that was hung up on may take to end before it
// is told that its input has.
const firstPause = 100 * time.Millisecond

// ends waits for the process to end, for so long.
func ends(ctx context.Context, p atoll.Process, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	_, err := p.Wait(ctx)
	return err == nil || ctx.Err() == nil // it has ended, or is beyond reach
}

// BreakPipe tells a process without a terminal that nobody reads what it prints,
// as the kernel tells one that writes into a pipe without a reader.
func BreakPipe(ctx context.Context, p atoll.Process) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	_ = p.Signal(ctx, sigPipe) // it may just have ended
}

// sigPipe is SIGPIPE.
const sigPipe atoll.Signal = 13
