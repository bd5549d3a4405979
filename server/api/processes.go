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
			Method: "POST", Path: all, Name: "startProcess", Tag: "processes", Summary: "Start a command without attaching to it",
			Body: jsonOf[atoll.Command](), Status: http.StatusCreated, Reply: jsonOf[idReply](), serve: (*Handler).serveStartProcess,
		},
		{
			Method: "GET", Path: all, Name: "listProcesses", Tag: "processes", Summary: "List processes, running and ended, oldest first",
			Reply: jsonOf[processesReply](), serve: (*Handler).serveProcesses,
		},
		{
			Method: "GET", Path: one, Name: "getProcess", Tag: "processes", Summary: "Get the status of a process",
			Doc:   "The reply has only the id if the provider cannot list processes.",
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
			Method: "GET", Path: one + "/output", Name: "readOutput", Tag: "processes", Summary: "Read the output of a process",
			Doc: "The header `Atoll-Offset` has the offset of the body. It is larger than the requested one if bytes were dropped.",
			Params: []Param{
				{Name: "stream", Type: "string", Doc: "`stdout`, the default, or `stderr`"},
				{Name: "offset", Type: "integer", Doc: "offset of the first byte; -1 means output from now on"},
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
			Method: "GET", Path: one + "/attach", Name: "attach", Tag: "processes", Summary: "Stream the input and output of a process over a WebSocket",
			Doc:    "The first message is `attach`; the description of the API has the others.",
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
	if err := h.decodeBody(w, r, &cmd, true); err != nil {
		return err
	}
	sb, err := h.findSandbox(r)
	if err != nil {
		return err
	}
	p, err := sb.Exec(r.Context(), &cmd)
	if err != nil {
		return err
	}
	if r.Context().Err() != nil { // the client will not learn the id
		killProcess(r.Context(), p)
		return r.Context().Err()
	}
	w.Header().Set("Location", r.URL.EscapedPath()+"/"+pathSegment(p.ID()))
	writeJSON(w, http.StatusCreated, idReply{p.ID()})
	return nil
}

func (h *Handler) serveProcesses(w http.ResponseWriter, r *http.Request) error {
	sb, err := h.findSandbox(r)
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
	err := s.callSandbox(ctx, call{op: "processes", path: "/processes", reply: &reply, replyLimit: maxListReply})
	return reply.Processes, err
}

func (h *Handler) serveProcess(w http.ResponseWriter, r *http.Request) error {
	sb, err := h.findSandbox(r)
	if err != nil {
		return err
	}
	p, err := sb.Process(r.Context(), r.PathValue("pid"))
	if err != nil {
		return err
	}
	all, err := atoll.Processes(r.Context(), sb)
	if k := atoll.KindOf(err); err != nil && k != atoll.ErrUnsupported && k != atoll.ErrStopped { // it may have just stopped
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
	if err := s.callSandbox(ctx, call{op: "process", path: "/processes/" + pathSegment(id), reply: &reply, replyLimit: maxSpecReply}); err != nil {
		return nil, err
	}
	return &process{sb: s, id: reply.ID}, nil
}

// A process is the client's handle for a process.
type process struct {
	sb *sandbox
	id string

	// The streams of Exec: both are nil for a command without streams, and resumable is set if the
	// client may reconnect.
	stream    *clientStream
	resumable *resumableStream
}

// ID implements atoll.Process.
func (p *process) ID() string { return p.id }

// callProcess makes a request below the path of the process.
func (p *process) callProcess(ctx context.Context, q call) error {
	q.path = "/processes/" + pathSegment(p.id) + q.path
	return p.sb.callSandbox(ctx, q)
}

func (h *Handler) serveWait(w http.ResponseWriter, r *http.Request) error {
	ctx, done, err := h.beginStream(w, r)
	if err != nil {
		return err
	}
	defer done()
	p, err := h.findProcess(r)
	if err != nil {
		return err
	}
	exit, err := p.Wait(ctx)
	if err != nil {
		if h.ctx.Err() != nil {
			return closingError(p)
		}
		return err
	}
	writeJSON(w, http.StatusOK, exit)
	return nil
}

// Wait implements atoll.Process.
func (p *process) Wait(ctx context.Context) (atoll.Exit, error) {
	switch {
	case p.resumable != nil:
		select {
		case <-p.resumable.done:
		default:
			select {
			case <-p.resumable.done:
			case <-ctx.Done():
				return atoll.Exit{}, ctx.Err()
			}
		}
		return p.resumable.exit, p.resumable.err
	case p.stream != nil:
		return p.waitStream(ctx)
	}
	return p.fetchExit(ctx)
}

// fetchExit requests the exit from the server and blocks until the process ends.
func (p *process) fetchExit(ctx context.Context) (atoll.Exit, error) {
	var exit atoll.Exit
	err := p.callProcess(ctx, call{op: "wait", path: "/wait", reply: &exit})
	return exit, err
}

// waitStream waits for the end of the stream connection that started the process.
func (p *process) waitStream(ctx context.Context) (atoll.Exit, error) {
	select {
	case <-p.stream.done:
	default:
		select {
		case <-p.stream.done:
		case <-ctx.Done():
			return atoll.Exit{}, ctx.Err()
		}
	}
	return p.streamExit(p.stream)
}

// streamExit returns the exit that the ended stream connection received.
func (p *process) streamExit(run *clientStream) (atoll.Exit, error) {
	last, err := run.last, run.err
	switch {
	case err != nil && p.sb.c.ctx.Err() != nil:
		return atoll.Exit{}, atoll.E("wait", p.sb.id, atoll.ErrUnavailable, errClientClosed)
	case err != nil:
		return atoll.Exit{}, atoll.Errorf("wait", p.sb.id, atoll.ErrUnavailable,
			"%w, process %s may still run", p.sb.c.describeLoss(err), p.id)
	case last.Exit != nil:
		return *last.Exit, nil
	case last.Error != nil:
		return atoll.Exit{}, last.Error.ToError("wait", p.sb.id)
	}
	return atoll.Exit{}, atoll.Errorf("wait", p.sb.id, atoll.ErrInternal, "the server ended with a message %q", last.Type)
}

func (h *Handler) serveSignal(w http.ResponseWriter, r *http.Request) error {
	var req signalRequest
	if err := h.decodeBody(w, r, &req, true); err != nil {
		return err
	}
	p, err := h.findProcess(r)
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
	return p.callProcess(ctx, call{op: "signal", method: "POST", path: "/signal", body: signalRequest{sig}})
}

func (h *Handler) serveResize(w http.ResponseWriter, r *http.Request) error {
	var size atoll.Size
	if err := h.decodeBody(w, r, &size, true); err != nil {
		return err
	}
	p, err := h.findProcess(r)
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
	return p.callProcess(ctx, call{op: "resize", method: "POST", path: "/resize", body: size, idempotent: true})
}

// serveOutput sends one stream. Its offset is known with the first bytes, or at the end of an empty
// stream.
func (h *Handler) serveOutput(w http.ResponseWriter, r *http.Request) error {
	q := parseQuery(r)
	stream, offset, follow := q.getString("stream"), q.getInt("offset", 0), q.getBool("follow")
	if q.err != nil {
		return q.err
	}
	ctx, done, err := h.beginStream(w, r)
	if err != nil {
		return err
	}
	defer done()
	p, err := h.findProcess(r)
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
		return invalidError("parameter stream: %q is neither stdout nor stderr", stream)
	}
	err = p.Attach(ctx, a)
	if err != nil && !out.begun {
		return err
	}
	if err != nil {
		return h.abortResponse(r, err)
	}
	out.writeHeader()
	return nil
}

// An outputWriter sends the response header before the first bytes.
type outputWriter struct {
	w      http.ResponseWriter
	offset int64
	follow bool
	begun  bool
}

func (o *outputWriter) writeHeader() {
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
	o.writeHeader()
	n, err := o.w.Write(p)
	if err == nil && o.follow {
		err = http.NewResponseController(o.w).Flush()
	}
	return n, err
}

func (h *Handler) serveStdin(w http.ResponseWriter, r *http.Request) error {
	q := parseQuery(r)
	end := q.getBool("close")
	if q.err != nil {
		return q.err
	}
	p, err := h.findProcess(r)
	if err != nil {
		return err
	}
	in := &bodyReader{r: h.uploadBody(w, r), open: !end}
	err = p.Attach(r.Context(), &atoll.Attachment{Stdin: in})
	if failed := in.readFailure(); failed != nil {
		return failed
	}
	if err != nil && !errors.Is(err, errKeepOpen) {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// errKeepOpen ends the input of an attachment without closing the stdin of the process.
var errKeepOpen = errors.New("the input continues later")

// A bodyReader records the error that ended the body.
type bodyReader struct {
	r    io.Reader
	open bool // return errKeepOpen at the end

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

func (b *bodyReader) readFailure() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

func (h *Handler) serveAttach(w http.ResponseWriter, r *http.Request) error {
	p, err := h.findProcess(r)
	if err != nil {
		return err
	}
	return h.serveStream(w, r, func(s *serverStream, first message) error {
		if first.Type != msgAttach {
			return protocolErrorf("the first message must be %q", msgAttach)
		}
		a := &atoll.Attachment{Name: first.Name, NoFollow: first.NoFollow, Gap: s.sendGap}
		if first.From != nil {
			a.StdoutFrom, a.StderrFrom = first.From.Stdout, first.From.Stderr
		}
		if first.Stdin {
			a.Stdin = s.OpenReader(chanStdin)
		}
		a.Stdout, a.Stderr = s.outputWriters(first)
		s.setProcess(p)
		s.startReading()
		if err := s.startOutput(message{Type: msgAttached, ID: p.ID()}); err != nil {
			return err
		}
		if err := p.Attach(s.ctx, a); err != nil {
			return err
		}
		return s.SendMessage(message{Type: msgEnd})
	})
}

// sendGap reports a gap at its place in the output.
func (s *serverStream) sendGap(stream atoll.Stream, from, to int64) {
	_ = s.SendMessage(message{Type: msgGap, Stream: stream, Gap: &gap{from, to}}) // readMessage reports a broken connection
}

// fetchStatus requests the status of the process.
func (p *process) fetchStatus(ctx context.Context) (atoll.ProcessStatus, error) {
	var st atoll.ProcessStatus
	err := p.callProcess(ctx, call{op: "process", reply: &st, replyLimit: maxSpecReply})
	return st, err
}

// attachCall returns the request that opens a stream connection to the process.
func (p *process) attachCall() call {
	return call{op: "attach", id: p.sb.id, path: p.sb.path + "/processes/" + pathSegment(p.id) + "/attach"}
}

// Attach implements atoll.Process.
func (p *process) Attach(ctx context.Context, a *atoll.Attachment) error {
	if p.sb.c.opts.Patience > 0 {
		return p.attachResuming(ctx, a)
	}
	return p.attachOnce(ctx, a)
}

// attachOnce is Attach over one stream connection.
func (p *process) attachOnce(ctx context.Context, a *atoll.Attachment) error {
	first := message{Type: msgAttach, Name: a.Name, Stdin: a.Stdin != nil, NoFollow: a.NoFollow}
	if a.StdoutFrom != 0 || a.StderrFrom != 0 {
		first.From = &offsets{a.StdoutFrom, a.StderrFrom}
	}
	q := p.attachCall()
	run, _, err := p.sb.c.openStream(ctx, q, first, a.Stdin, a.Stdout, a.Stderr, a.Gap)
	if err != nil {
		return err
	}
	return p.waitAttached(ctx, run)
}

// waitAttached waits for the end of an attachment's stream connection.
func (p *process) waitAttached(ctx context.Context, run *clientStream) error {
	const op = "attach"
	stop := context.AfterFunc(ctx, func() { run.leaveStream(context.Cause(ctx)) })
	defer stop()
	<-run.done
	failed := run.writerError()
	switch {
	case ctx.Err() != nil && run.last.Type == "":
		return ctx.Err()
	case failed != nil:
		return failed
	case run.err != nil:
		return p.sb.c.wrapConnError(ctx, op, p.sb.id, run.err)
	case run.last.Error != nil:
		return run.last.Error.ToError(op, p.sb.id)
	}
	return nil
}

// attachResuming is Attach over successive stream connections.
func (p *process) attachResuming(ctx context.Context, a *atoll.Attachment) error {
	named := *a
	if named.Name == "" {
		named.Name = rand.Text()
	}
	t := newResumableStream(p, a.Stdin, a.Stdout, a.Stderr)
	t.attached = &named
	if t.input != nil {
		defer t.input.closeInput()
	}
	if a.Stdin != nil || a.StdoutFrom < 0 || a.StderrFrom < 0 { // to resume, the client needs absolute offsets
		st, err := p.fetchStatus(ctx)
		switch {
		case err != nil:
			return err
		case st.Started.IsZero(): // the provider has no status, so the streams cannot resume
			return p.attachOnce(ctx, a)
		}
		t.inputBase = st.Stdin
		if named.StdoutFrom == atoll.FromNow {
			named.StdoutFrom = st.Stdout.Written
		}
		if named.StderrFrom == atoll.FromNow {
			named.StderrFrom = st.Stderr.Written
		}
	}
	if !t.isJoint() {
		t.stdout.startAt(named.StdoutFrom)
		t.stderr.startAt(named.StderrFrom)
	}
	run, err := t.openFirst(ctx)
	for err == nil {
		opened := time.Now()
		err = p.waitAttached(ctx, run)
		lost := t.connectionLoss(run)
		if err == nil || lost == nil || ctx.Err() != nil || run.writerError() != nil {
			return err
		}
		run, err = t.openNext(ctx, opened, lost)
	}
	return err
}

var (
	_ atoll.Process       = (*process)(nil)
	_ atoll.Resizer       = (*process)(nil)
	_ atoll.ProcessLister = (*sandbox)(nil)
)
