package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/seed46cd37a8/atoll"
)

// A thread is the streams of a process over one link after the other: when one is lost, or
// its server closes, the next one goes on where that was.
type thread struct {
	p         *process
	attached  *atoll.Attachment // nil for what Exec has started
	out, errs *place            // nil for a stream that is not wanted; the same one when both have one writer
	in        *input            // nil without
	began     int64             // how much input the process had before ours
	trial     trial             // of the links that did not last

	mu      sync.Mutex
	dropped int64 // bytes that nobody was told of

	done chan struct{} // of Exec: closed when exit and err are final
	exit atoll.Exit
	err  error
}

// A place is a writer, and which byte of the stream it gets next.
type place struct {
	w io.Writer

	mu     sync.Mutex
	next   int64
	failed error // the writer's
}

// Write implements io.Writer.
func (p *place) Write(b []byte) (int, error) {
	n, err := p.w.Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next += int64(n)
	if err != nil {
		p.failed = err
	}
	return n, err
}

// start is where the stream is read from.
func (p *place) start(from int64) {
	if p != nil {
		p.skip(from)
	}
}

func (p *place) skip(to int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = to
}

// at is where the writer is; 0 without one.
func (p *place) at() int64 {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.next
}

// failure is the first error of the writer.
func (p *place) failure() error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// writer is p, unless there is none, or it fails.
func (p *place) writer() io.Writer {
	if p == nil || p.failure() != nil {
		return nil
	}
	return p
}

// newThread takes over the streams of a command or an attachment.
func newThread(p *process, stdin io.Reader, stdout, stderr io.Writer) *thread {
	t := &thread{p: p, done: make(chan struct{}), trial: trial{c: p.sb.c}}
	if stdout != nil {
		t.out = &place{w: stdout}
	}
	switch {
	case stdout != nil && sameWriter(stdout, stderr):
		t.errs = t.out
	case stderr != nil:
		t.errs = &place{w: stderr}
	}
	if stdin != nil {
		t.in = newInput(stdin)
	}
	return t
}

// joint reports whether both streams have one writer.
func (t *thread) joint() bool { return t.out != nil && t.out == t.errs }

// gap notes that bytes were dropped.
func (t *thread) gap(s atoll.Stream, from, to int64) {
	switch {
	case t.joint(): // of which of the two is not known
		t.out.skip(t.out.at() + to - from)
	case s == atoll.Stderr:
		t.errs.skip(to)
	default:
		t.out.skip(to)
	}
	if t.attached != nil && t.attached.Gap != nil {
		t.attached.Gap(s, from, to)
		return
	}
	t.mu.Lock()
	t.dropped += to - from
	t.mu.Unlock()
}

// loss is how a link ended whose process may go on, nil when it was otherwise.
func (t *thread) loss(r *running) error {
	c := t.p.sb.c
	switch {
	case c.ctx.Err() != nil:
		return nil
	case r.err != nil && !isViolation(r.err):
		return brokenError{c.lost(r.err)}
	case r.last.Error != nil && r.last.Error.Closing != "":
		return r.last.Error.err("attach", t.p.sb.id)
	}
	return nil
}

// isViolation reports whether one side has not kept to the protocol, which it would not do
// the next time either.
func isViolation(err error) bool {
	_, ours := errors.AsType[protocolError](err)
	return ours || websocket.CloseStatus(err) == websocket.StatusPolicyViolation
}

// follow goes on with what Exec has started until the process has ended.
func (t *thread) follow(run *running) {
	defer close(t.done)
	if t.in != nil {
		defer t.in.close()
	}
	ctx, cancel := t.p.sb.c.within(context.Background())
	defer cancel()
	for first := true; ; first = false {
		opened := time.Now()
		<-run.done
		lost := t.loss(run)
		if lost == nil && first {
			t.exit, t.err = t.p.ended(run)
			return
		}
		if lost == nil {
			t.exit, t.err = t.finished(ctx, run)
			return
		}
		next, err := t.resume(ctx, opened, lost)
		if err != nil {
			t.err = err
			return
		}
		run = next
	}
}

