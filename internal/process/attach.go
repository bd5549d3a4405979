package process

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
)

const chunkSize = 32 << 10

var chunkPool = sync.Pool{New: func() any { return new([chunkSize]byte) }}

// An attachment is the output side of an atoll.Attachment. newAttachment registers it with
// the rings, so that no byte written from then on can be lost.
type attachment struct {
	outs  []*output // one for each attached stream
	joint bool      // all outs have one writer and share one goroutine
	gapMu sync.Mutex
	gap   func(s atoll.Stream, from, to int64)
}

// An output copies one stream to its writer.
type output struct {
	*reader
	stream atoll.Stream
	w      io.Writer
}

func (p *process) newAttachment(a *atoll.Attachment) (*attachment, error) {
	if len(a.Name) > atoll.MaxAttachmentName {
		return nil, atoll.Errorf("attach", p.id, atoll.ErrInvalid, "the attachment's name has %d bytes: at most %d are allowed", len(a.Name), atoll.MaxAttachmentName)
	}
	att := &attachment{gap: a.Gap, joint: a.Stdout != nil && sameWriter(a.Stdout, a.Stderr)}
	var wake chan struct{}
	add := func(s atoll.Stream, r *ring, w io.Writer, from int64) error {
		if w == nil {
			return nil
		}
		if wake == nil || !att.joint {
			wake = make(chan struct{}, 1)
		}
		rd, ok := r.addReader(a.Name, from, a.NoFollow, wake)
		if !ok {
			return atoll.Errorf("attach", p.id, atoll.ErrInvalid, "%s has no offset %d", s, from)
		}
		att.outs = append(att.outs, &output{rd, s, w})
		return nil
	}
	err := add(atoll.Stdout, p.stdout, a.Stdout, a.StdoutFrom)
	if err == nil {
		err = add(atoll.Stderr, p.stderr, a.Stderr, a.StderrFrom)
	}
	if err != nil {
		att.detachAll()
		return nil, err
	}
	return att, nil
}

func (a *attachment) detachAll() {
	for _, o := range a.outs {
		o.detachReader()
	}
}

// endAttachment detaches the readers after the end with the error why. If the client was
// lost, it may come again for bytes that have not arrived: endAttachment marks its readers
// as lost.
func (a *attachment) endAttachment(why error) {
	for _, o := range a.outs {
		if atoll.KindOf(why) == atoll.ErrUnavailable && !errors.Is(why, context.Canceled) {
			o.markLost(ReturnTime)
		} else {
			o.detachReader()
		}
	}
}

// ReturnTime is the time for which a process retains its output after the loss of a client:
// a writer of an attachment has failed, or its ctx has ended, with an ErrUnavailable that is
// not a cancellation. If the client attaches again from its last offset, it misses nothing.
// Until then the process blocks at more than Command.OutputLimit. A new attachment of the
// same name ends the time, even if it comes before the loss is noticed. An attachment
// without a name ends it for a lost attachment without a name, or for that of Exec, if it
// begins at the offset of the lost one or a little before.
const ReturnTime = 10 * time.Second

// copyOutput delivers output until every stream has ended, a writer fails or ctx ends. At
// the end of ctx it detaches the streams at once, even while a writer blocks; copyOutput
// itself returns only when no writer is active.
func (a *attachment) copyOutput(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { a.endAttachment(context.Cause(ctx)) })()
	err := a.copyStreams(ctx, cancel)
	why := err
	if ctx.Err() != nil {
		why = context.Cause(ctx)
	}
	a.endAttachment(why)
	return err
}

// copyStreams is copyOutput without detaching the streams.
func (a *attachment) copyStreams(ctx context.Context, cancel context.CancelCauseFunc) error {
	if a.joint || len(a.outs) < 2 {
		return a.deliverOutputs(ctx, a.outs)
	}
	second := make(chan error, 1)
	go func() {
		err := a.deliverOutputs(ctx, a.outs[1:])
		if err != nil {
			cancel(err)
		}
		second <- err
	}()
	err := a.deliverOutputs(ctx, a.outs[:1])
	if err != nil {
		cancel(err)
	}
	other := <-second
	if err == nil || other != nil && errors.Is(err, context.Canceled) {
		return other // the cause of the first one's cancellation
	}
	return err
}

// deliverOutputs writes outs, which share one wake channel, in this goroutine.
func (a *attachment) deliverOutputs(ctx context.Context, outs []*output) error {
	live := slices.Clone(outs)
	for len(live) > 0 {
		var moved bool
		var err error
		live = slices.DeleteFunc(live, func(o *output) bool {
			m, eof, e := a.deliverChunk(o)
			moved = moved || m
			err = cmp.Or(err, e)
			return eof
		})
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return err
		}
		if moved || len(live) == 0 {
			continue
		}
		select {
		case <-live[0].wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// deliverChunk delivers at most one chunk of o.
func (a *attachment) deliverChunk(o *output) (moved, eof bool, err error) {
	buf := chunkPool.Get().(*[chunkSize]byte)
	defer chunkPool.Put(buf)
	n, from, to, eof := o.read(buf[:])
	if to > from {
		a.reportGap(o.stream, from, to)
		return true, false, nil
	}
	if n == 0 && o.isReplaced() {
		return false, true, atoll.Errorf("attach", "", atoll.ErrConflict, "another attachment named %q has taken the place of this one", o.name)
	}
	if n == 0 {
		return false, eof, nil
	}
	wrote, err := o.w.Write(buf[:n])
	if err == nil && wrote < n {
		err = io.ErrShortWrite
	}
	return true, false, err
}

func (a *attachment) reportGap(s atoll.Stream, from, to int64) {
	if a.gap == nil {
		return
	}
	a.gapMu.Lock()
	defer a.gapMu.Unlock()
	a.gap(s, from, to)
}

// sameWriter reports whether two writers are equal; false if their type is not comparable.
func sameWriter(a, b io.Writer) (same bool) {
	defer func() { _ = recover() }()
	return a == b
}
