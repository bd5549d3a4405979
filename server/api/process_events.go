package api

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"unicode/utf8"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// eventsDoc describes the events of a process to clients.
const eventsDoc = "Events `stdout` and `stderr` have output as `text`, or if it is not UTF-8 in `base64`, with the `offset` of its first byte. " +
	"An event `gap` says which bytes were dropped. The last event is `exit`, or `error`. " +
	"A client that connects again with `Last-Event-ID` gets what follows that event. "

func processEventRoutes() []Route {
	return []Route{
		{
			Method: "POST", Path: "/v1/sandboxes/{id}/exec/events", Name: "execWithEvents", Tag: "processes", Summary: "Start a command and stream its output as server-sent events",
			Doc: "The first event is `started`, with the id of the process. " + eventsDoc +
				"The process continues if the client disconnects: `GET .../processes/{pid}/events` has the rest. For input, set `open_stdin` and use `POST .../processes/{pid}/stdin`.",
			Body: jsonOf[atoll.Command](), Reply: eventsOf[wire.ProcessEvent](), serve: (*Handler).serveExecEvents,
		},
		{
			Method: "GET", Path: "/v1/sandboxes/{id}/processes/{pid}/events", Name: "followProcess", Tag: "processes", Summary: "Stream the output of a process as server-sent events",
			Doc: eventsDoc + "With the id `" + finalID + "` of the last event the status is 204, so an EventSource does not reconnect.",
			Params: []Param{
				{Name: "stdout_from", Type: "integer", Doc: "offset of the first byte of stdout"},
				{Name: "stderr_from", Type: "integer", Doc: "offset of the first byte of stderr"},
			},
			Reply: eventsOf[wire.ProcessEvent](), serve: (*Handler).serveProcessEvents,
		},
	}
}

func (h *Handler) serveExecEvents(w http.ResponseWriter, r *http.Request) error {
	var cmd atoll.Command
	if err := h.decodeBody(w, r, &cmd, true); err != nil {
		return err
	}
	sb, err := h.findSandbox(r)
	if err != nil {
		return err
	}
	ctx, done, err := h.beginStream(w, r)
	if err != nil {
		return err
	}
	defer done()
	out := newProcessEvents(ctx, [2]int64{})
	cmd.Stdout, cmd.Stderr = out.newWriter(atoll.Stdout), out.newWriter(atoll.Stderr)
	p, err := sb.Exec(ctx, &cmd)
	if err != nil {
		return err
	}
	if ctx.Err() != nil { // the client will not learn the id
		killProcess(ctx, p)
		return closingError(p)
	}
	events := newEventWriter(ctx, w)
	defer events.stopWriter()
	if err := out.startSending(events, &wire.ProcessEvent{Type: wire.EventStarted, ID: p.ID()}); err != nil {
		return alreadyAnswered(err)
	}
	exit, err := p.Wait(ctx)
	return alreadyAnswered(out.sendExit(exit, err))
}

func (h *Handler) serveProcessEvents(w http.ResponseWriter, r *http.Request) error {
	q := parseQuery(r)
	from := [2]int64{q.getInt("stdout_from", 0), q.getInt("stderr_from", 0)}
	if q.err != nil {
		return q.err
	}
	if from[0] < 0 || from[1] < 0 {
		return invalidError("parameters stdout_from and stderr_from must not be negative")
	}
	switch last := r.Header.Get("Last-Event-ID"); last {
	case "":
	case finalID:
		w.WriteHeader(http.StatusNoContent)
		return nil
	default:
		if _, err := fmt.Sscanf(last, "%d-%d", &from[0], &from[1]); err != nil || from[0] < 0 || from[1] < 0 {
			return invalidError("header Last-Event-ID: %q is not the id of an event", last)
		}
	}
	p, err := h.findProcess(r)
	if err != nil {
		return err
	}
	ctx, done, err := h.beginStream(w, r)
	if err != nil {
		return err
	}
	defer done()
	events := newEventWriter(ctx, w)
	defer events.stopWriter()
	out := newProcessEvents(ctx, from)
	if err := out.startSending(events, nil); err != nil {
		return alreadyAnswered(err)
	}
	err = p.Attach(ctx, &atoll.Attachment{
		Stdout: out.newWriter(atoll.Stdout), Stderr: out.newWriter(atoll.Stderr), StdoutFrom: from[0], StderrFrom: from[1], Gap: out.sendGap,
	})
	var exit atoll.Exit
	if err == nil {
		exit, err = p.Wait(ctx)
	}
	return alreadyAnswered(out.sendExit(exit, err))
}

