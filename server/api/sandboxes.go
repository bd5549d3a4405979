package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
)

func sandboxRoutes() []Route {
	action := func(name, summary string, status int, body, reply Content, serve func(*Handler, http.ResponseWriter, *http.Request) error) Route {
		return Route{
			Method: "POST", Path: "/v1/sandboxes/{id}/" + name, Name: name, Tag: "sandboxes", Summary: summary,
			Status: status, Body: body, Reply: reply, serve: serve,
		}
	}
	return []Route{
		{
			Method: "POST", Path: "/v1/sandboxes", Name: "create", Tag: "sandboxes", Summary: "Create and start a sandbox",
			Doc:  "The response follows when the sandbox runs. The server removes the sandbox if the client disconnects before.",
			Body: jsonOf[atoll.Spec](), Status: http.StatusCreated, Reply: jsonOf[idReply](), serve: (*Handler).serveCreate,
		},
		{
			Method: "GET", Path: "/v1/sandboxes", Name: "list", Tag: "sandboxes", Summary: "List sandboxes, oldest first",
			Params: []Param{
				{Name: "name", Type: "string", Doc: "only the sandbox with this name"},
				{Name: "project", Type: "string", Doc: "only sandboxes of this project"},
				{Name: "provider", Type: "string", Doc: "only sandboxes of this provider, if the server has several"},
				{Name: "label", Type: "string", Doc: "`key=value`: only sandboxes with this label; `=` and `%` in the key are percent-encoded", Many: true},
				{Name: "state", Type: "string", Doc: "only sandboxes in one of these states: " + listStates, Many: true},
			},
			Reply: jsonOf[sandboxesReply](), serve: (*Handler).serveList,
		},
		{
			Method: "GET", Path: "/v1/watch", Name: "watch", Tag: "sandboxes", Summary: "Watch all changes of state",
			Doc: "The stream begins with one event `state` for each sandbox and one event `synced`; an event `state` follows for each change. " +
				"An event `error` ends the stream; `unavailable` means that the client read too slowly or the server is closing.",
			Reply: eventsOf[atoll.Event](), serve: (*Handler).serveWatch,
		},
		{
			Method: "GET", Path: "/v1/resolve", Name: "resolve", Tag: "sandboxes", Summary: "Find the id for a name, or check an id",
			Params: []Param{
				{Name: "id", Type: "string", Doc: "an id; the reply has its canonical form"},
				{Name: "name", Type: "string", Doc: "a name, or an id"},
				{Name: "project", Type: "string", Doc: "the project of the name"},
			},
			Reply: jsonOf[idReply](), serve: (*Handler).serveResolve,
		},
		{
			Method: "GET", Path: "/v1/sandboxes/{id}", Name: "get", Tag: "sandboxes", Summary: "Get the status of a sandbox",
			Reply: jsonOf[atoll.Status](), serve: (*Handler).serveStatus,
		},
		{
			Method: "DELETE", Path: "/v1/sandboxes/{id}", Name: "remove", Tag: "sandboxes", Summary: "Remove a sandbox",
			Params: []Param{{Name: "volumes", Type: "boolean", Doc: "also delete its data volume"}},
			Status: http.StatusNoContent, serve: (*Handler).serveRemove,
		},
		action("start", "Start a created, stopped or failed sandbox", http.StatusNoContent, Content{}, Content{}, (*Handler).serveStart),
		action("stop", "Stop a sandbox and retain its files", http.StatusNoContent, jsonOf[stopRequest](), Content{}, (*Handler).serveStop),
		action("pause", "Freeze all processes", http.StatusNoContent, Content{}, Content{}, (*Handler).servePause),
		action("resume", "Undo a pause", http.StatusNoContent, Content{}, Content{}, (*Handler).serveResume),
		action("extend", "Change the expiry of a sandbox", http.StatusNoContent, jsonOf[extendRequest](), Content{}, (*Handler).serveExtend),
		action("snapshot", "Take a snapshot of a running sandbox", http.StatusCreated, Content{}, jsonOf[atoll.Snapshot](), (*Handler).serveSnapshot),
		{
			Method: "GET", Path: "/v1/sandboxes/{id}/usage", Name: "usage", Tag: "sandboxes", Summary: "Get the resource usage of a sandbox",
			Reply: jsonOf[atoll.Usage](), serve: (*Handler).serveUsage,
		},
	}
}

