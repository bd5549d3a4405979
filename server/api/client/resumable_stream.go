package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// A resumableStream carries the streams of a process over successive stream connections. If a
// connection breaks or its server closes, the next one resumes at the offsets of the last.
type resumableStream struct {
	p              *process
	attached       *atoll.Attachment // nil for Exec
	stdout, stderr *outputCursor     // nil for a stream without a writer; equal if both have the same writer
	input          *inputBuffer      // nil without stdin
	inputBase      int64             // bytes of input that the process got before ours
	retry          retrier           // paces attempts after connections that broke early

	mu      sync.Mutex
	dropped int64 // dropped bytes that no Gap function was called for

	done chan struct{} // for Exec: closed when exit and err are final
	exit atoll.Exit
	err  error
}

// newResumableStream returns a resumableStream for the streams of a command or an attachment.
func newResumableStream(p *process, stdin io.Reader, stdout, stderr io.Writer) *resumableStream {
	t := &resumableStream{p: p, done: make(chan struct{}), retry: retrier{c: p.sb.c}}
	if stdout != nil {
		t.stdout = &outputCursor{w: stdout}
	}
	switch {
	case stdout != nil && sameWriter(stdout, stderr):
		t.stderr = t.stdout
	case stderr != nil:
		t.stderr = &outputCursor{w: stderr}
	}
	if stdin != nil {
		t.input = newInputBuffer(stdin)
	}
	return t
}

// isJoint reports whether stdout and stderr have the same writer.
func (t *resumableStream) isJoint() bool { return t.stdout != nil && t.stdout == t.stderr }

// recordGap records dropped bytes and reports them to the Gap function of the attachment, if any.
func (t *resumableStream) recordGap(s atoll.Stream, from, to int64) {
	switch {
	case t.isJoint(): // the cursor counts the bytes of both streams
		t.stdout.seekTo(t.stdout.nextOffset() + to - from)
	case s == atoll.Stderr:
		t.stderr.seekTo(to)
	default:
		t.stdout.seekTo(to)
	}
	if t.attached != nil && t.attached.Gap != nil {
		t.attached.Gap(s, from, to)
		return
	}
	t.mu.Lock()
	t.dropped += to - from
	t.mu.Unlock()
}

// connectionLoss returns why a stream connection ended although the process may continue, or nil if
// it ended for another reason.
func (t *resumableStream) connectionLoss(r *processStream) error {
	c := t.p.sb.c
	switch {
	case c.ctx.Err() != nil:
		return nil
	case r.err != nil && !isViolation(r.err):
		return brokenConnError{c.describeLoss(r.err)}
	case r.last.Error != nil && r.last.Error.Closing != "":
		return r.last.Error.ToError("attach", t.p.sb.id)
	}
	return nil
}

// isViolation reports whether err is a violation of the protocol, which would occur again on the
// next connection.
func isViolation(err error) bool {
	_, ours := errors.AsType[wire.ProtocolError](err)
	return ours || websocket.CloseStatus(err) == websocket.StatusPolicyViolation
}

// followExec follows a process that Exec started until the process ends.
func (t *resumableStream) followExec(run *processStream) {
	defer close(t.done)
	if t.input != nil {
		defer t.input.closeInput()
	}
	ctx, cancel := t.p.sb.c.joinContext(context.Background())
	defer cancel()
	for first := true; ; first = false {
		opened := time.Now()
		<-run.done
		lost := t.connectionLoss(run)
		if lost == nil && first {
			t.exit, t.err = t.p.streamExit(run)
			return
		}
		if lost == nil {
			t.exit, t.err = t.waitExit(ctx, run)
			return
		}
		next, err := t.openNext(ctx, opened, lost)
		if err != nil {
			t.err = err
			return
		}
		run = next
	}
}

// waitExit returns the exit of a process whose last output came over a later connection.
func (t *resumableStream) waitExit(ctx context.Context, run *processStream) (atoll.Exit, error) {
	switch {
	case run.err != nil: // the client was closed
		return t.p.streamExit(run)
	case run.last.Error != nil:
		return atoll.Exit{}, run.last.Error.ToError("wait", t.p.sb.id)
	}
	exit, err := t.p.fetchExit(ctx)
	if err == nil && t.dropped > 0 {
		err = atoll.Errorf("wait", t.p.sb.id, atoll.ErrUnavailable, "the connection was lost, and %s of the output of process %s were dropped before the client reconnected; %s",
			atoll.Bytes(t.dropped), t.p.id, exit)
		exit = atoll.Exit{}
	}
	return exit, err
}

// openFirst opens the first stream connection of an attachment.
func (t *resumableStream) openFirst(ctx context.Context) (*processStream, error) {
	retry, a := retrier{c: t.p.sb.c}, t.attached
	first := wire.Message{Type: wire.MsgAttach, Name: a.Name, Stdin: a.Stdin != nil, NoFollow: a.NoFollow}
	if a.StdoutFrom != 0 || a.StderrFrom != 0 {
		first.From = &wire.Offsets{Stdout: a.StdoutFrom, Stderr: a.StderrFrom}
	}
	for {
		var stdin io.Reader
		if t.input != nil {
			stdin = t.input.nextReader()
		}
		run, _, err := t.p.sb.c.openStream(ctx, t.p.attachCall(), first, stdin, t.stdout.activeWriter(), t.stderr.activeWriter(), t.recordGap)
		if err == nil || !retry.allowRetry(ctx, err, true) {
			return run, ctxErr(ctx, err)
		}
	}
}

