// Package tools has the tools by which agents use sandboxes: their names, schemas and
// implementations. Package mcp and every other front-end for agents serves these.
//
// In code mode the tools of one session share a sandbox that remains between calls; see
// session.Open. In compute mode each call of sandbox_run gets a sandbox of its own.
//
//	kit, err := tools.New(p, tools.Options{})
//	out, err := kit.Call(ctx, tools.Caller{ExecutionContext: session.ExecutionContext{WorkflowRunID: "wf_1"}},
//		"sandbox_exec", []byte(`{"command": "make test"}`), nil)
package tools

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/frontmatter"
	"github.com/seed46cd37a8/atoll/agent/jobs"
	"github.com/seed46cd37a8/atoll/layer/session"
)

// A Tool is one that agents can call. It is not changed.
type Tool struct {
	Name        string
	Title       string // for people
	Description string // for models

	Input, Output *jsonschema.Schema

	// What those who allow it want to know.
	ReadOnly    bool // it changes nothing
	Destructive bool // it may undo what others have done
	Idempotent  bool // a second call with the same input changes nothing more

	call func(ctx context.Context, c *call, input []byte) (any, error)
}

// Options say what the tools of a Kit do. The zero value has all of them, with the
// limits of package frontmatter.
type Options struct {
	// Project is that of the sandboxes, of callers who may use it; those of others
	// have the first of their own. Empty means atoll.DefaultProject.
	Project string
	// Sandbox is what sandboxes are made from, besides what the agent's file and
	// the call say.
	Sandbox atoll.Spec
	// IdleTimeout and MaxLifetime are those of sessions; see session.Spec.
	IdleTimeout, MaxLifetime atoll.Duration
	// Agent is what the agent's file says; nil means all tools, and the defaults. A
	// limit of 0 is the default one.
	Agent *frontmatter.Sandbox
	// Images says what the images that calls name stand for. Its shortcut "" is
	// the image of calls that name none; without it that is the provider's.
	Images frontmatter.Images

	// OwnPrograms says that a program of sandbox_run runs in the image of calls that
	// name none, if that has what runs it. Otherwise, and if Images has a shortcut for
	// the runtime, it runs in the one of Images.
	OwnPrograms bool

	// Compute runs the programs of sandbox_run, and stays the caller's; nil means in
	// sandboxes of the provider.
	Compute jobs.Backend

	// Roots are the directories that the file tools work in; empty means the work
	// directory. Paths are relative to that.
	Roots []string
	// Blocked are files and directories that they do not touch, nor anything
	// below; nil means DefaultBlocked. None may be below a root.
	Blocked []string

	// MaxOutput is how much of each stream of a command is returned; 0 means
	// atoll.DefaultOutputLimit.
	MaxOutput int64

	// URL returns the address of a port inside of a sandbox, for whoever reads the
	// answer. nil means that there is no sandbox_port.
	URL func(ctx context.Context, sb atoll.Sandbox, port int) (string, error)

	// Log is told of what cannot be returned; nil discards.
	Log *slog.Logger
}

// DefaultBlocked are the paths that the file tools do not touch.
func DefaultBlocked() []string { return []string{"/etc/passwd", "/etc/shadow", "/root"} }

// A Caller is for whom a tool is called.
type Caller struct {
	session.ExecutionContext
	// Scope is that of the session, if it does not follow from the context.
	Scope session.Scope
}

// A Report tells how far a long call is.
type Report struct {
	Seconds float64 // since it began
	Message string  // the last line that was printed
}

// A Kit is a set of tools for one provider. Its methods may be called at once from
// many goroutines.
type Kit struct {
	provider atoll.Provider
	compute  jobs.Backend
	opts     Options
	limits   frontmatter.Limits
	log      *slog.Logger
	tools    []*Tool

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu    sync.Mutex
	desks map[seat]*desk
}

// New returns the tools for p, which stays the caller's. Kinds: ErrInvalid.
func New(p atoll.Provider, opts Options) (*Kit, error) {
	if err := opts.Images.Check(); err != nil {
		return nil, err
	}
	if opts.Project == "" {
		opts.Project = atoll.DefaultProject
	}
	if opts.MaxOutput == 0 {
		opts.MaxOutput = atoll.DefaultOutputLimit
	}
	if opts.Blocked == nil {
		opts.Blocked = DefaultBlocked()
	}
	for _, b := range opts.Blocked {
		if !path.IsAbs(b) {
			return nil, atoll.Errorf("tools", "", atoll.ErrInvalid, "blocked path %q: must be an absolute path", b)
		}
	}
	for _, root := range opts.Roots {
		if !path.IsAbs(root) {
			return nil, atoll.Errorf("tools", "", atoll.ErrInvalid, "root %q: must be an absolute path", root)
		}
	}
	k := &Kit{provider: p, opts: opts, limits: frontmatter.DefaultLimits(), log: opts.Log, desks: map[seat]*desk{}}
	if opts.Agent != nil {
		given := opts.Agent.Limits
		k.limits = frontmatter.Limits{
			Timeout:     cmp.Or(given.Timeout, k.limits.Timeout),
			MaxFileSize: cmp.Or(given.MaxFileSize, k.limits.MaxFileSize),
			MaxFiles:    cmp.Or(given.MaxFiles, k.limits.MaxFiles),
		}
	}
	for _, root := range k.roots(k.workdir()) {
		if b := k.blockedIn(root); b != "" && (b != root || len(opts.Roots) > 0) { // a work directory that is blocked is of use to commands
			return nil, atoll.Errorf("tools", "", atoll.ErrInvalid, "root %s: %s, which is blocked, is below: name directories without it", root, b)
		}
	}
	if k.log == nil {
		k.log = slog.New(slog.DiscardHandler)
	}
	if k.compute = opts.Compute; k.compute == nil {
		k.compute = jobs.Sandboxes(p, k.log)
	}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	for _, t := range k.all() {
		if k.offers(t.Name) {
			k.tools = append(k.tools, t)
		}
	}
	return k, nil
}

