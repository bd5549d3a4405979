package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// Create implements atoll.Provider.
func (c *Client) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	if err := spec.Validate(); err != nil { // JSON would change invalid values before the server validates them
		return nil, err
	}
	var reply wire.IDReply
	q := call{op: "create", id: spec.Name, method: "POST", path: "/v1/sandboxes", reply: &reply, minimal: true, undoTimeout: wire.CreateGrace}
	body, err := json.Marshal(wire.NewCreateRequest(spec))
	if err != nil {
		return nil, atoll.E(q.op, q.id, atoll.ErrInvalid, err)
	}
	for t, maybeDone := (retrier{c: c}), false; ; {
		err = c.callUndoable(ctx, q, bytes.NewReader(body), wire.MediaJSON)
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
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wire.DiscardTimeout)
	defer cancel()
	var opts []atoll.RemoveOption
	if volumes {
		opts = append(opts, atoll.RemoveVolumes())
	}
	_ = c.Sandbox(id).Remove(ctx, opts...) // the server logs a failure
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
	var reply wire.SandboxesReply
	err := c.callServer(ctx, call{op: "list", path: "/v1/sandboxes", query: q, reply: &reply, replyLimit: maxListReply})
	return reply.Sandboxes, err
}

// Get implements atoll.Provider.
func (c *Client) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	norm, err := atoll.NormalizeID(id)
	if err != nil || norm == "" {
		return nil, atoll.E("get", id, atoll.ErrNotFound, nil)
	}
	var reply wire.IDReply
	err = c.callServer(ctx, call{op: "get", id: id, path: "/v1/resolve", query: url.Values{"id": {norm}}, reply: &reply, minimal: true})
	if err != nil {
		return nil, err
	}
	return c.Sandbox(norm), nil
}

// Resolve implements atoll.Resolver.
func (c *Client) Resolve(ctx context.Context, project, name string) (string, error) {
	var reply wire.IDReply
	q := resolveCall(project, name)
	q.reply, q.minimal = &reply, true
	err := c.callServer(ctx, q)
	return reply.ID, err
}

// Find returns the sandbox with a name in a project, and its status, in one request. With "" the project is the default one
// of the token.
func (c *Client) Find(ctx context.Context, project, name string) (atoll.Sandbox, atoll.Status, error) {
	var st atoll.Status
	q := resolveCall(project, name)
	q.reply, q.replyLimit = &st, maxSpecReply
	if err := c.callServer(ctx, q); err != nil {
		return nil, st, err
	}
	sb := c.Sandbox(st.ID)
	if st.State == "" { // an older server returns the id only
		var err error
		st, err = sb.Status(ctx)
		return sb, st, err
	}
	return sb, st, nil
}

// resolveCall returns the request for the sandbox with a name.
func resolveCall(project, name string) call {
	q := url.Values{"name": {name}}
	if project != "" {
		q.Set("project", project)
	}
	return call{op: "get", id: name, path: "/v1/resolve", query: q}
}

// Sandbox returns a handle for the sandbox with that id. It does not check that the sandbox exists;
// if it does not, the methods of the handle return ErrNotFound.
func (c *Client) Sandbox(id string) atoll.Sandbox {
	if norm, err := atoll.NormalizeID(id); err == nil {
		id = norm
	}
	return &sandbox{c: c, id: id, path: "/v1/sandboxes/" + wire.PathSegment(id)}
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

// Status implements atoll.Sandbox.
func (s *sandbox) Status(ctx context.Context) (atoll.Status, error) {
	var st atoll.Status
	err := s.callSandbox(ctx, call{op: "status", reply: &st, replyLimit: maxSpecReply})
	return st, err
}

// Start implements atoll.Sandbox.
func (s *sandbox) Start(ctx context.Context) error {
	return s.callSandbox(ctx, call{op: "start", method: "POST", path: "/start", idempotent: true})
}

// Stop implements atoll.Sandbox.
func (s *sandbox) Stop(ctx context.Context, grace time.Duration) error {
	q := call{op: "stop", method: "POST", path: "/stop", idempotent: true}
	if grace >= 0 {
		d := atoll.Duration(grace)
		q.body = wire.StopRequest{Grace: &d}
	}
	return s.callSandbox(ctx, q)
}

// Pause implements atoll.Pauser.
func (s *sandbox) Pause(ctx context.Context) error {
	return s.callSandbox(ctx, call{op: "pause", method: "POST", path: "/pause", idempotent: true})
}

// Resume implements atoll.Pauser.
func (s *sandbox) Resume(ctx context.Context) error {
	return s.callSandbox(ctx, call{op: "resume", method: "POST", path: "/resume", idempotent: true})
}

// Extend implements atoll.Extender.
func (s *sandbox) Extend(ctx context.Context, ttl atoll.Duration) error {
	return s.callSandbox(ctx, call{op: "extend", method: "POST", path: "/extend", body: wire.ExtendRequest{TTL: ttl}, idempotent: true})
}

// Snapshot implements atoll.Snapshotter. If ctx ends first, Snapshot returns the error of ctx, and the
// server deletes what it has of the snapshot, perhaps later.
func (s *sandbox) Snapshot(ctx context.Context, opts ...atoll.SnapshotOption) (snap atoll.Snapshot, err error) {
	q := call{op: "snapshot", id: s.id, method: "POST", path: s.path + "/snapshot", reply: &snap, replyLimit: maxSpecReply, undoTimeout: undoGrace}
	if atoll.ApplySnapshotOptions(opts...).NoWork {
		q.query = url.Values{"no_work": {"true"}}
	}
	for t := (retrier{c: s.c}); ; {
		err = s.c.callUndoable(ctx, q, bytes.NewReader(nil), "")
		if err == nil || !t.allowRetry(ctx, err, false) {
			return snap, ctxErr(ctx, err)
		}
	}
}

// Usage implements atoll.Meter.
func (s *sandbox) Usage(ctx context.Context) (atoll.Usage, error) {
	var usage atoll.Usage
	err := s.callSandbox(ctx, call{op: "usage", path: "/usage", reply: &usage})
	return usage, err
}

// Refusals implements atoll.Refuser.
func (s *sandbox) Refusals(ctx context.Context) (atoll.Refusals, error) {
	var refusals atoll.Refusals
	err := s.callSandbox(ctx, call{op: "refusals", path: "/refusals", reply: &refusals})
	return refusals, err
}

// NetworkLog implements atoll.NetworkLogger.
func (s *sandbox) NetworkLog(ctx context.Context, after int64, wait time.Duration) (log atoll.NetworkLog, err error) {
	q := url.Values{"after": {strconv.FormatInt(after, 10)}}
	if wait > 0 {
		q.Set("wait", wait.String())
	}
	err = s.callSandbox(ctx, call{op: "network log", path: "/network/log", query: q, reply: &log, replyLimit: maxSpecReply})
	return log, err
}

// UpdateNetwork implements atoll.NetworkUpdater.
func (s *sandbox) UpdateNetwork(ctx context.Context, change atoll.NetworkChange) error {
	return s.callSandbox(ctx, call{op: "network", method: "PUT", path: "/network", body: change, idempotent: change.Previous == nil})
}

// Remove implements atoll.Sandbox. It returns nil if the server does not know the sandbox.
func (s *sandbox) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	q := call{op: "remove", method: "DELETE", idempotent: true}
	if atoll.ApplyRemoveOptions(opts...).Volumes {
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
	if !atoll.ApplyRemoveOptions(opts...).Volumes {
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
	_ atoll.Refuser     = (*sandbox)(nil)
	_ atoll.Snapshotter = (*sandbox)(nil)
)
