package api

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
)

func processRoutes() []Route {
	const all, one = "/v1/sandboxes/{id}/processes", "/v1/sandboxes/{id}/processes/{pid}"
	return []Route{
		{
			Method: "POST", Path: all, Name: "startProcess", Tag: "processes", Summary: "Start a command with nobody attached",
			Body: jsonOf[atoll.Command](), Status: http.StatusCreated, Reply: jsonOf[idReply](), serve: (*Handler).serveStartProcess,
		},
		{
			Method: "GET", Path: all, Name: "listProcesses", Tag: "processes", Summary: "List processes, running and ended, oldest first",
			Reply: jsonOf[processesReply](), serve: (*Handler).serveProcesses,
		},
		{
			Method: "GET", Path: one, Name: "getProcess", Tag: "processes", Summary: "What is known of a process",
			Doc:   "Of a sandbox whose provider cannot list processes, the id only.",
			Reply: jsonOf[atoll.ProcessStatus](), serve: (*Handler).serveProcess,
		},
		{
			Method: "GET", Path: one + "/wait", Name: "waitProcess", Tag: "processes", Summary: "Wait for a process to end",
			Reply: jsonOf[atoll.Exit](), serve: (*Handler).serveWait,
		},
		{
			Method: "POST", Path: one + "/signal", Name: "signalProcess", Tag: "processes", Summary: "Send a signal; SIGKILL goes to all descendants",
			Body: jsonOf[signalRequest](), Status: http.StatusNoContent, serve: (*Handler).serveSignal,
		},
		{
			Method: "POST", Path: one + "/resize", Name: "resizeProcess", Tag: "processes", Summary: "Change the size of a terminal",
			Body: jsonOf[atoll.Size](), Status: http.StatusNoContent, serve: (*Handler).serveResize,
		},
		{
			Method: "GET", Path: one + "/output", Name: "readOutput", Tag: "processes", Summary: "Read what a process has printed",
			Doc: "The header `Atoll-Offset` says where the body begins: later than asked for when bytes were dropped.",
			Params: []Param{
				{Name: "stream", Type: "string", Doc: "`stdout`, the default, or `stderr`"},
				{Name: "offset", Type: "integer", Doc: "of the first byte; -1 means what comes from now on"},
				{Name: "follow", Type: "boolean", Doc: "go on until the process has ended"},
			},
			Reply: Content{Media: mediaBytes}, serve: (*Handler).serveOutput,
		},
		{
			Method: "POST", Path: one + "/stdin", Name: "writeStdin", Tag: "processes", Summary: "Write to a process's input or terminal",
			Params: []Param{{Name: "close", Type: "boolean", Doc: "end the input after that"}},
			Body:   Content{Media: mediaBytes}, Status: http.StatusNoContent, serve: (*Handler).serveStdin,
		},
		{
			Method: "GET", Path: one + "/attach", Name: "attach", Tag: "processes", Summary: "Stream a process's input and output, over a WebSocket",
			Doc:    "The first message is `attach`; see the description of the API for those that follow.",
			Status: http.StatusSwitchingProtocols, Stream: jsonOf[message](), serve: (*Handler).serveAttach,
		},
	}
}

type (
	processesReply struct {
		Processes []atoll.ProcessStatus `json:"processes"`
	}
	signalRequest struct {
		Signal atoll.Signal `json:"signal"` // name or number
	}
)

func (h *Handler) serveStartProcess(w http.ResponseWriter, r *http.Request) error {
	var cmd atoll.Command
	if err := h.body(w, r, &cmd, true); err != nil {
		return err
	}
	sb, err := h.sandbox(r)
	if err != nil {
		return err
	}
	p, err := sb.Exec(r.Context(), &cmd)
	if err != nil {
		return err
	}
	if r.Context().Err() != nil { // nobody will ever know the id
		kill(r.Context(), p)
		return r.Context().Err()
	}
	w.Header().Set("Location", r.URL.EscapedPath()+"/"+segment(p.ID()))
	writeJSON(w, http.StatusCreated, idReply{p.ID()})
	return nil
}

func (h *Handler) serveProcesses(w http.ResponseWriter, r *http.Request) error {
	sb, err := h.sandbox(r)
	if err != nil {
		return err
	}
	all, err := atoll.Processes(r.Context(), sb)
	if err != nil {
		return err
	}
	if all == nil {
		all = []atoll.ProcessStatus{}
	}
	writeJSON(w, http.StatusOK, processesReply{all})
	return nil
}