// processEvents sends the output of a process as events, in the order of each stream.
type processEvents struct {
	ctx   context.Context
	begun chan struct{} // closed by startSending

	mu     sync.Mutex
	events *eventWriter
	next   [2]int64  // offset behind what was sent, of stdout and stderr
	rest   [2][]byte // partial characters at that offset
}

func newProcessEvents(ctx context.Context, from [2]int64) *processEvents {
	return &processEvents{ctx: ctx, begun: make(chan struct{}), next: from}
}

// startSending sends the first event, if any, and lets the writers continue.
func (o *processEvents) startSending(events *eventWriter, first *wire.ProcessEvent) error {
	o.events = events
	defer close(o.begun)
	if first == nil {
		return nil
	}
	return events.sendEvent(string(first.Type), first)
}

// streamIndex returns the index of a stream in the arrays of processEvents.
func streamIndex(s atoll.Stream) int {
	if s == atoll.Stderr {
		return 1
	}
	return 0
}

// An eventStream is the writer of one stream of a process.
type eventStream struct {
	*processEvents
	stream atoll.Stream
}

func (o *processEvents) newWriter(s atoll.Stream) eventStream { return eventStream{o, s} }

// Write sends p, except for a partial character at its end, which the next write completes.
func (s eventStream) Write(p []byte) (int, error) {
	select {
	case <-s.begun:
	case <-s.ctx.Done():
		return 0, context.Cause(s.ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i := streamIndex(s.stream)
	data := append(s.rest[i], p...)
	whole := trimPartialRune(data)
	if err := s.sendOutput(s.stream, whole); err != nil {
		return 0, err
	}
	s.rest[i] = append([]byte(nil), data[len(whole):]...)
	return len(p), nil
}

// sendOutput sends data that follows what was sent. The caller holds mu.
func (o *processEvents) sendOutput(stream atoll.Stream, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	i := streamIndex(stream)
	offset := o.next[i]
	ev := wire.ProcessEvent{Type: wire.ProcessEventType(stream), Offset: &offset}
	if utf8.Valid(data) {
		ev.Text = string(data)
	} else {
		ev.Base64 = data
	}
	o.next[i] += int64(len(data))
	return o.sendNumbered(ev)
}

// sendNumbered sends an event with the offsets behind it as its id. The caller holds mu.
func (o *processEvents) sendNumbered(ev wire.ProcessEvent) error {
	return o.events.sendEventWithID(fmt.Sprintf("%d-%d", o.next[0], o.next[1]), string(ev.Type), ev)
}

// sendGap reports that bytes of a stream were dropped.
func (o *processEvents) sendGap(stream atoll.Stream, from, to int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	i := streamIndex(stream)
	_ = o.flushStream(stream) // the next write reports an error
	o.next[i] = to
	_ = o.sendNumbered(wire.ProcessEvent{Type: wire.EventGap, Stream: stream, Gap: &wire.Gap{From: from, To: to}})
}

// flushStream sends a partial character that nothing completes. The caller holds mu.
func (o *processEvents) flushStream(stream atoll.Stream) error {
	i := streamIndex(stream)
	rest := o.rest[i]
	o.rest[i] = nil
	return o.sendOutput(stream, rest)
}

// sendExit sends the last event, exit or error, and returns err or the error of sending.
func (o *processEvents) sendExit(exit atoll.Exit, err error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil {
		err = o.ctx.Err() // some output may be unsent
	}
	if err != nil {
		return o.events.sendError(err)
	}
	for _, stream := range []atoll.Stream{atoll.Stdout, atoll.Stderr} {
		if err := o.flushStream(stream); err != nil {
			return err
		}
	}
	return o.events.sendEventWithID(finalID, string(wire.EventExit), wire.ProcessEvent{Type: wire.EventExit, Exit: &exit})
}