// stableTime is the lifetime of a connection after which the client's patience starts anew.
const stableTime = 2 * time.Second

// openNext opens the next stream connection, after one that was opened at time opened and failed
// with lost. Kinds: ErrUnavailable (no server answers in time, or the streams cannot resume).
func (t *resumableStream) openNext(ctx context.Context, opened time.Time, lost error) (*processStream, error) {
	if time.Since(opened) > stableTime {
		t.retry = retrier{c: t.p.sb.c}
	}
	if t.input != nil {
		t.input.detachReader() // the next connection sends the rest
	}
	last := lost
	for first := t.retry.startClock(); first || t.retry.waitPause(ctx); first = false {
		run, err := t.openAtOffset(ctx)
		if err == nil {
			return run, nil
		}
		if last = err; atoll.KindOf(err) != atoll.ErrUnavailable || errors.Is(err, errCannotResume) {
			break
		}
	}
	if ctx.Err() != nil && t.p.sb.c.ctx.Err() == nil {
		return nil, ctx.Err()
	}
	text := "%w, process %s may still run"
	if causeOf(last) == causeOf(lost) {
		return nil, atoll.Errorf("attach", t.p.sb.id, atoll.ErrUnavailable, text, causeOf(lost), t.p.id)
	}
	return nil, atoll.Errorf("attach", t.p.sb.id, atoll.ErrUnavailable, text+": %w", causeOf(lost), t.p.id, causeOf(last))
}

// causeOf returns the cause of err without its operation and id.
func causeOf(err error) error {
	var e *atoll.Error
	if errors.As(err, &e) && e.Err != nil {
		return e.Err
	}
	return err
}

// errCannotResume is in the chain of an error that no retry can overcome.
var errCannotResume = errors.New("cannot resume")

// cannotResume returns an error with errCannotResume in its chain.
func cannotResume(format string, args ...any) error {
	return atoll.Errorf("attach", "", atoll.ErrUnavailable, "%w: %w", errCannotResume, fmt.Errorf(format, args...))
}

// openAtOffset opens a stream connection at the current offsets.
func (t *resumableStream) openAtOffset(ctx context.Context) (*processStream, error) {
	from := wire.Offsets{Stdout: t.stdout.nextOffset(), Stderr: t.stderr.nextOffset()}
	if t.isJoint() {
		var err error
		if from, err = t.splitOffsets(ctx); err != nil {
			return nil, err
		}
	}
	first := wire.Message{Type: wire.MsgAttach, Name: atoll.ExecAttachment, From: &from}
	if t.attached != nil {
		first.Name, first.NoFollow = t.attached.Name, t.attached.NoFollow
	}
	var stdin io.Reader
	if t.input != nil {
		if err := t.confirmInput(ctx); err != nil {
			return nil, err
		}
		if r := t.input.nextReader(); r != nil {
			stdin, first.Stdin = r, true
		}
	}
	run, _, err := t.p.sb.c.openStream(ctx, t.p.attachCall(), first, stdin, t.stdout.activeWriter(), t.stderr.activeWriter(), t.recordGap)
	return run, err
}

// splitOffsets returns the offsets of two streams that have the same writer.
func (t *resumableStream) splitOffsets(ctx context.Context) (wire.Offsets, error) {
	st, err := t.p.fetchStatus(ctx)
	if err != nil {
		return wire.Offsets{}, err
	}
	from := wire.Offsets{}
	if t.attached != nil {
		from = wire.Offsets{Stdout: t.attached.StdoutFrom, Stderr: t.attached.StderrFrom}
	}
	read := t.stdout.nextOffset() // bytes of both streams
	switch {
	case st.Stderr.Written == from.Stderr:
		return wire.Offsets{Stdout: from.Stdout + read, Stderr: from.Stderr}, nil
	case st.Stdout.Written == from.Stdout:
		return wire.Offsets{Stdout: from.Stdout, Stderr: from.Stderr + read}, nil
	case st.Stdout.Written+st.Stderr.Written == from.Stdout+from.Stderr+read:
		return wire.Offsets{Stdout: st.Stdout.Written, Stderr: st.Stderr.Written}, nil
	}
	return wire.Offsets{}, cannotResume("stdout and stderr have the same writer, so their offsets are unknown")
}

// inputTimeout is the time for sent input to arrive at the process.
const inputTimeout = 2 * time.Second

// confirmInput waits until all input that was sent has arrived at the process. It returns an error
// if some input was lost, or if the process can get no more.
func (t *resumableStream) confirmInput(ctx context.Context) error {
	sent, ended := t.input.detachReader()
	for began := time.Now(); ; {
		st, err := t.p.fetchStatus(ctx)
		switch {
		case err != nil:
			return err
		case st.Exit != nil:
			return nil
		case st.Stdin-t.inputBase == sent && (st.TTY || ended):
			return nil
		case st.Stdin-t.inputBase == sent:
			return cannotResume("stdin has ended with the connection")
		case st.Stdin-t.inputBase > sent:
			return cannotResume("another client writes to stdin, so it is not known whether all of this client's input has arrived")
		case time.Since(began) > inputTimeout:
			return cannotResume("%d of %d bytes of stdin have arrived", st.Stdin-t.inputBase, sent)
		}
		select {
		case <-time.After(minRetryPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