// Processes implements atoll.ProcessLister.
func (s *sandbox) Processes(ctx context.Context) ([]atoll.ProcessStatus, error) {
	var reply processesReply
	err := s.call(ctx, call{op: "processes", path: "/processes", reply: &reply, most: maxListReply})
	return reply.Processes, err
}

func (h *Handler) serveProcess(w http.ResponseWriter, r *http.Request) error {
	sb, err := h.sandbox(r)
	if err != nil {
		return err
	}
	p, err := sb.Process(r.Context(), r.PathValue("pid"))
	if err != nil {
		return err
	}
	all, err := atoll.Processes(r.Context(), sb)
	if k := atoll.KindOf(err); err != nil && k != atoll.ErrUnsupported && k != atoll.ErrStopped { // it may have stopped just now
		return err
	}
	i := slices.IndexFunc(all, func(st atoll.ProcessStatus) bool { return st.ID == p.ID() })
	if i < 0 {
		writeJSON(w, http.StatusOK, idReply{p.ID()})
		return nil
	}
	writeJSON(w, http.StatusOK, all[i])
	return nil
}

// Process implements atoll.Sandbox.
func (s *sandbox) Process(ctx context.Context, id string) (atoll.Process, error) {
	if id == "" {
		return nil, atoll.Errorf("process", s.id, atoll.ErrNotExist, "no process id given")
	}
	var reply idReply
	if err := s.call(ctx, call{op: "process", path: "/processes/" + segment(id), reply: &reply, most: maxSpecReply}); err != nil {
		return nil, err
	}
	return &process{sb: s, id: reply.ID}, nil
}

// A process is the client's handle for one.
type process struct {
	sb *sandbox
	id string

	// What Exec attached: neither when nothing was, else the latter where the client may
	// go on over another connection.
	run    *running
	thread *thread
}

// ID implements atoll.Process.
func (p *process) ID() string { return p.id }

// call makes a request below the process's path.
func (p *process) call(ctx context.Context, q call) error {
	q.path = "/processes/" + segment(p.id) + q.path
	return p.sb.call(ctx, q)
}

func (h *Handler) serveWait(w http.ResponseWriter, r *http.Request) error {
	ctx, done, err := h.stream(w, r)
	if err != nil {
		return err
	}
	defer done()
	p, err := h.process(r)
	if err != nil {
		return err
	}
	exit, err := p.Wait(ctx)
	if err != nil {
		if h.ctx.Err() != nil {
			return closingOn(p)
		}
		return err
	}
	writeJSON(w, http.StatusOK, exit)
	return nil
}

// Wait implements atoll.Process.
func (p *process) Wait(ctx context.Context) (atoll.Exit, error) {
	switch {
	case p.thread != nil:
		select {
		case <-p.thread.done:
		default:
			select {
			case <-p.thread.done:
			case <-ctx.Done():
				return atoll.Exit{}, ctx.Err()
			}
		}
		return p.thread.exit, p.thread.err
	case p.run != nil:
		return p.waitRunning(ctx)
	}
	return p.wait(ctx)
}

// wait asks for the exit.
func (p *process) wait(ctx context.Context) (atoll.Exit, error) {
	var exit atoll.Exit
	err := p.call(ctx, call{op: "wait", path: "/wait", reply: &exit})
	return exit, err
}

// waitRunning waits for the link that the process was started over.
func (p *process) waitRunning(ctx context.Context) (atoll.Exit, error) {
	select {
	case <-p.run.done:
	default:
		select {
		case <-p.run.done:
		case <-ctx.Done():
			return atoll.Exit{}, ctx.Err()
		}
	}
	return p.ended(p.run)
}

// ended is how the process ended that was started over run, which has ended.
func (p *process) ended(run *running) (atoll.Exit, error) {
	last, err := run.last, run.err
	switch {
	case err != nil && p.sb.c.ctx.Err() != nil:
		return atoll.Exit{}, atoll.E("wait", p.sb.id, atoll.ErrUnavailable, errClientClosed)
	case err != nil:
		return atoll.Exit{}, atoll.Errorf("wait", p.sb.id, atoll.ErrUnavailable,
			"%w, process %s may still run", p.sb.c.lost(err), p.id)
	case last.Exit != nil:
		return *last.Exit, nil
	case last.Error != nil:
		return atoll.Exit{}, last.Error.err("wait", p.sb.id)
	}
	return atoll.Exit{}, atoll.Errorf("wait", p.sb.id, atoll.ErrInternal, "the server ended with a message %q", last.Type)
}