// finished is how a process ended of which the rest was read over another link.
func (t *thread) finished(ctx context.Context, run *running) (atoll.Exit, error) {
	switch {
	case run.err != nil: // the client is closed
		return t.p.ended(run)
	case run.last.Error != nil:
		return atoll.Exit{}, run.last.Error.err("wait", t.p.sb.id)
	}
	exit, err := t.p.wait(ctx)
	if err == nil && t.dropped > 0 {
		err = atoll.Errorf("wait", t.p.sb.id, atoll.ErrUnavailable, "the connection was lost, and before there was another one %s of what process %s printed were dropped; %s",
			atoll.Bytes(t.dropped), t.p.id, exit)
		exit = atoll.Exit{}
	}
	return exit, err
}

// begin opens the first link of an attachment.
func (t *thread) begin(ctx context.Context) (*running, error) {
	trial, a := trial{c: t.p.sb.c}, t.attached
	first := message{Type: msgAttach, Name: a.Name, Stdin: a.Stdin != nil, NoFollow: a.NoFollow}
	if a.StdoutFrom != 0 || a.StderrFrom != 0 {
		first.From = &offsets{a.StdoutFrom, a.StderrFrom}
	}
	for {
		var stdin io.Reader
		if t.in != nil {
			stdin = t.in.next()
		}
		run, _, err := t.p.sb.c.open(ctx, t.p.attachCall(), first, stdin, t.out.writer(), t.errs.writer(), t.gap)
		if err == nil || !trial.again(ctx, err, true) {
			return run, ctxErr(ctx, err)
		}
	}
}

// lasting is how long a link must have held for the next one to have all of the client's
// patience.
const lasting = 2 * time.Second

// resume opens the next link, after one that had opened at some time. Kinds: ErrUnavailable
// (nobody answers in time, or what is known does not do to go on).
func (t *thread) resume(ctx context.Context, opened time.Time, lost error) (*running, error) {
	if time.Since(opened) > lasting {
		t.trial = trial{c: t.p.sb.c}
	}
	if t.in != nil {
		t.in.detach() // what comes now waits for the next one
	}
	why := lost
	for first := t.trial.begin(); first || t.trial.wait(ctx); first = false {
		run, err := t.reattach(ctx)
		if err == nil {
			return run, nil
		}
		if why = err; atoll.KindOf(err) != atoll.ErrUnavailable || errors.Is(err, errCannot) {
			break
		}
	}
	if ctx.Err() != nil && t.p.sb.c.ctx.Err() == nil {
		return nil, ctx.Err()
	}
	text := "%w, process %s may still run"
	if causeOf(why) == causeOf(lost) {
		return nil, atoll.Errorf("attach", t.p.sb.id, atoll.ErrUnavailable, text, causeOf(lost), t.p.id)
	}
	return nil, atoll.Errorf("attach", t.p.sb.id, atoll.ErrUnavailable, text+": %w", causeOf(lost), t.p.id, causeOf(why))
}

// causeOf is what err says besides what was done, and to what.
func causeOf(err error) error {
	var e *atoll.Error
	if errors.As(err, &e) && e.Err != nil {
		return e.Err
	}
	return err
}

// errCannot is why a thread is not taken up again, however long one waits.
var errCannot = errors.New("it cannot be gone on with")

func cannot(format string, args ...any) error {
	return atoll.Errorf("attach", "", atoll.ErrUnavailable, "%w: %w", errCannot, fmt.Errorf(format, args...))
}

// reattach opens a link from where the last one was.
func (t *thread) reattach(ctx context.Context) (*running, error) {
	from := offsets{t.out.at(), t.errs.at()}
	if t.joint() {
		var err error
		if from, err = t.split(ctx); err != nil {
			return nil, err
		}
	}
	first := message{Type: msgAttach, Name: atoll.ExecAttachment, From: &from}
	if t.attached != nil {
		first.Name, first.NoFollow = t.attached.Name, t.attached.NoFollow
	}
	var stdin io.Reader
	if t.in != nil {
		if err := t.settleInput(ctx); err != nil {
			return nil, err
		}
		if r := t.in.next(); r != nil {
			stdin, first.Stdin = r, true
		}
	}
	run, _, err := t.p.sb.c.open(ctx, t.p.attachCall(), first, stdin, t.out.writer(), t.errs.writer(), t.gap)
	return run, err
}

