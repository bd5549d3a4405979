package api

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

func sandboxRoutes() []Route {
	action := func(name, summary string, status int, body, reply Content, serve func(*Handler, http.ResponseWriter, *http.Request) error) Route {
		return Route{
			Method: "POST", Path: "/v1/sandboxes/{id}/" + name, Name: name + "Sandbox", Tag: "sandboxes", Summary: summary,
			Status: status, Body: body, Reply: reply, serve: serve,
		}
	}
	return []Route{
		{
			Method: "POST", Path: "/v1/sandboxes", Name: "createSandbox", Tag: "sandboxes", Summary: "Create and start a sandbox",
			Doc: "The response follows when the sandbox runs. The server removes the sandbox if the client disconnects before. " +
				"With the header `Prefer: return=minimal` the response has only the `id`.",
			Body: jsonOf[wire.CreateRequest](), Status: http.StatusCreated, Reply: jsonOf[atoll.Status](), serve: (*Handler).serveCreate,
		},
		{
			Method: "GET", Path: "/v1/sandboxes", Name: "listSandboxes", Tag: "sandboxes", Summary: "List sandboxes, oldest first",
			Params: []Param{
				{Name: "name", Type: "string", Doc: "only the sandbox with this name"},
				{Name: "project", Type: "string", Doc: "only sandboxes of this project"},
				{Name: "provider", Type: "string", Doc: "only sandboxes of this provider, if the server has several"},
				{Name: "label", Type: "string", Doc: "`key=value`: only sandboxes with this label; `=` and `%` in the key are percent-encoded", Many: true},
				{Name: "state", Type: "string", Doc: "only sandboxes in one of these states: " + listStates, Many: true},
			},
			Reply: jsonOf[wire.SandboxesReply](), serve: (*Handler).serveList,
		},
		{
			Method: "GET", Path: "/v1/watch", Name: "watchSandboxes", Tag: "sandboxes", Summary: "Watch all changes of state",
			Doc: "The stream begins with one event `state` for each sandbox and one event `synced`; an event `state` follows for each change. " +
				"An event `error` ends the stream; `unavailable` means that the client read too slowly or the server is closing. " + finalDoc,
			Reply: eventsOf[atoll.Event](), serve: (*Handler).serveWatch,
		},
		{
			Method: "GET", Path: "/v1/resolve", Name: "resolveSandbox", Tag: "sandboxes", Summary: "Find a sandbox by its name or id",
			Doc: "With the header `Prefer: return=minimal` the response has only the `id`.",
			Params: []Param{
				{Name: "id", Type: "string", Doc: "an id; the reply has its canonical form"},
				{Name: "name", Type: "string", Doc: "a name, or an id"},
				{Name: "project", Type: "string", Doc: "the project of the name"},
			},
			Reply: jsonOf[atoll.Status](), serve: (*Handler).serveResolve,
		},
		{
			Method: "GET", Path: "/v1/sandboxes/{id}", Name: "getSandbox", Tag: "sandboxes", Summary: "Get the status of a sandbox",
			Reply: jsonOf[atoll.Status](), serve: (*Handler).serveStatus,
		},
		{
			Method: "DELETE", Path: "/v1/sandboxes/{id}", Name: "removeSandbox", Tag: "sandboxes", Summary: "Remove a sandbox",
			Params: []Param{{Name: "volumes", Type: "boolean", Doc: "also delete its data volume"}},
			Status: http.StatusNoContent, serve: (*Handler).serveRemove,
		},
		action("start", "Start a created, stopped or failed sandbox", http.StatusNoContent, Content{}, Content{}, (*Handler).serveStart),
		action("stop", "Stop a sandbox and retain its files", http.StatusNoContent, jsonOf[wire.StopRequest](), Content{}, (*Handler).serveStop),
		action("pause", "Freeze all processes", http.StatusNoContent, Content{}, Content{}, (*Handler).servePause),
		action("resume", "Undo a pause", http.StatusNoContent, Content{}, Content{}, (*Handler).serveResume),
		action("extend", "Change the expiry of a sandbox", http.StatusNoContent, jsonOf[wire.ExtendRequest](), Content{}, (*Handler).serveExtend),
		{
			Method: "POST", Path: "/v1/sandboxes/{id}/snapshot", Name: "snapshotSandbox", Tag: "sandboxes", Summary: "Take a snapshot of a running sandbox",
			Params: []Param{{Name: "no_work", Type: "boolean", Doc: "leave out the files of its data volume, /work"}},
			Status: http.StatusCreated, Reply: jsonOf[atoll.Snapshot](), serve: (*Handler).serveSnapshot,
		},
		{
			Method: "GET", Path: "/v1/sandboxes/{id}/usage", Name: "getSandboxUsage", Tag: "sandboxes", Summary: "Get the resource usage of a sandbox",
			Reply: jsonOf[atoll.Usage](), serve: (*Handler).serveUsage,
		},
		{
			Method: "GET", Path: "/v1/sandboxes/{id}/refusals", Name: "listSandboxRefusals", Tag: "sandboxes", Summary: "Get what the network of a sandbox refused",
			Reply: jsonOf[atoll.Refusals](), serve: (*Handler).serveRefusals,
		},
		{
			Method: "GET", Path: "/v1/sandboxes/{id}/network/log", Name: "getSandboxNetworkLog", Tag: "sandboxes", Summary: "Get what the network of a sandbox decided",
			Params: []Param{
				{Name: "after", Type: "integer", Doc: "leave out the events up to this number"},
				{Name: "wait", Type: "string", Doc: "wait so long for an event, at most 1m, if there are none; 0s by default"},
			},
			Reply: jsonOf[atoll.NetworkLog](), serve: (*Handler).serveNetworkLog,
		},
		{
			Method: "PUT", Path: "/v1/sandboxes/{id}/network", Name: "updateSandboxNetwork", Tag: "sandboxes", Summary: "Change the network policy of a sandbox",
			Body: jsonOf[atoll.NetworkChange](), Status: http.StatusNoContent, serve: (*Handler).serveUpdateNetwork,
		},
	}
}

