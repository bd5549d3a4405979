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

// A sandboxState holds the kit's state of a session's sandbox.
type sandboxState struct {
	key     sessionKey
	sandbox atoll.Sandbox
	image   string
	workdir string

	editLocks keymutex.Locks // of files, by path

	mu      sync.Mutex
	shell   string                // the image's shell; "" if not known yet
	look    lookResult            // facts about the inside of the sandbox
	spools  []string              // files with long output, oldest first
	written map[string]struct{}   // files written by the tools
	stdins  map[string]*stdinPipe // of background commands, by process id
}

// A sessionKey identifies a session by its project and key.
type sessionKey struct{ project, key string }

// maxStates is the number of sessions whose state the kit keeps; it opens other
// sessions again on use.
const maxStates = 1000

// callScope returns the scope of the caller's session.
func (c *call) callScope() (session.Scope, error) {
	if c.caller.Scope != (session.Scope{}) {
		return c.caller.Scope, c.caller.Scope.Validate()
	}
	want := session.ScopeWorkflow
	if a := c.k.opts.Agent; a != nil {
		want = session.ScopeKind(a.Session)
	}
	return c.caller.ExecutionContext.Scope(want)
}

// openSession opens the caller's session; image is the wanted image, "" for the
// default.
func (c *call) openSession(ctx context.Context, image string) (*sandboxState, session.OpenResult, error) {
	scope, err := c.callScope()
	if err != nil {
		return nil, session.OpenResult{}, err
	}
	spec, err := c.k.sandboxSpec(image)
	if err != nil {
		return nil, session.OpenResult{}, err
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
	project := c.k.projectOf(ctx)
	had := c.k.findState(project, scope.Key())
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
		o.Note = "the sandbox was replaced meanwhile: this is another one, without the files of the old one"
	}
	o.Note = toSentence(o.Note)
	if o.Spec.Workdir == "" && o.Spec.Workspace != (atoll.WorkspaceRef{}) { // the workspace decides
		st, err := sb.Status(ctx)
		if err != nil {
			return nil, o, err
		}
		o.Spec.Workdir = st.Spec.Workdir
	}
	return c.k.stateOf(&o, sb), o, nil
}

// sandboxSpec returns the spec of a sandbox with an image; "" means the agent's image
// or the default one.
func (k *Kit) sandboxSpec(image string) (*atoll.Spec, error) {
	spec := k.opts.Sandbox.Clone()
	spec.Name = ""
	agent := k.opts.Agent
	if agent != nil && agent.AllowNetwork && spec.Network.Mode == "" {
		spec.Network.Mode = atoll.NetworkOn
	}
	if image == "" && agent != nil && agent.Program() == "" {
		image = agent.Runtime
	}
	if _, ok := k.opts.Images.Shortcuts[""]; image == "" && !ok {
		return spec, nil // the provider's default image
	}
	ref, err := k.opts.Images.Resolve(image)
	spec.Image = ref
	return spec, err
}

// defaultWorkdir returns the work directory of new sandboxes.
func (k *Kit) defaultWorkdir() string {
	return path.Clean(cmp.Or(k.opts.Sandbox.Workdir, atoll.DefaultWorkdir))
}

// stateOf returns the state of an open session.
func (k *Kit) stateOf(o *session.OpenResult, sb atoll.Sandbox) *sandboxState {
	k.mu.Lock()
	defer k.mu.Unlock()
	at := sessionKey{o.Project, o.Key}
	if d := k.states[at]; d != nil && d.sandbox.ID() == o.Sandbox && o.Opening == session.OpeningFound {
		return d
	}
	for other, d := range k.states {
		if len(k.states) >= maxStates && !d.hasStdin() {
			delete(k.states, other)
		}
	}
	d := &sandboxState{
		key: at, sandbox: sb, image: cmp.Or(o.Spec.Image, "default"), workdir: cmp.Or(o.Spec.Workdir, atoll.DefaultWorkdir),
		written: map[string]struct{}{}, stdins: map[string]*stdinPipe{},
	}
	k.states[at] = d
	return d
}

func (k *Kit) findState(project, key string) *sandboxState {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.states[sessionKey{project, key}]
}

func (k *Kit) dropState(d *sandboxState) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.states[d.key] == d {
		delete(k.states, d.key)
	}
}

// releaseState drops the state of a closed session, and closes the stdins of its
// commands.
func (k *Kit) releaseState(d *sandboxState) {
	k.dropState(d)
	d.closeStdins()
}

