package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"strings"
	"sync"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/keymutex"
	"github.com/seed46cd37a8/atoll/layer/session"
)

// A desk is what the kit knows of a session's sandbox.
type desk struct {
	of      seat
	sandbox atoll.Sandbox
	image   string
	workdir string

	changing keymutex.Locks // of files, by path

	mu      sync.Mutex
	shell   string              // which shell the image has; "" before it is known
	written map[string]struct{} // files that the tools have written
	stdins  map[string]*stdin   // of commands in the background
}

// A seat is where a desk is: a session, by its project and key.
type seat struct{ project, key string }

// maxDesks is how many sessions are remembered: what is forgotten is asked for
// again.
const maxDesks = 1000

// scope is whose session the caller uses.
func (c *call) scope() (session.Scope, error) {
	if c.caller.Scope != (session.Scope{}) {
		return c.caller.Scope, c.caller.Scope.Validate()
	}
	want := session.ScopeWorkflow
	if a := c.k.opts.Agent; a != nil {
		want = session.ScopeKind(a.Session)
	}
	return c.caller.ExecutionContext.Scope(want)
}

// open opens the caller's session, with an image if that is not "".
func (c *call) open(ctx context.Context, image string) (*desk, session.Opened, error) {
	scope, err := c.scope()
	if err != nil {
		return nil, session.Opened{}, err
	}
	spec, err := c.k.spec(image)
	if err != nil {
		return nil, session.Opened{}, err
	}
	for name, value := range map[string]string{"agent": c.caller.AgentName, "environment": c.caller.Environment} {
		if value != "" {
			spec.Labels = maps.Clone(spec.Labels)
			if spec.Labels == nil {
				spec.Labels = map[string]string{}
			}
			spec.Labels[name] = value
		}
	}
	project := c.k.project(ctx)
	had := c.k.known(project, scope.Key())
	s := session.Spec{
		Project: project, Scope: scope, Sandbox: *spec, IdleTimeout: c.k.opts.IdleTimeout, MaxLifetime: c.k.opts.MaxLifetime,
	}
	if scope.Kind == session.ScopeAgent {
		s.Workflow = c.caller.WorkflowRunID
	}
	o, err := session.Open(ctx, c.k.provider, &s)
	if err != nil {
		return nil, o, err
	}
	sb, err := c.k.provider.Get(ctx, o.Sandbox)
	if err != nil {
		return nil, o, err
	}
	if c.report != nil && o.Opening == session.OpeningMade {
		c.report(Report{Message: "the sandbox is ready"})
	}
	if had != nil && had.sandbox.ID() != o.Sandbox && o.Note == "" {
		o.Note = "the sandbox was replaced meanwhile: this is another one, without the files of that"
	}
	o.Note = sentence(o.Note)
	if o.Spec.Workdir == "" && o.Spec.Workspace != (atoll.WorkspaceRef{}) { // it is the workspace's to say
		st, err := sb.Status(ctx)
		if err != nil {
			return nil, o, err
		}
		o.Spec.Workdir = st.Spec.Workdir
	}
	return c.k.desk(&o, sb), o, nil
}

// spec is what a sandbox of an image is made from. "" is the agent's, or the one of
// those who name none.
func (k *Kit) spec(image string) (*atoll.Spec, error) {
	spec := k.opts.Sandbox.Clone()
	spec.Name = ""
	agent := k.opts.Agent
	if agent != nil && agent.AllowNetwork && spec.Network.Mode == "" {
		spec.Network.Mode = atoll.NetworkOn
	}
	if image == "" && agent != nil {
		image = agent.Runtime
	}
	if _, ok := k.opts.Images.Shortcuts[""]; image == "" && !ok {
		return spec, nil // the provider's own
	}
	ref, err := k.opts.Images.Resolve(image)
	spec.Image = ref
	return spec, err
}

// workdir is that of sandboxes that are made.
func (k *Kit) workdir() string {
	return path.Clean(cmp.Or(k.opts.Sandbox.Workdir, atoll.DefaultWorkdir))
}

// desk is the one of an open session.
func (k *Kit) desk(o *session.Opened, sb atoll.Sandbox) *desk {
	k.mu.Lock()
	defer k.mu.Unlock()
	at := seat{o.Project, o.Key}
	if d := k.desks[at]; d != nil && d.sandbox.ID() == o.Sandbox && o.Opening == session.OpeningFound {
		return d
	}
	for other, d := range k.desks {
		if len(k.desks) >= maxDesks && !d.types() {
			delete(k.desks, other)
		}
	}
	d := &desk{
		of: at, sandbox: sb, image: cmp.Or(o.Spec.Image, "default"), workdir: cmp.Or(o.Spec.Workdir, atoll.DefaultWorkdir),
		written: map[string]struct{}{}, stdins: map[string]*stdin{},
	}
	k.desks[at] = d
	return d
}

func (k *Kit) known(project, key string) *desk {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.desks[seat{project, key}]
}

func (k *Kit) forget(d *desk) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.desks[d.of] == d {
		delete(k.desks, d.of)
	}
}