func (h *Handler) serveCreate(w http.ResponseWriter, r *http.Request) error {
	var request wire.CreateRequest
	if err := h.decodeBody(w, r, &request, true); err != nil {
		return err
	}
	spec, err := request.Complete()
	if err != nil {
		return err
	}
	sb, err := h.provider.Create(r.Context(), spec)
	if err != nil {
		return err
	}
	reply, err := describeSandbox(r, sb)
	if err = cmp.Or(r.Context().Err(), err); err != nil { // the client will not learn the id
		h.removeAbandoned(r.Context(), sb, spec.ID == "")
		return err
	}
	w.Header().Set("Location", "/v1/sandboxes/"+sb.ID())
	writeJSON(w, http.StatusCreated, reply)
	return nil
}

// removeAbandoned removes a sandbox whose client disconnected during the create. volumes must be
// false if the client chose the id, because the data volume may be older than the sandbox.
func (h *Handler) removeAbandoned(ctx context.Context, sb atoll.Sandbox, volumes bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wire.DiscardTimeout)
	defer cancel()
	var opts []atoll.RemoveOption
	if volumes {
		opts = append(opts, atoll.RemoveVolumes())
	}
	if err := sb.Remove(ctx, opts...); err != nil {
		h.log.WarnContext(ctx, "remove", "sandbox", sb.ID(), "request", wire.RequestID(ctx), "err", err)
	}
}

// removeAbandonedSnapshot removes a snapshot whose client disconnected while it was taken.
func (h *Handler) removeAbandonedSnapshot(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wire.DiscardTimeout)
	defer cancel()
	err := atoll.RemoveSnapshot(ctx, h.provider, id)
	if err != nil && atoll.KindOf(err) != atoll.ErrUnsupported { // the provider of a supervisor removes what the supervisor has written
		h.log.WarnContext(ctx, "remove snapshot", "snapshot", id, "request", wire.RequestID(ctx), "err", err)
	}
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
	writeJSON(w, http.StatusOK, wire.SandboxesReply{Sandboxes: all})
	return nil
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
	reply, err := describeSandbox(r, sb)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, reply)
	return nil
}

