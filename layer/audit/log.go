// Package audit is a layer that writes down who has done what to which sandbox, and
// what came of it, in a log that outlives the program.
//
//	log := audit.NewLog(s, audit.Options{Server: "a"})
//	p = audit.New(p, log)
//
// Who it was is in the context of a call. What is done to the life of a sandbox, and to
// what outlives it, is written before the call returns; commands are written together,
// within Every of their start: that much of them is lost with a program that is killed.
// What goes on inside a sandbox otherwise, files and connections to ports, is not
// written, nor what a sandbox does by itself, as when its time is over.
//
// A call never fails because the log cannot be written to: what is lost then is
// counted, and told of.
package audit

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/auth"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// Options configure a Log. The zero value is fine.
type Options struct {
	Server string // the name of this one
	// Lines gets each event at Info, as it happens; nil discards.
	Lines *slog.Logger
	// Keep is how long events stay in the store; 0 means for good.
	Keep time.Duration
	// Log is told of what could not be written; nil discards. Lost is told how many
	// events those were, and may be nil.
	Log  *slog.Logger
	Lost func(n int)

	every   time.Duration // for tests; 0 means Every
	most    int           // for tests; 0 means mostPending
	dropped int           // for tests; 0 means mostDropped
}

const (
	// Every is how often what does not wait is written.
	Every = time.Second
	// patience is how long a call waits for its event to be written.
	patience = 5 * time.Second
	// mostPending is how many events wait to be written, and mostAtOnce of them are
	// written together.
	mostPending, mostAtOnce = 10_000, 500
	// dropEvery is how often old events are looked for; mostDropped of them are deleted
	// together, each time that others are written, as nobody writes meanwhile.
	dropEvery, mostDropped = time.Hour, 5000
)

// A Log writes events down.
type Log struct {
	store store.Audit // nil for none
	opts  Options
	log   *slog.Logger

	mu      sync.Mutex
	pending []store.AuditEvent
	written chan struct{} // closed when what is pending now has been tried
	lost    int           // that nobody has been told of
	closed  bool

	wake chan struct{} // capacity 1
	quit chan struct{}
	done chan struct{}
}

// NewLog returns a log in s, nil for one of Lines only, which it closes with itself.
func NewLog(s store.Audit, opts Options) *Log {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Lost == nil {
		opts.Lost = func(int) {}
	}
	if opts.Lines == nil {
		opts.Lines = slog.New(slog.DiscardHandler)
	}
	if opts.every == 0 {
		opts.every = Every
	}
	opts.most, opts.dropped = cmp.Or(opts.most, mostPending), cmp.Or(opts.dropped, mostDropped)
	l := &Log{store: s, opts: opts, log: opts.Log, written: make(chan struct{}), wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
	go l.work()
	return l
}

// Close writes what is pending, and closes the store.
func (l *Log) Close() error {
	l.mu.Lock()
	again := l.closed
	l.closed = true
	l.mu.Unlock()
	if !again {
		close(l.quit)
	}
	<-l.done
	if l.store == nil {
		return nil
	}
	return l.store.Close()
}

// Note adds e, with who it was by as ctx says. With wait it returns when e is written,
// or could not be; not because ctx ends, but after a few seconds.
func (l *Log) Note(ctx context.Context, e store.AuditEvent, wait bool) {
	a := auth.AccountFrom(ctx)
	e.Time, e.Server, e.Origin = time.Now().UTC(), l.opts.Server, auth.OriginFrom(ctx)
	e.Account, e.Role, e.Key, e.KeyName = a.Name, a.Role, a.Key, a.KeyName
	e.Command = redacted(e.Command)
	e.Message = cut(withoutSecrets(e.Message), mostText)
	l.opts.Lines.LogAttrs(ctx, slog.LevelInfo, e.Op, slog.Any("event", e))
	if l.store == nil {
		return
	}
	written, ok := l.add(e)
	if !ok || !wait {
		return
	}
	select {
	case l.wake <- struct{}{}:
	default: // somebody else has
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-written:
	case <-timer.C: // it is written later, or counted as lost
	}
}

// add has e wait to be written.
func (l *Log) add(e store.AuditEvent) (written chan struct{}, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.pending) >= l.opts.most {
		l.lost++
		l.opts.Lost(1)
		return nil, false
	}
	l.pending = append(l.pending, e)
	return l.written, true
}