// leave forgets a desk whose session is closed, and lets go of what runs there.
func (k *Kit) leave(d *desk) {
	k.forget(d)
	d.endStdins()
}

// on calls do with the desk of the caller's session. A sandbox that has gone since,
// or has stopped, is had again, once; note says what has become of it, or the error
// does: nobody will say it again.
func (c *call) on(ctx context.Context, do func(d *desk) error) (note string, err error) {
	scope, err := c.scope()
	if err != nil {
		return "", err
	}
	d := c.k.known(c.k.project(ctx), scope.Key())
	if d != nil {
		if err = do(d); !c.lost(ctx, d, err) {
			return "", err
		}
	}
	d, o, err := c.open(ctx, "")
	if err != nil {
		return "", err
	}
	if err = do(d); err != nil && o.Note != "" {
		err = refuse(atoll.KindOf(err), "%s In it: %w", o.Note, err)
	}
	return o.Note, err
}

// lost reports whether err is that of a sandbox which does not run.
func (c *call) lost(ctx context.Context, d *desk, err error) bool {
	if k := atoll.KindOf(err); k != atoll.ErrNotFound && k != atoll.ErrStopped || ctx.Err() != nil {
		return false
	}
	st, err := d.sandbox.Status(ctx)
	return atoll.KindOf(err) == atoll.ErrNotFound || err == nil && st.State != atoll.StateRunning
}

// shells are those that commands are given to, the preferred one first.
var shells = []string{"/bin/bash", "/bin/sh"}

// start starts a command line in the first shell that the image has.
func (d *desk) start(ctx context.Context, line string, cmd *atoll.Command, begin func(*atoll.Command) error) error {
	d.mu.Lock()
	known := d.shell
	d.mu.Unlock()
	for _, shell := range shells {
		if known != "" && shell != known {
			continue
		}
		c := *cmd
		c.Args = []string{shell, "-c", line}
		err := begin(&c)
		if errors.Is(err, atoll.ErrCommandNotFound) {
			continue
		}
		d.mu.Lock()
		d.shell = shell
		d.mu.Unlock()
		return err
	}
	return refuse(atoll.ErrCommandNotFound, "the image has no shell (%s): open a sandbox with another image", strings.Join(shells, ", "))
}

// A note is in what many tools give.
type note struct {
	Note string `json:"note,omitempty" jsonschema:"what else there is to know"`
}

// add adds a sentence, before what is there already: what has become of the sandbox
// comes before what was done in it.
func (n *note) add(text string) { n.Note = strings.TrimSpace(text + " " + n.Note) }

// sentence is text as one among others.
func sentence(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

type openInput struct {
	Image string `json:"image,omitempty" jsonschema:"linux, python, node or any OCI image; what is open already keeps its own"`
}

type openOutput struct {
	SessionID string `json:"session_id"`
	Image     string `json:"image"`
	Workdir   string `json:"workdir" jsonschema:"where commands start and relative paths begin"`
	Status    string `json:"status" jsonschema:"always ready"`
	Sandbox   string `json:"sandbox_id"`
	note
}

type closeOutput struct {
	Closed    bool   `json:"closed" jsonschema:"false if there was none"`
	SessionID string `json:"session_id"`
}

func sessionTools() []*Tool {
	return []*Tool{
		with(Tool{
			Name: "sandbox_open", Title: "Open the sandbox", Idempotent: true,
			Description: "Get the persistent Linux sandbox of this workflow, made if there is none. Its files, packages and processes stay from call to call, " +
				"and are shared by all agents of the workflow. The other tools open it by themselves; call this to choose the image.",
		}, open),
		with(Tool{
			Name: "sandbox_close", Title: "Close the sandbox", Destructive: true, Idempotent: true,
			Description: "Remove the sandbox of this workflow, with all its files and processes. It is not needed: the sandbox ends with the workflow.",
		}, closeSession),
	}
}

func open(ctx context.Context, c *call, in openInput) (openOutput, error) {
	d, o, err := c.open(ctx, in.Image)
	if err != nil {
		return openOutput{}, err
	}
	out := openOutput{SessionID: o.Key, Image: d.image, Workdir: d.workdir, Status: "ready", Sandbox: o.Sandbox, note: note{o.Note}}
	if wanted, err := c.k.spec(in.Image); err == nil && in.Image != "" && wanted.Image != o.Spec.Image {
		out.Note = strings.TrimSpace(fmt.Sprintf("%s The sandbox is of %s and keeps that: to have %s, call sandbox_close first, which removes its files.", o.Note, d.image, wanted.Image))
	}
	return out, nil
}

func closeSession(ctx context.Context, c *call, _ struct{}) (closeOutput, error) {
	scope, err := c.scope()
	if err != nil {
		return closeOutput{}, err
	}
	project := c.k.project(ctx)
	if d := c.k.known(project, scope.Key()); d != nil {
		c.k.leave(d)
	}
	err = session.Close(ctx, c.k.provider, project, scope.Key())
	if err != nil && atoll.KindOf(err) != atoll.ErrNotExist {
		return closeOutput{}, err
	}
	return closeOutput{Closed: err == nil, SessionID: scope.Key()}, nil
}