type (
	idReply struct {
		ID string `json:"id"`
	}
	sandboxesReply struct {
		Sandboxes []atoll.Status `json:"sandboxes"`
	}
	stopRequest struct {
		// Grace is the time for processes to end; absent means the default.
		Grace *atoll.Duration `json:"grace,omitempty"`
	}
)

// An extendRequest sets the time until the expiry, from now; "never" removes the expiry.
type extendRequest struct {
	TTL atoll.Duration `json:"ttl"`
}

func (h *Handler) serveCreate(w http.ResponseWriter, r *http.Request) error {
	var spec atoll.Spec
	if err := h.decodeBody(w, r, &spec, true); err != nil {
		return err
	}
	sb, err := h.provider.Create(r.Context(), &spec)
	if err != nil {
		return err
	}
	if r.Context().Err() != nil { // the client will not learn the id
		h.removeAbandoned(r.Context(), sb, spec.ID == "")
		return r.Context().Err()
	}
	w.Header().Set("Location", "/v1/sandboxes/"+sb.ID())
	writeJSON(w, http.StatusCreated, idReply{sb.ID()})
	return nil
}

// removeAbandoned removes a sandbox whose client disconnected during the create. volumes must be
// false if the client chose the id, because the data volume may be older than the sandbox.
func (h *Handler) removeAbandoned(ctx context.Context, sb atoll.Sandbox, volumes bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), discardTimeout)
	defer cancel()
	var opts []atoll.RemoveOption
	if volumes {
		opts = append(opts, atoll.RemoveVolumes())
	}
	if err := sb.Remove(ctx, opts...); err != nil {
		h.log.WarnContext(ctx, "remove", "sandbox", sb.ID(), "request", RequestID(ctx), "err", err)
	}
}

const (
	discardTimeout = 30 * time.Second
	createGrace    = discardTimeout + 5*time.Second // the time for the server to undo a Create
)

// Create implements atoll.Provider.
func (c *Client) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	if err := spec.Validate(); err != nil { // JSON would change invalid values before the server validates them
		return nil, err
	}
	var reply idReply
	q := call{op: "create", id: spec.Name, method: "POST", path: "/v1/sandboxes", reply: &reply, undoTimeout: createGrace}
	body, err := json.Marshal(spec)
	if err != nil {
		return nil, atoll.E(q.op, q.id, atoll.ErrInvalid, err)
	}
	for t, maybeDone := (retrier{c: c}), false; ; {
		err = c.callUndoable(ctx, q, bytes.NewReader(body), mediaJSON)
		kind := atoll.KindOf(err)
		switch {
		case maybeDone && kind == atoll.ErrAlreadyExists:
			if !c.isCreated(ctx, spec.ID) && t.waitPause(ctx) {
				continue // only a record or an incomplete sandbox of a server that died
			}
			return nil, atoll.E(q.op, q.id, kind, fmt.Errorf("%w: the sandbox may come from this call, whose connection was lost", causeOf(err)))
		case maybeDone && kind == atoll.ErrConflict && t.waitPause(ctx): // the holder may have died
			continue
		}
		if err == nil || !t.allowRetry(ctx, err, spec.ID != "") {
			break
		}
		maybeDone = maybeDone || outcomeOf(err) == outcomeUnknown
	}
	if err == nil && ctx.Err() == nil {
		return c.Sandbox(reply.ID), nil
	}
	if err == nil { // created after ctx ended, so the caller will not learn the id
		err = ctx.Err()
		c.undoCreate(ctx, reply.ID, spec.ID == "")
	}
	return nil, err
}