// work writes until Close.
func (l *Log) work() {
	defer close(l.done)
	tick := time.NewTicker(l.opts.every)
	defer tick.Stop()
	next := time.Now() // when old events are deleted
	for {
		ticked := false
		select {
		case <-l.quit:
			l.flush()
			return
		case <-tick.C:
			ticked = true
		case <-l.wake:
		}
		l.flush()
		if ticked && l.store != nil && l.opts.Keep > 0 && time.Now().After(next) && !l.drop() {
			next = time.Now().Add(dropEvery)
		}
	}
}

// drop deletes some old events, and reports whether there may be more.
func (l *Log) drop() (more bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	n, err := l.store.DropEvents(ctx, time.Now().Add(-l.opts.Keep), l.opts.dropped)
	if err != nil {
		l.log.Warn("audit: old events are still there", "err", err)
	}
	return err == nil && n == int64(l.opts.dropped)
}

// flush writes what is pending. What cannot be written is tried again, as long as
// there is room for it, but not when the log closes: then all that is left is lost.
func (l *Log) flush() {
	for {
		l.mu.Lock()
		some := l.pending[:min(len(l.pending), mostAtOnce):min(len(l.pending), mostAtOnce)]
		written, lost := l.written, l.lost
		last := len(some) == len(l.pending)
		if last { // who comes from now on waits for the next time
			l.written = make(chan struct{})
		}
		l.lost = 0
		quitting := l.closed
		l.mu.Unlock()
		if lost > 0 {
			l.log.Error("audit: events are lost: there was no room for more that could not be written yet", "events", lost)
		}
		var err error
		if len(some) > 0 {
			ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
			err = l.store.AddEvents(ctx, some)
			cancel()
		}
		l.mu.Lock()
		n := len(some)
		switch {
		case err == nil:
			l.pending = l.pending[n:]
		case quitting: // the rest would take as long, again and again
			n, l.pending = len(l.pending), nil
			if !last {
				last, l.written = true, make(chan struct{})
			}
		}
		l.mu.Unlock()
		if err != nil {
			l.log.Error("audit: events cannot be written", "events", n, "lost", quitting, "err", err)
		}
		if err != nil && quitting {
			l.opts.Lost(n)
		}
		if last {
			close(written)
		}
		if last || err != nil {
			return
		}
	}
}

// Denied notes what was refused that is no event otherwise: looking at what is another
// project's. It is Options.Denied of package authz.
func (l *Log) Denied(ctx context.Context, op, project, id string) {
	if recordsCall(op) {
		return // with its error, by the layer
	}
	l.Note(ctx, store.AuditEvent{Op: op, Project: project, Target: id, Kind: atoll.ErrDenied}, false)
}

// Refused notes what was refused before a provider was asked.
func (l *Log) Refused(ctx context.Context, what string) {
	l.Note(ctx, store.AuditEvent{Op: what, Kind: atoll.ErrDenied}, false)
}

// Key notes what was done to an API key.
func (l *Log) Key(ctx context.Context, op string, key auth.Key, err error) {
	e := store.AuditEvent{Op: op, Target: key.Name}
	if key.ID != "" {
		e.Target += " (" + key.ID + ")"
	}
	l.Note(ctx, outcome(e, err), true)
}

// outcome is e with what came of it.
func outcome(e store.AuditEvent, err error) store.AuditEvent {
	if err != nil {
		e.Kind, e.Message = atoll.KindOf(err), err.Error()
	}
	return e
}

// Events reads the log. Kinds: ErrUnsupported (it is not in a store).
func (l *Log) Events(ctx context.Context, q store.AuditQuery) ([]store.AuditEvent, error) {
	if l.store == nil {
		return nil, atoll.Errorf("audit", "", atoll.ErrUnsupported, "the audit log is not kept where it could be read: set audit.keep")
	}
	return l.store.Events(ctx, q)
}