// split says how far each of two streams was read that have one writer.
func (t *thread) split(ctx context.Context) (offsets, error) {
	st, err := t.p.status(ctx)
	if err != nil {
		return offsets{}, err
	}
	from := offsets{}
	if t.attached != nil {
		from = offsets{t.attached.StdoutFrom, t.attached.StderrFrom}
	}
	read := t.out.at() // from both
	switch {
	case st.Stderr.Written == from.Stderr:
		return offsets{from.Stdout + read, from.Stderr}, nil
	case st.Stdout.Written == from.Stdout:
		return offsets{from.Stdout, from.Stderr + read}, nil
	case st.Stdout.Written+st.Stderr.Written == from.Stdout+from.Stderr+read:
		return offsets{st.Stdout.Written, st.Stderr.Written}, nil
	}
	return offsets{}, cannot("stdout and stderr have one writer, so it is not known how far each was read")
}

// inputTime is how long input that was sent may take to arrive at the process.
const inputTime = 2 * time.Second

// settleInput sees to it that all input that was sent has arrived, and that what follows
// still can.
func (t *thread) settleInput(ctx context.Context) error {
	sent, ended := t.in.detach()
	for began := time.Now(); ; {
		st, err := t.p.status(ctx)
		switch {
		case err != nil:
			return err
		case st.Exit != nil:
			return nil
		case st.Stdin-t.began == sent && (st.TTY || ended):
			return nil
		case st.Stdin-t.began == sent:
			return cannot("its input has ended with the connection")
		case st.Stdin-t.began > sent:
			return cannot("somebody else writes to its input, too, so it is not known whether all of ours has arrived")
		case time.Since(began) > inputTime:
			return cannot("%d of %d bytes of its input have arrived", st.Stdin-t.began, sent)
		}
		select {
		case <-time.After(firstPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// An input is what a caller's Reader has, for one link after the other. One goroutine reads
// it ahead, which nobody waits for: it may be in the caller's Reader.
type input struct {
	r io.Reader

	mu     sync.Mutex
	more   sync.Cond
	ahead  []byte // what was read and not sent
	err    error  // why there is no more
	closed bool
	sent   int64  // to all links
	ended  bool   // and so was the end
	link   *inlet // the one that is sent to
}

func newInput(r io.Reader) *input {
	in := &input{r: r}
	in.more.L = &in.mu
	return in
}

// next is what the next link reads, nil when all was sent. The first one begins to read.
func (in *input) next() io.Reader {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.ended {
		return nil
	}
	begun := in.link != nil
	in.link = &inlet{in}
	in.more.Broadcast()
	if !begun {
		go in.read()
	}
	return in.link
}

// detach ends reading by the present link, and says how much was sent.
func (in *input) detach() (sent int64, ended bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.link = &inlet{in}
	in.more.Broadcast()
	return in.sent, in.ended
}

// close ends all.
func (in *input) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	in.more.Broadcast()
}

// read fills ahead whenever that is empty.
func (in *input) read() {
	buf := make([]byte, deliverSize)
	for {
		n, err := in.r.Read(buf)
		in.mu.Lock()
		in.ahead, in.err = buf[:n], err
		in.more.Broadcast()
		for len(in.ahead) > 0 && !in.closed {
			in.more.Wait()
		}
		over := in.err != nil || in.closed
		in.mu.Unlock()
		if over {
			return
		}
	}
}

// An inlet is what one link reads.
type inlet struct{ in *input }

// Read implements io.Reader.
func (l *inlet) Read(p []byte) (int, error) {
	in := l.in
	in.mu.Lock()
	defer in.mu.Unlock()
	for in.link == l && !in.closed && len(in.ahead) == 0 && in.err == nil {
		in.more.Wait()
	}
	switch {
	case in.link != l || in.closed:
		return 0, errClosing // feed leaves it at that
	case len(in.ahead) == 0:
		in.ended = true
		return 0, in.err
	}
	n := copy(p, in.ahead)
	in.ahead = in.ahead[n:]
	in.sent += int64(n)
	in.more.Broadcast()
	return n, nil
}
