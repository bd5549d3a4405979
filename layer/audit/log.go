// Package audit is a layer that records operations on sandboxes in a persistent log: the caller,
// the operation and its result.
//
//	log := audit.NewLog(s, audit.Options{Server: "a"})
//	p = audit.New(p, log)
//
// The context of a call names the caller. The log stores operations on sandboxes, volumes and
// other lasting objects before the call returns. It stores commands in batches, within Every
// after their start, so that a program that is killed loses those of the last moment. The log has
// no other activity inside a sandbox, such as file access and connections to ports, and no events
// without a caller, such as an expiry. It stores what the network of a sandbox refused after a command
// failed, and before the sandbox is stopped or removed, each request once for each server.
//
// A call never fails because the log cannot be written. The log counts and reports lost events.
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

// Options configure a Log. The zero value keeps all events and discards log lines.
type Options struct {
	Server string // the name of this server
	// Lines receives each event at level Info, at once; nil discards them.
	Lines *slog.Logger
	// Keep is the age at which events are deleted from the store; 0 keeps them forever.
	Keep time.Duration
	// Log receives errors; nil discards them. Lost is called with the number of lost events; it
	// may be nil.
	Log  *slog.Logger
	Lost func(n int)

	interval   time.Duration // for tests; 0 means Every
	maxPending int           // for tests; 0 means maxPending
	maxDropped int           // for tests; 0 means maxDropped
}

const (
	// Every is the interval at which the log writes pending events.
	Every = time.Second
	// writeTimeout limits how long a call waits for its event to be written.
	writeTimeout = 5 * time.Second
	// maxPending is the maximum number of pending events. maxBatch is the maximum number of
	// events in one write.
	maxPending, maxBatch = 10_000, 500
	// dropInterval is the interval at which the log deletes old events. maxDropped limits each
	// deletion, because it blocks other writers.
	dropInterval, maxDropped = time.Hour, 5000
)

// A Log writes events to a store.
type Log struct {
	store store.Audit // may be nil
	opts  Options
	log   *slog.Logger

	mu      sync.Mutex
	pending []store.AuditEvent
	written chan struct{} // closed after the attempt to write all pending events
	lost    int           // lost events that the log has not reported yet
	closed  bool

	wake chan struct{} // capacity 1
	quit chan struct{}
	done chan struct{}
}

// NewLog returns a Log that writes to s, which Close closes. If s is nil, the log writes only to
// Options.Lines.
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
	if opts.interval == 0 {
		opts.interval = Every
	}
	opts.maxPending, opts.maxDropped = cmp.Or(opts.maxPending, maxPending), cmp.Or(opts.maxDropped, maxDropped)
	l := &Log{store: s, opts: opts, log: opts.Log, written: make(chan struct{}), wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
	go l.runWriter()
	return l
}

// Close writes the pending events and closes the store.
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

// Note adds e with the caller in ctx. If wait is true, Note returns when the event has been
// written or the write has failed, or after a few seconds. It does not return early when ctx
// ends.
func (l *Log) Note(ctx context.Context, e store.AuditEvent, wait bool) {
	a := auth.AccountFrom(ctx)
	e.Time, e.Server, e.Origin = time.Now().UTC(), l.opts.Server, auth.OriginFrom(ctx)
	e.Account, e.Role, e.Key, e.KeyName = a.Name, a.Role, a.Key, a.KeyName
	e.Command = redactCommand(e.Command)
	e.Message = truncateText(redactText(e.Message), maxText)
	l.opts.Lines.LogAttrs(ctx, slog.LevelInfo, e.Op, slog.Any("event", e))
	if l.store == nil {
		return
	}
	written, ok := l.enqueueEvent(e)
	if !ok || !wait {
		return
	}
	select {
	case l.wake <- struct{}{}:
	default: // already requested
	}
	timer := time.NewTimer(writeTimeout)
	defer timer.Stop()
	select {
	case <-written:
	case <-timer.C: // the writer writes it later, or counts it as lost
	}
}