// isCreated reports whether the server has a sandbox with that id whose creation is complete.
func (c *Client) isCreated(ctx context.Context, id string) bool {
	sb, err := c.Get(ctx, id)
	if err == nil {
		var st atoll.Status
		if st, err = sb.Status(ctx); err == nil {
			return st.State != atoll.StateCreating
		}
	}
	return atoll.KindOf(err) != atoll.ErrNotFound
}

// undoCreate removes a sandbox, even if ctx has ended.
func (c *Client) undoCreate(ctx context.Context, id string, volumes bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), discardTimeout)
	defer cancel()
	var opts []atoll.RemoveOption
	if volumes {
		opts = append(opts, atoll.RemoveVolumes())
	}
	_ = c.Sandbox(id).Remove(ctx, opts...) // the server logs a failure
}

// listStates are the possible states of a sandbox in a list.
const listStates = string(atoll.StateCreating + ", " + atoll.StateCreated + ", " + atoll.StateRunning + ", " +
	atoll.StatePaused + ", " + atoll.StateStopped + ", " + atoll.StateFailed)

func (h *Handler) serveList(w http.ResponseWriter, r *http.Request) error {
	q := parseQuery(r)
	f := atoll.Filter{Name: q.getString("name"), Project: q.getString("project"), Provider: q.getString("provider")}
	for _, label := range q.getStrings("label") {
		k, v, ok := strings.Cut(label, "=")
		k, err := url.PathUnescape(k)
		if !ok || err != nil {
			return invalidError("parameter label: %q is not key=value", label)
		}
		if f.Labels == nil {
			f.Labels = map[string]string{}
		}
		f.Labels[k] = v
	}
	for _, s := range q.getStrings("state") {
		if !slices.Contains(strings.Split(listStates, ", "), s) {
			return invalidError("parameter state: %q is none of %s", s, listStates)
		}
		f.States = append(f.States, atoll.State(s))
	}
	all, err := h.provider.List(r.Context(), f)
	if err != nil {
		return err
	}
	if all == nil {
		all = []atoll.Status{}
	}
	writeJSON(w, http.StatusOK, sandboxesReply{all})
	return nil
}

// labelKeyEscaper escapes a label key for the parameter label.
var labelKeyEscaper = strings.NewReplacer("%", "%25", "=", "%3D")

// List implements atoll.Provider.
func (c *Client) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	q := url.Values{}
	if f.Name != "" {
		q.Set("name", f.Name)
	}
	if f.Project != "" {
		q.Set("project", f.Project)
	}
	if f.Provider != "" {
		q.Set("provider", f.Provider)
	}
	for k, v := range f.Labels {
		q.Add("label", labelKeyEscaper.Replace(k)+"="+v)
	}
	for _, s := range f.States {
		q.Add("state", string(s))
	}
	var reply sandboxesReply
	err := c.callServer(ctx, call{op: "list", path: "/v1/sandboxes", query: q, reply: &reply, replyLimit: maxListReply})
	return reply.Sandboxes, err
}

func (h *Handler) serveResolve(w http.ResponseWriter, r *http.Request) error {
	q := parseQuery(r)
	id, name, project := q.getString("id"), q.getString("name"), q.getString("project")
	var sb atoll.Sandbox
	var err error
	switch {
	case (id == "") == (name == ""):
		return invalidError("give either the parameter id or name")
	case id != "":
		sb, err = h.provider.Get(r.Context(), id)
	default:
		sb, err = atoll.Resolve(r.Context(), h.provider, project, name)
	}
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, idReply{sb.ID()})
	return nil
}

// Get implements atoll.Provider.
func (c *Client) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	norm, err := atoll.NormalizeID(id)
	if err != nil || norm == "" {
		return nil, atoll.E("get", id, atoll.ErrNotFound, nil)
	}
	var reply idReply
	err = c.callServer(ctx, call{op: "get", id: id, path: "/v1/resolve", query: url.Values{"id": {norm}}, reply: &reply})
	if err != nil {
		return nil, err
	}
	return c.Sandbox(norm), nil
}