// Close lets go of what runs in the background, which runs on.
func (k *Kit) Close() error {
	k.cancel()
	k.work.Wait()
	return nil
}

// all are the tools, in the order in which they are shown.
func (k *Kit) all() []*Tool {
	return slices.Concat(sessionTools(), execTools(k), processTools(k), fileTools(k), searchTools(), portTools(), runTools(k))
}

// runName is the tool of compute mode.
const runName = "sandbox_run"

// offers reports whether the agent is to have the tool.
func (k *Kit) offers(name string) bool {
	switch {
	case name == "sandbox_port" && k.opts.URL == nil:
		return false
	case k.opts.Agent == nil:
		return true
	}
	return (name == runName) == (k.opts.Agent.Mode == frontmatter.ModeCompute)
}

// Tools lists them.
func (k *Kit) Tools() []*Tool { return slices.Clone(k.tools) }

// Call calls a tool, and returns what it gives as JSON. The error's text is for the
// model: it says what to do. report, if it is not nil, is called now and then, from
// one goroutine. When ctx ends, so does what the call has started, but for what it
// was to start in the background.
func (k *Kit) Call(ctx context.Context, caller Caller, name string, input []byte, report func(Report)) (json.RawMessage, error) {
	i := slices.IndexFunc(k.tools, func(t *Tool) bool { return t.Name == name })
	if i < 0 {
		return nil, atoll.Errorf(name, "", atoll.ErrNotExist, "there is no such tool: use one of %s", strings.Join(k.names(), ", "))
	}
	out, err := k.tools[i].call(ctx, &call{k: k, caller: caller, report: report}, input)
	if err != nil {
		return nil, explained(name, err)
	}
	return marshal(out)
}

// marshal is json.Marshal, but that it leaves <, > and & as they are: models read
// this as it stands, and it is code.
func marshal(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

func (k *Kit) names() []string {
	var names []string
	for _, t := range k.tools {
		names = append(names, t.Name)
	}
	return names
}

// A call is one in progress.
type call struct {
	k      *Kit
	caller Caller
	report func(Report)
}

// with completes t by what it takes and gives, and by what it does.
func with[In, Out any](t Tool, do func(ctx context.Context, c *call, in In) (Out, error)) *Tool {
	t.Input, t.Output = schema[In](), schema[Out]()
	t.call = func(ctx context.Context, c *call, input []byte) (any, error) {
		var in In
		if err := decode(t.Input, input, &in); err != nil {
			return nil, err
		}
		return do(ctx, c, in)
	}
	return &t
}

// limited is with, for an input whose schema limits refine completes.
func (t *Tool) limited(refine func(properties map[string]*jsonschema.Schema)) *Tool {
	refine(t.Input.Properties)
	return t
}

// explained is err as a sentence that says what to do next.
func explained(tool string, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return atoll.Errorf(tool, "", atoll.KindOf(err), "the call was broken off, and what it had started was ended: %w", err)
	}
	if e, ok := errors.AsType[*atoll.Error](err); ok && e.Err != nil && e.Op == "" { // ours, which say it
		return atoll.Errorf(tool, "", e.Kind, "%w", e.Err)
	}
	text, advice := err.Error(), ""
	switch atoll.KindOf(err) {
	case atoll.ErrUnavailable:
		advice = "try again in a moment"
	case atoll.ErrNotFound, atoll.ErrStopped:
		advice = "call sandbox_open to have a sandbox again"
	case atoll.ErrExhausted:
		advice = "remove what is not needed any more"
	}
	if advice != "" && !strings.Contains(text, ": call ") {
		text += ": " + advice
	}
	return atoll.Errorf(tool, "", atoll.KindOf(err), "%s", text)
}

// below reports whether name is dir or in it; both are clean.
func below(dir, name string) bool {
	dir, name = path.Clean(dir), path.Clean(name)
	return name == dir || dir == "/" || strings.HasPrefix(name, dir+"/")
}

func refuse(kind atoll.Kind, format string, args ...any) error {
	return atoll.Errorf("", "", kind, format, args...)
}