// enqueueEvent adds e to the pending events. The result is closed after the attempt to write e.
// ok is false if e is lost.
func (l *Log) enqueueEvent(e store.AuditEvent) (written chan struct{}, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.pending) >= l.opts.maxPending {
		l.lost++
		l.opts.Lost(1)
		return nil, false
	}
	l.pending = append(l.pending, e)
	return l.written, true
}

// runWriter writes events until Close.
func (l *Log) runWriter() {
	defer close(l.done)
	tick := time.NewTicker(l.opts.interval)
	defer tick.Stop()
	next := time.Now() // next deletion of old events
	for {
		ticked := false
		select {
		case <-l.quit:
			l.flushPending()
			return
		case <-tick.C:
			ticked = true
		case <-l.wake:
		}
		l.flushPending()
		if ticked && l.store != nil && l.opts.Keep > 0 && time.Now().After(next) && !l.dropOldEvents() {
			next = time.Now().Add(dropInterval)
		}
	}
}

// dropOldEvents deletes some old events, and reports whether more may remain.
func (l *Log) dropOldEvents() (more bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*writeTimeout)
	defer cancel()
	n, err := l.store.DropEvents(ctx, time.Now().Add(-l.opts.Keep), l.opts.maxDropped)
	if err != nil {
		l.log.Warn("audit: cannot delete old events", "err", err)
	}
	return err == nil && n == int64(l.opts.maxDropped)
}

// flushPending writes the pending events. If a write fails, it leaves them for the next attempt;
// after Close it counts them as lost.
func (l *Log) flushPending() {
	for {
		l.mu.Lock()
		some := l.pending[:min(len(l.pending), maxBatch):min(len(l.pending), maxBatch)]
		written, lost := l.written, l.lost
		last := len(some) == len(l.pending)
		if last { // later events wait for the next flush
			l.written = make(chan struct{})
		}
		l.lost = 0
		quitting := l.closed
		l.mu.Unlock()
		if lost > 0 {
			l.log.Error("audit: events are lost: too many are pending", "events", lost)
		}
		var err error
		if len(some) > 0 {
			ctx, cancel := context.WithTimeout(context.Background(), 2*writeTimeout)
			err = l.store.AddEvents(ctx, some)
			cancel()
		}
		l.mu.Lock()
		n := len(some)
		switch {
		case err == nil:
			l.pending = l.pending[n:]
		case quitting: // each retry would take as long
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

// Denied records a denied call that the layer does not record, such as an access to another
// project. Use it as Options.Denied of package authz.
func (l *Log) Denied(ctx context.Context, op, project, id string) {
	if recordsCall(op) {
		return // the layer records the error
	}
	l.Note(ctx, store.AuditEvent{Op: op, Project: project, Target: id, Kind: atoll.ErrDenied}, false)
}

// Refused records a request that was denied before it reached a provider.
func (l *Log) Refused(ctx context.Context, what string) {
	l.Note(ctx, store.AuditEvent{Op: what, Kind: atoll.ErrDenied}, false)
}

// Key records an operation on an API key.
func (l *Log) Key(ctx context.Context, op string, key auth.Key, err error) {
	e := store.AuditEvent{Op: op, Target: key.Name}
	if key.ID != "" {
		e.Target += " (" + key.ID + ")"
	}
	l.Note(ctx, withOutcome(e, err), true)
}

// withOutcome returns e with the kind and the message of err.
func withOutcome(e store.AuditEvent, err error) store.AuditEvent {
	if err != nil {
		e.Kind, e.Message = atoll.KindOf(err), err.Error()
	}
	return e
}

// Events reads the log. Kinds: ErrUnsupported (the log has no store).
func (l *Log) Events(ctx context.Context, q store.AuditQuery) ([]store.AuditEvent, error) {
	if l.store == nil {
		return nil, atoll.Errorf("audit", "", atoll.ErrUnsupported, "the audit log has no store; set audit.keep")
	}
	return l.store.Events(ctx, q)
}