// Resolve implements atoll.Resolver.
func (c *Client) Resolve(ctx context.Context, project, name string) (string, error) {
	q := url.Values{"name": {name}}
	if project != "" {
		q.Set("project", project)
	}
	var reply idReply
	err := c.callServer(ctx, call{op: "get", id: name, path: "/v1/resolve", query: q, reply: &reply})
	return reply.ID, err
}

// Sandbox returns a handle for the sandbox with that id. It does not check that the sandbox exists;
// if it does not, the methods of the handle return ErrNotFound.
func (c *Client) Sandbox(id string) atoll.Sandbox {
	if norm, err := atoll.NormalizeID(id); err == nil {
		id = norm
	}
	return &sandbox{c: c, id: id, path: "/v1/sandboxes/" + pathSegment(id)}
}

// A sandbox is the client's handle for a sandbox.
type sandbox struct {
	c    *Client
	id   string
	path string // path of its URL
}

// ID implements atoll.Sandbox.
func (s *sandbox) ID() string { return s.id }

// callSandbox makes a request below the path of the sandbox.
func (s *sandbox) callSandbox(ctx context.Context, q call) error {
	q.id, q.path = s.id, s.path+q.path
	return s.c.callServer(ctx, q)
}

func (h *Handler) serveStatus(w http.ResponseWriter, r *http.Request) error {
	sb, err := h.findSandbox(r)
	if err != nil {
		return err
	}
	st, err := sb.Status(r.Context())
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, st)
	return nil
}

// Status implements atoll.Sandbox.
func (s *sandbox) Status(ctx context.Context) (atoll.Status, error) {
	var st atoll.Status
	err := s.callSandbox(ctx, call{op: "status", reply: &st, replyLimit: maxSpecReply})
	return st, err
}

// serveAction runs do with the sandbox in the path, and sends an empty response.
func (h *Handler) serveAction(w http.ResponseWriter, r *http.Request, do func(sb atoll.Sandbox) error) error {
	sb, err := h.findSandbox(r)
	if err != nil {
		return err
	}
	if err := do(sb); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (h *Handler) serveStart(w http.ResponseWriter, r *http.Request) error {
	return h.serveAction(w, r, func(sb atoll.Sandbox) error { return sb.Start(r.Context()) })
}

// Start implements atoll.Sandbox.
func (s *sandbox) Start(ctx context.Context) error {
	return s.callSandbox(ctx, call{op: "start", method: "POST", path: "/start", idempotent: true})
}

func (h *Handler) serveStop(w http.ResponseWriter, r *http.Request) error {
	var req stopRequest
	if err := h.decodeBody(w, r, &req, false); err != nil {
		return err
	}
	grace := time.Duration(-1)
	if req.Grace != nil {
		grace = time.Duration(*req.Grace)
	}
	return h.serveAction(w, r, func(sb atoll.Sandbox) error { return sb.Stop(r.Context(), grace) })
}

// Stop implements atoll.Sandbox.
func (s *sandbox) Stop(ctx context.Context, grace time.Duration) error {
	q := call{op: "stop", method: "POST", path: "/stop", idempotent: true}
	if grace >= 0 {
		d := atoll.Duration(grace)
		q.body = stopRequest{Grace: &d}
	}
	return s.callSandbox(ctx, q)
}

func (h *Handler) servePause(w http.ResponseWriter, r *http.Request) error {
	return h.serveAction(w, r, func(sb atoll.Sandbox) error { return atoll.Pause(r.Context(), sb) })
}

// Pause implements atoll.Pauser.
func (s *sandbox) Pause(ctx context.Context) error {
	return s.callSandbox(ctx, call{op: "pause", method: "POST", path: "/pause", idempotent: true})
}

func (h *Handler) serveResume(w http.ResponseWriter, r *http.Request) error {
	return h.serveAction(w, r, func(sb atoll.Sandbox) error { return atoll.Resume(r.Context(), sb) })
}

// Resume implements atoll.Pauser.
func (s *sandbox) Resume(ctx context.Context) error {
	return s.callSandbox(ctx, call{op: "resume", method: "POST", path: "/resume", idempotent: true})
}

func (h *Handler) serveExtend(w http.ResponseWriter, r *http.Request) error {
	var req extendRequest
	if err := h.decodeBody(w, r, &req, true); err != nil {
		return err
	}
	return h.serveAction(w, r, func(sb atoll.Sandbox) error { return atoll.Extend(r.Context(), sb, req.TTL) })
}

// Extend implements atoll.Extender.
func (s *sandbox) Extend(ctx context.Context, ttl atoll.Duration) error {
	return s.callSandbox(ctx, call{op: "extend", method: "POST", path: "/extend", body: extendRequest{ttl}, idempotent: true})
}

func (h *Handler) serveSnapshot(w http.ResponseWriter, r *http.Request) error {
	sb, err := h.findSandbox(r)
	if err != nil {
		return err
	}
	snap, err := atoll.TakeSnapshot(r.Context(), sb)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, snap)
	return nil
}