// withSandbox calls do with the state of the caller's session. If the sandbox has
// vanished or stopped since, withSandbox opens the session once more; note tells that,
// or the error does, since no later call reports it.
func (c *call) withSandbox(ctx context.Context, do func(d *sandboxState) error) (note string, err error) {
	scope, err := c.callScope()
	if err != nil {
		return "", err
	}
	d := c.k.findState(c.k.projectOf(ctx), scope.Key())
	if d != nil {
		if err = do(d); !c.isLost(ctx, d, err) {
			return "", err
		}
	}
	d, o, err := c.openSession(ctx, "")
	if err != nil {
		return "", err
	}
	if err = do(d); err != nil && o.Note != "" {
		err = refusalErrorf(atoll.KindOf(err), "%s In it: %w", o.Note, err)
	}
	return o.Note, err
}

// isLost reports whether err comes from a sandbox that no longer runs.
func (c *call) isLost(ctx context.Context, d *sandboxState, err error) bool {
	if k := atoll.KindOf(err); k != atoll.ErrNotFound && k != atoll.ErrStopped || ctx.Err() != nil {
		return false
	}
	st, err := d.sandbox.Status(ctx)
	return atoll.KindOf(err) == atoll.ErrNotFound || err == nil && st.State != atoll.StateRunning
}

// shells lists the shells for commands, the preferred one first.
var shells = []string{"/bin/bash", "/bin/sh"}

// startCommand starts a command line with the first shell that the image has.
func (d *sandboxState) startCommand(ctx context.Context, line string, cmd *atoll.Command, begin func(*atoll.Command) error) error {
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
	return refusalErrorf(atoll.ErrCommandNotFound, "the image has no shell (%s): open a sandbox with another image", strings.Join(shells, ", "))
}

// A note is part of the output of many tools.
type note struct {
	Note string `json:"note,omitempty" jsonschema:"a remark on the call or the sandbox"`
}

// addNote puts a sentence in front of the note: events of the sandbox precede results
// of the call.
func (n *note) addNote(text string) { n.Note = strings.TrimSpace(text + " " + n.Note) }

// toSentence formats text as a sentence.
func toSentence(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

type openInput struct {
	Image string `json:"image,omitempty" jsonschema:"linux, python, node or any OCI image; an open sandbox keeps its image"`
}

type openOutput struct {
	SessionID string `json:"session_id"`
	Image     string `json:"image"`
	Workdir   string `json:"workdir" jsonschema:"the directory in which commands start, and the base of relative paths"`
	Status    string `json:"status" jsonschema:"always ready"`
	Sandbox   string `json:"sandbox_id"`
	About     string `json:"about,omitempty" jsonschema:"its image, programs, network, limits, work directory and lifetime"`
	note
}

type closeOutput struct {
	Closed    bool   `json:"closed" jsonschema:"false if there was no sandbox"`
	SessionID string `json:"session_id"`
}

func sessionTools() []*Tool {
	return []*Tool{
		newTool(Tool{
			Name: "sandbox_open", Title: "Open the sandbox", Idempotent: true,
			Description: "Return the Linux sandbox of this workflow and describe it; create it if there is none. Its files, packages and processes remain from call to call, " +
				"and all agents of the workflow share it. The other tools open it, too; call this one to choose the image.",
		}, openSandbox),
		newTool(Tool{
			Name: "sandbox_close", Title: "Close the sandbox", Destructive: true, Idempotent: true,
			Description: "Remove the sandbox of this workflow with all its files and processes. You need not call this: the sandbox ends with the workflow.",
		}, closeSandbox),
	}
}

func openSandbox(ctx context.Context, c *call, in openInput) (openOutput, error) {
	d, o, err := c.openSession(ctx, in.Image)
	if err != nil {
		return openOutput{}, err
	}
	out := openOutput{SessionID: o.Key, Image: d.image, Workdir: d.workdir, Status: "ready", Sandbox: o.Sandbox, About: c.describeSandbox(ctx, d, &o), note: note{o.Note}}
	if wanted, err := c.k.sandboxSpec(in.Image); err == nil && in.Image != "" && wanted.Image != o.Spec.Image {
		out.Note = strings.TrimSpace(fmt.Sprintf("%s The sandbox is of %s and keeps that: to have %s, call sandbox_close first, which removes its files.", o.Note, d.image, wanted.Image))
	}
	return out, nil
}

func closeSandbox(ctx context.Context, c *call, _ struct{}) (closeOutput, error) {
	scope, err := c.callScope()
	if err != nil {
		return closeOutput{}, err
	}
	project := c.k.projectOf(ctx)
	if d := c.k.findState(project, scope.Key()); d != nil {
		c.k.releaseState(d)
	}
	err = session.Close(ctx, c.k.provider, project, scope.Key())
	if err != nil && atoll.KindOf(err) != atoll.ErrNotExist {
		return closeOutput{}, err
	}
	return closeOutput{Closed: err == nil, SessionID: scope.Key()}, nil
}
