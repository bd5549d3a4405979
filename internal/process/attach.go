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

var chunks = sync.Pool{New: func() any { return new([chunkSize]byte) }}

// An attachment is the output side of an atoll.Attachment: registered with the
// rings when it is made, so that nothing written from then on can be lost.
type attachment struct {
	outs  []*output // one for each stream that is attached
	joint bool      // all outs have one writer and share one goroutine
	gapMu sync.Mutex
	gap   func(s atoll.Stream, from, to int64)
}

// An output carries one stream to its writer.
type output struct {
	*reader
	stream atoll.Stream
	w      io.Writer
}

func (p *process) attach(a *atoll.Attachment) (*attachment, error) {
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
		rd, ok := r.attach(a.Name, from, a.NoFollow, wake)
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
		att.detach()
		return nil, err
	}
	return att, nil
}

func (a *attachment) detach() {
	for _, o := range a.outs {
		o.detach()
	}
}

// part is detach when why is what ended it. A client that was lost, rather than gone, may
// come again for what has not arrived.
func (a *attachment) part(why error) {
	for _, o := range a.outs {
		if atoll.KindOf(why) == atoll.ErrUnavailable && !errors.Is(why, context.Canceled) {
			o.lose(ReturnTime)
		} else {
			o.detach()
		}
	}
}

// ReturnTime is how long a process drops nothing of its output after a writer of an attachment
// has failed, or its ctx was ended, with an ErrUnavailable that is no cancellation: the caller
// may attach again from where it was, and misses nothing. Until then the process waits when it
// has printed more than Command.OutputLimit. The time ends when an attachment of the same name
// comes, even if that is before the loss is noticed. An attachment without a name ends it for
// one without a name, or for that of Exec, which it takes for its own if it begins where that
// one was or a little before.
const ReturnTime = 10 * time.Second

// copy delivers until every stream has ended, a writer fails or ctx ends. When
// ctx ends the streams are detached at once, even while a writer blocks; copy
// itself returns only when nothing writes any longer.
func (a *attachment) copy(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { a.part(context.Cause(ctx)) })()
	err := a.carry(ctx, cancel)
	why := err
	if ctx.Err() != nil {
		why = context.Cause(ctx)
	}
	a.part(why)
	return err
}

// carry is copy without the end.
func (a *attachment) carry(ctx context.Context, cancel context.CancelCauseFunc) error {
	if a.joint || len(a.outs) < 2 {
		return a.deliver(ctx, a.outs)
	}
	second := make(chan error, 1)
	go func() {
		err := a.deliver(ctx, a.outs[1:])
		if err != nil {
			cancel(err)
		}
		second <- err
	}()
	err := a.deliver(ctx, a.outs[:1])
	if err != nil {
		cancel(err)
	}
	other := <-second
	if err == nil || other != nil && errors.Is(err, context.Canceled) {
		return other // what made the first one give up
	}
	return err
}

// deliver writes outs, which share one wake channel, from one goroutine.
func (a *attachment) deliver(ctx context.Context, outs []*output) error {
	live := slices.Clone(outs)
	for len(live) > 0 {
		var moved bool
		var err error
		live = slices.DeleteFunc(live, func(o *output) bool {
			m, eof, e := a.step(o)
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

// step delivers at most one chunk of o.
func (a *attachment) step(o *output) (moved, eof bool, err error) {
	buf := chunks.Get().(*[chunkSize]byte)
	defer chunks.Put(buf)
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

// sameWriter compares two writers, of which some types cannot be compared.
func sameWriter(a, b io.Writer) (same bool) {
	defer func() { _ = recover() }()
	return a == b
}