// Snapshot implements atoll.Snapshotter.
func (s *sandbox) Snapshot(ctx context.Context) (atoll.Snapshot, error) {
	var snap atoll.Snapshot
	err := s.callSandbox(ctx, call{op: "snapshot", method: "POST", path: "/snapshot", reply: &snap, replyLimit: maxSpecReply})
	return snap, err
}

func (h *Handler) serveUsage(w http.ResponseWriter, r *http.Request) error {
	sb, err := h.findSandbox(r)
	if err != nil {
		return err
	}
	usage, err := atoll.UsageOf(r.Context(), sb)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, usage)
	return nil
}

// Usage implements atoll.Meter.
func (s *sandbox) Usage(ctx context.Context) (atoll.Usage, error) {
	var usage atoll.Usage
	err := s.callSandbox(ctx, call{op: "usage", path: "/usage", reply: &usage})
	return usage, err
}

func (h *Handler) serveRemove(w http.ResponseWriter, r *http.Request) error {
	q := parseQuery(r)
	var opts []atoll.RemoveOption
	if q.getBool("volumes") {
		opts = append(opts, atoll.RemoveVolumes())
	}
	if q.err != nil {
		return q.err
	}
	return h.serveAction(w, r, func(sb atoll.Sandbox) error { return sb.Remove(r.Context(), opts...) })
}

// Remove implements atoll.Sandbox. It returns nil if the server does not know the sandbox.
func (s *sandbox) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	q := call{op: "remove", method: "DELETE", idempotent: true}
	if atoll.RemoveOpts(opts...).Volumes {
		q.query = url.Values{"volumes": {"true"}}
	}
	err := s.callSandbox(ctx, q)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return s.removeLeft(ctx, opts...)
	}
	return err
}

// removeLeft deletes the data volume of a sandbox that is already removed, if opts ask for it and
// no other sandbox uses the volume.
func (s *sandbox) removeLeft(ctx context.Context, opts ...atoll.RemoveOption) error {
	if !atoll.RemoveOpts(opts...).Volumes {
		return nil
	}
	all, err := s.c.Volumes(ctx, "")
	if atoll.KindOf(err) == atoll.ErrUnsupported {
		return nil
	}
	for _, v := range all {
		if v.Sandbox == s.id && !v.InUse {
			err = s.c.RemoveVolume(ctx, v.Project, v.Name)
		}
	}
	if k := atoll.KindOf(err); k == atoll.ErrNotExist || k == atoll.ErrConflict {
		return nil
	}
	return err
}

var (
	_ atoll.Sandbox     = (*sandbox)(nil)
	_ atoll.Resolver    = (*Client)(nil)
	_ atoll.Pauser      = (*sandbox)(nil)
	_ atoll.Meter       = (*sandbox)(nil)
	_ atoll.Snapshotter = (*sandbox)(nil)
)