// describeSandbox returns the status of a sandbox, or only its id if the client prefers that.
func describeSandbox(r *http.Request, sb atoll.Sandbox) (any, error) {
	if r.Header.Get(wire.PreferHeader) == wire.PreferMinimal {
		return wire.IDReply{ID: sb.ID()}, nil
	}
	return sb.Status(r.Context())
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

func (h *Handler) serveStop(w http.ResponseWriter, r *http.Request) error {
	var req wire.StopRequest
	if err := h.decodeBody(w, r, &req, false); err != nil {
		return err
	}
	grace := time.Duration(-1)
	if req.Grace != nil {
		grace = time.Duration(*req.Grace)
	}
	return h.serveAction(w, r, func(sb atoll.Sandbox) error { return sb.Stop(r.Context(), grace) })
}

func (h *Handler) servePause(w http.ResponseWriter, r *http.Request) error {
	return h.serveAction(w, r, func(sb atoll.Sandbox) error { return atoll.Pause(r.Context(), sb) })
}

func (h *Handler) serveResume(w http.ResponseWriter, r *http.Request) error {
	return h.serveAction(w, r, func(sb atoll.Sandbox) error { return atoll.Resume(r.Context(), sb) })
}

func (h *Handler) serveExtend(w http.ResponseWriter, r *http.Request) error {
	var req wire.ExtendRequest
	if err := h.decodeBody(w, r, &req, true); err != nil {
		return err
	}
	return h.serveAction(w, r, func(sb atoll.Sandbox) error { return atoll.Extend(r.Context(), sb, req.TTL) })
}

func (h *Handler) serveSnapshot(w http.ResponseWriter, r *http.Request) error {
	q := parseQuery(r)
	var opts []atoll.SnapshotOption
	if q.getBool("no_work") {
		opts = append(opts, atoll.WithoutWork())
	}
	if q.err != nil {
		return q.err
	}
	sb, err := h.findSandbox(r)
	if err != nil {
		return err
	}
	snap, err := atoll.TakeSnapshot(r.Context(), sb, opts...)
	if err != nil {
		return err
	}
	if r.Context().Err() != nil { // the client will not learn the id
		h.removeAbandonedSnapshot(r.Context(), snap.ID)
		return r.Context().Err()
	}
	writeJSON(w, http.StatusCreated, snap)
	return nil
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

// maxLogWait is the longest time that a request for events waits for one.
const maxLogWait = time.Minute

func (h *Handler) serveNetworkLog(w http.ResponseWriter, r *http.Request) error {
	q := parseQuery(r)
	after, wait := q.getInt("after", 0), time.Duration(0)
	if s := q.getString("wait"); s != "" {
		var d atoll.Duration
		if err := d.UnmarshalText([]byte(s)); err != nil || d < 0 || time.Duration(d) > maxLogWait {
			return invalidError("parameter wait: %q is not a duration from 0s to %s", s, maxLogWait)
		}
		wait = time.Duration(d)
	}
	if after < 0 {
		q.setError(invalidError("parameter after: %d is negative", after))
	}
	if q.err != nil {
		return q.err
	}
	sb, err := h.findSandbox(r)
	if err != nil {
		return err
	}
	log, err := atoll.NetworkLogOf(r.Context(), sb, after, wait)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, log)
	return nil
}

func (h *Handler) serveUpdateNetwork(w http.ResponseWriter, r *http.Request) error {
	var change atoll.NetworkChange
	if err := h.decodeBody(w, r, &change, true); err != nil {
		return err
	}
	return h.serveAction(w, r, func(sb atoll.Sandbox) error { return atoll.UpdateNetwork(r.Context(), sb, change) })
}

func (h *Handler) serveRefusals(w http.ResponseWriter, r *http.Request) error {
	sb, err := h.findSandbox(r)
	if err != nil {
		return err
	}
	refusals, err := atoll.RefusalsOf(r.Context(), sb)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, refusals)
	return nil
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
