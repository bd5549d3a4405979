package api

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

func processRoutes() []Route {
	const all, one = "/v1/sandboxes/{id}/processes", "/v1/sandboxes/{id}/processes/{pid}"
	return []Route{
		{
			Method: "POST", Path: all, Name: "startProcess", Tag: "processes", Summary: "Start a command without attaching to it",
			Body: jsonOf[atoll.Command](), Status: http.StatusCreated, Reply: jsonOf[wire.IDReply](), serve: (*Handler).serveStartProcess,
		},
		{
			Method: "GET", Path: all, Name: "listProcesses", Tag: "processes", Summary: "List processes, running and ended, oldest first",
			Reply: jsonOf[wire.ProcessesReply](), serve: (*Handler).serveProcesses,
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
			Body: jsonOf[wire.SignalRequest](), Status: http.StatusNoContent, serve: (*Handler).serveSignal,
		},
		{
			Method: "POST", Path: one + "/resize", Name: "resizeProcess", Tag: "processes", Summary: "Change the size of a terminal",
			Body: jsonOf[atoll.Size](), Status: http.StatusNoContent, serve: (*Handler).serveResize,
		},
		{
			Method: "GET", Path: one + "/output", Name: "readProcessOutput", Tag: "processes", Summary: "Read the output of a process",
			Doc: "The header `Atoll-Offset` has the offset of the body. It is larger than the requested one if bytes were dropped.",
			Params: []Param{
				{Name: "stream", Type: "string", Doc: "`stdout`, the default, or `stderr`"},
				{Name: "offset", Type: "integer", Doc: "offset of the first byte; -1 means output from now on"},
				{Name: "follow", Type: "boolean", Doc: "go on until the process has ended"},
			},
			Reply: Content{Media: wire.MediaBytes}, serve: (*Handler).serveOutput,
		},
		{
			Method: "POST", Path: one + "/stdin", Name: "writeProcessStdin", Tag: "processes", Summary: "Write to a process's input or terminal",
			Params: []Param{{Name: "close", Type: "boolean", Doc: "end the input after that"}},
			Body:   Content{Media: wire.MediaBytes}, Status: http.StatusNoContent, serve: (*Handler).serveStdin,
		},
		{
			Method: "GET", Path: one + "/attach", Name: "attachToProcess", Tag: "processes", Summary: "Stream the input and output of a process over a WebSocket",
			Doc:    "The first message is `attach`; the description of the API has the others.",
			Status: http.StatusSwitchingProtocols, Stream: jsonOf[wire.Message](), serve: (*Handler).serveAttach,
		},
	}
}

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
	w.Header().Set("Location", r.URL.EscapedPath()+"/"+wire.PathSegment(p.ID()))
	writeJSON(w, http.StatusCreated, wire.IDReply{ID: p.ID()})
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
	writeJSON(w, http.StatusOK, wire.ProcessesReply{Processes: all})
	return nil
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
		writeJSON(w, http.StatusOK, wire.IDReply{ID: p.ID()})
		return nil
	}
	writeJSON(w, http.StatusOK, all[i])
	return nil
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

func (h *Handler) serveSignal(w http.ResponseWriter, r *http.Request) error {
	var req wire.SignalRequest
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
	o.w.Header().Set("Content-Type", wire.MediaBytes)
	if o.offset >= 0 {
		o.w.Header().Set(wire.OffsetHeader, strconv.FormatInt(o.offset, 10))
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
	return h.serveStream(w, r, func(s *serverStream, first wire.Message) error {
		if first.Type != wire.MsgAttach {
			return wire.ProtocolErrorf("the first message must be %q", wire.MsgAttach)
		}
		a := &atoll.Attachment{Name: first.Name, NoFollow: first.NoFollow, Gap: s.sendGap}
		if first.From != nil {
			a.StdoutFrom, a.StderrFrom = first.From.Stdout, first.From.Stderr
		}
		if first.Stdin {
			a.Stdin = s.OpenReader(wire.ChanStdin)
		}
		a.Stdout, a.Stderr = s.outputWriters(first)
		s.setProcess(p)
		s.startReading()
		if err := s.startOutput(wire.Message{Type: wire.MsgAttached, ID: p.ID()}); err != nil {
			return err
		}
		if err := p.Attach(s.ctx, a); err != nil {
			return err
		}
		return s.SendMessage(wire.Message{Type: wire.MsgEnd})
	})
}

// sendGap reports a gap at its place in the output.
func (s *serverStream) sendGap(stream atoll.Stream, from, to int64) {
	_ = s.SendMessage(wire.Message{Type: wire.MsgGap, Stream: stream, Gap: &wire.Gap{From: from, To: to}}) // ReadMessage reports a broken connection
}