func (h *Handler) serveSignal(w http.ResponseWriter, r *http.Request) error {
	var req signalRequest
	if err := h.body(w, r, &req, true); err != nil {
		return err
	}
	p, err := h.process(r)
	if err != nil {
		return err
	}
	if err := p.Signal(r.Context(), req.Signal); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// Signal implements atoll.Process.
func (p *process) Signal(ctx context.Context, sig atoll.Signal) error {
	if sig < 1 || sig > 64 {
		return atoll.Errorf("signal", p.sb.id, atoll.ErrInvalid, "signal %d: must be within 1..64", int(sig))
	}
	return p.call(ctx, call{op: "signal", method: "POST", path: "/signal", body: signalRequest{sig}})
}

func (h *Handler) serveResize(w http.ResponseWriter, r *http.Request) error {
	var size atoll.Size
	if err := h.body(w, r, &size, true); err != nil {
		return err
	}
	p, err := h.process(r)
	if err != nil {
		return err
	}
	if err := atoll.Resize(r.Context(), p, size); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// Resize implements atoll.Resizer.
func (p *process) Resize(ctx context.Context, size atoll.Size) error {
	return p.call(ctx, call{op: "resize", method: "POST", path: "/resize", body: size, safe: true})
}

// serveOutput answers with one stream. Where it begins is known when the first
// bytes come, or when there are none.
func (h *Handler) serveOutput(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	stream, offset, follow := q.str("stream"), q.int("offset", 0), q.bool("follow")
	if q.err != nil {
		return q.err
	}
	ctx, done, err := h.stream(w, r)
	if err != nil {
		return err
	}
	defer done()
	p, err := h.process(r)
	if err != nil {
		return err
	}
	out := &outputWriter{w: w, offset: offset, follow: follow}
	a := &atoll.Attachment{NoFollow: !follow, Gap: func(_ atoll.Stream, _, to int64) { out.offset = to }}
	switch stream {
	case "", string(atoll.Stdout):
		a.Stdout, a.StdoutFrom = out, offset
	case string(atoll.Stderr):
		a.Stderr, a.StderrFrom = out, offset
	default:
		return invalid("parameter stream: %q is neither stdout nor stderr", stream)
	}
	err = p.Attach(ctx, a)
	if err != nil && !out.begun {
		return err
	}
	if err != nil {
		return h.abort(r, err)
	}
	out.begin()
	return nil
}

// An outputWriter begins the answer with the first bytes.
type outputWriter struct {
	w      http.ResponseWriter
	offset int64
	follow bool
	begun  bool
}

func (o *outputWriter) begin() {
	if o.begun {
		return
	}
	o.begun = true
	o.w.Header().Set("Content-Type", mediaBytes)
	if o.offset >= 0 {
		o.w.Header().Set(OffsetHeader, strconv.FormatInt(o.offset, 10))
	}
	o.w.WriteHeader(http.StatusOK)
}

func (o *outputWriter) Write(p []byte) (int, error) {
	o.begin()
	n, err := o.w.Write(p)
	if err == nil && o.follow {
		err = http.NewResponseController(o.w).Flush()
	}
	return n, err
}

func (h *Handler) serveStdin(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	end := q.bool("close")
	if q.err != nil {
		return q.err
	}
	p, err := h.process(r)
	if err != nil {
		return err
	}
	in := &bodyReader{r: h.upload(w, r), open: !end}
	err = p.Attach(r.Context(), &atoll.Attachment{Stdin: in})
	if failed := in.failure(); failed != nil {
		return failed
	}
	if err != nil && !errors.Is(err, errKeepOpen) {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// errKeepOpen is how input ends that shall not end the process's stdin.
var errKeepOpen = errors.New("the input goes on later")

// A bodyReader remembers why it ended.
type bodyReader struct {
	r    io.Reader
	open bool // end with errKeepOpen

	mu  sync.Mutex
	err error
}

func (b *bodyReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err != nil && err != io.EOF {
		b.mu.Lock()
		b.err = err
		b.mu.Unlock()
	}
	if err == io.EOF && b.open {
		err = errKeepOpen
	}
	return n, err
}

func (b *bodyReader) failure() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

func (h *Handler) serveAttach(w http.ResponseWriter, r *http.Request) error {
	p, err := h.process(r)
	if err != nil {
		return err
	}
	return h.relay(w, r, func(s *relay, first message) error {
		if first.Type != msgAttach {
			return violation("the first message must be %q", msgAttach)
		}
		a := &atoll.Attachment{Name: first.Name, NoFollow: first.NoFollow, Gap: s.gap}
		if first.From != nil {
			a.StdoutFrom, a.StderrFrom = first.From.Stdout, first.From.Stderr
		}
		if first.Stdin {
			a.Stdin = s.receive(chanStdin)
		}
		a.Stdout, a.Stderr = s.outputs(first)
		s.control(p)
		s.listen()
		if err := s.ready(message{Type: msgAttached, ID: p.ID()}); err != nil {
			return err
		}
		if err := p.Attach(s.ctx, a); err != nil {
			return err
		}
		return s.send(message{Type: msgEnd})
	})
}

// gap passes a gap on, in its place among the output.
func (s *relay) gap(stream atoll.Stream, from, to int64) {
	_ = s.send(message{Type: msgGap, Stream: stream, Gap: &gap{from, to}}) // a broken link is noticed by its reader
}

// status is what is known of the process.
func (p *process) status(ctx context.Context) (atoll.ProcessStatus, error) {
	var st atoll.ProcessStatus
	err := p.call(ctx, call{op: "process", reply: &st, most: maxSpecReply})
	return st, err
}

// attachCall is the request that opens a link to the process.
func (p *process) attachCall() call {
	return call{op: "attach", id: p.sb.id, path: p.sb.path + "/processes/" + segment(p.id) + "/attach"}
}

// Attach implements atoll.Process.
func (p *process) Attach(ctx context.Context, a *atoll.Attachment) error {
	if p.sb.c.opts.Patience > 0 {
		return p.attachAgain(ctx, a)
	}
	return p.attachOnce(ctx, a)
}

// attachOnce is Attach over one link.
func (p *process) attachOnce(ctx context.Context, a *atoll.Attachment) error {
	first := message{Type: msgAttach, Name: a.Name, Stdin: a.Stdin != nil, NoFollow: a.NoFollow}
	if a.StdoutFrom != 0 || a.StderrFrom != 0 {
		first.From = &offsets{a.StdoutFrom, a.StderrFrom}
	}
	q := p.attachCall()
	run, _, err := p.sb.c.open(ctx, q, first, a.Stdin, a.Stdout, a.Stderr, a.Gap)
	if err != nil {
		return err
	}
	return p.carried(ctx, run)
}

// carried waits for the end of an attachment's link.
func (p *process) carried(ctx context.Context, run *running) error {
	const op = "attach"
	stop := context.AfterFunc(ctx, func() { run.leave(context.Cause(ctx)) })
	defer stop()
	<-run.done
	failed := run.writerError()
	switch {
	case ctx.Err() != nil && run.last.Type == "":
		return ctx.Err()
	case failed != nil:
		return failed
	case run.err != nil:
		return p.sb.c.fault(ctx, op, p.sb.id, run.err)
	case run.last.Error != nil:
		return run.last.Error.err(op, p.sb.id)
	}
	return nil
}

// attachAgain is Attach over one link after the other.
func (p *process) attachAgain(ctx context.Context, a *atoll.Attachment) error {
	from := *a
	if from.Name == "" {
		from.Name = rand.Text()
	}
	t := newThread(p, a.Stdin, a.Stdout, a.Stderr)
	t.attached = &from
	if t.in != nil {
		defer t.in.close()
	}
	if a.Stdin != nil || a.StdoutFrom < 0 || a.StderrFrom < 0 { // a place that has a number can be found again
		st, err := p.status(ctx)
		switch {
		case err != nil:
			return err
		case st.Started.IsZero(): // its provider knows no more of it than that it is there
			return p.attachOnce(ctx, a)
		}
		t.began = st.Stdin
		if from.StdoutFrom == atoll.FromNow {
			from.StdoutFrom = st.Stdout.Written
		}
		if from.StderrFrom == atoll.FromNow {
			from.StderrFrom = st.Stderr.Written
		}
	}
	if !t.joint() {
		t.out.start(from.StdoutFrom)
		t.errs.start(from.StderrFrom)
	}
	run, err := t.begin(ctx)
	for err == nil {
		opened := time.Now()
		err = p.carried(ctx, run)
		lost := t.loss(run)
		if err == nil || lost == nil || ctx.Err() != nil || run.writerError() != nil {
			return err
		}
		run, err = t.resume(ctx, opened, lost)
	}
	return err
}

var (
	_ atoll.Process       = (*process)(nil)
	_ atoll.Resizer       = (*process)(nil)
	_ atoll.ProcessLister = (*sandbox)(nil)
)
