// Package tools implements the tools with which agents use sandboxes: names, schemas
// and calls. Package mcp and other front ends serve them.
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
	"github.com/seed46cd37a8/atoll/agent/tools/settings"
	"github.com/seed46cd37a8/atoll/layer/session"
)

// A Tool is a tool that agents can call. It is immutable.
type Tool struct {
	Name        string
	Title       string // for people
	Description string // for models

	Input, Output *jsonschema.Schema

	// Hints for clients that ask for permission.
	ReadOnly    bool // changes nothing
	Destructive bool // may undo work of others
	Idempotent  bool // a second call with the same input changes nothing more

	call func(ctx context.Context, c *call, input []byte) (any, error)
}

// Options configure a Kit. The zero value offers all tools, with the limits of package
// frontmatter.
type Options struct {
	// Project is the project of the sandboxes. Callers who may not use it get the first
	// project of their own. Empty means atoll.DefaultProject.
	Project string
	// Sandbox is the base of the sandboxes' specs; the agent's file and the call add to
	// it.
	Sandbox atoll.Spec
	// IdleTimeout and MaxLifetime apply to sessions; see session.Spec.
	IdleTimeout, MaxLifetime atoll.Duration
	// Agent is the sandbox section of the agent's file; nil means all tools and the
	// defaults. A limit of 0 means its default.
	Agent *frontmatter.Sandbox
	// Images maps the names in calls to images. Its shortcut "" is the image of calls
	// without one; if it is missing, the provider's default.
	Images frontmatter.Images

	// OwnPrograms runs programs of sandbox_run in the default image, if that has the
	// runtime. Otherwise, and if Images has a shortcut for the runtime, they run in the
	// image from Images.
	OwnPrograms bool

	// Compute runs the programs of sandbox_run; the caller keeps it. Nil means
	// sandboxes of the provider.
	Compute jobs.Backend

	// Roots are the directories of the file tools; empty means the work directory.
	// Relative paths start there.
	Roots []string
	// Blocked are files and directories that the file tools never touch, including
	// everything below; nil means settings.DefaultBlocked. None may be below a root.
	Blocked []string

	// OutputLimit is the number of bytes of output, of a file or of a list that one call
	// returns if it sets no limit; 0 means settings.DefaultOutput, or MaxOutput if that is less.
	OutputLimit int
	// MaxOutput is the largest limit that a call can set; 0 means DefaultMaxOutput, or
	// OutputLimit if that is more.
	MaxOutput int

	// URL returns the address of a port in a sandbox, as reachable by the caller. Nil
	// disables sandbox_port.
	URL func(ctx context.Context, sb atoll.Sandbox, port int) (string, error)

	// Log receives errors that cannot be returned; nil discards them.
	Log *slog.Logger
}

// A Caller identifies the agent that calls a tool.
type Caller struct {
	session.ExecutionContext
	// Scope is the scope of the session, if it isn't derived from the context.
	Scope session.Scope
}

// A Report tells the progress of a long call.
type Report struct {
	Seconds float64 // since the start
	Message string  // the last printed line
}

// A Kit is a set of tools for one provider. Its methods may be called concurrently.
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

	mu     sync.Mutex
	states map[sessionKey]*sandboxState
}

// New returns the tools for p; the caller keeps p. Kinds: ErrInvalid.
func New(p atoll.Provider, opts Options) (*Kit, error) {
	if err := opts.Images.Check(); err != nil {
		return nil, err
	}
	if opts.Project == "" {
		opts.Project = atoll.DefaultProject
	}
	if opts.MaxOutput == 0 {
		opts.MaxOutput = max(DefaultMaxOutput, opts.OutputLimit)
	}
	if opts.OutputLimit = min(cmp.Or(opts.OutputLimit, settings.DefaultOutput), opts.MaxOutput); opts.OutputLimit < 0 {
		return nil, atoll.Errorf("tools", "", atoll.ErrInvalid, "output limit %d: must be positive", opts.OutputLimit)
	}
	if opts.Blocked == nil {
		opts.Blocked = settings.DefaultBlocked()
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
	k := &Kit{provider: p, opts: opts, limits: frontmatter.DefaultLimits(), log: opts.Log, states: map[sessionKey]*sandboxState{}}
	if opts.Agent != nil {
		given := opts.Agent.Limits
		k.limits = frontmatter.Limits{
			Timeout:     cmp.Or(given.Timeout, k.limits.Timeout),
			MaxFileSize: cmp.Or(given.MaxFileSize, k.limits.MaxFileSize),
			MaxFiles:    cmp.Or(given.MaxFiles, k.limits.MaxFiles),
		}
	}
	for _, root := range k.fileRoots(k.defaultWorkdir()) {
		if b := k.blockedIn(root); b != "" && (b != root || len(opts.Roots) > 0) { // commands can use a blocked work directory
			return nil, atoll.Errorf("tools", "", atoll.ErrInvalid, "root %s contains the blocked path %s: use directories without it", root, b)
		}
	}
	if k.log == nil {
		k.log = slog.New(slog.DiscardHandler)
	}
	if k.compute = opts.Compute; k.compute == nil {
		k.compute = jobs.Sandboxes(p, k.log)
	}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	for _, t := range k.allTools() {
		if k.offersTool(t.Name) {
			k.tools = append(k.tools, t)
		}
	}
	return k, nil
}

// Close detaches from background commands, which continue.
func (k *Kit) Close() error {
	k.cancel()
	k.work.Wait()
	return nil
}

// allTools returns the tools in display order.
func (k *Kit) allTools() []*Tool {
	return slices.Concat(sessionTools(), execTools(k), processTools(k), fileTools(k), searchTools(k), portTools(), runTools(k))
}

// runName is the tool of compute mode.
const runName = "sandbox_run"

// offersTool reports whether the agent gets the tool.
func (k *Kit) offersTool(name string) bool {
	switch {
	case name == "sandbox_port" && k.opts.URL == nil:
		return false
	case k.opts.Agent == nil:
		return true
	}
	return (name == runName) == (k.opts.Agent.Mode == frontmatter.ModeCompute)
}

// Tools returns the tools.
func (k *Kit) Tools() []*Tool { return slices.Clone(k.tools) }

// Call calls a tool, and returns its output as JSON. The text for a model has a
// limit, which the call sets, up to Options.MaxOutput. The error's text is written for
// the model, with advice. If report is not nil, Call reports progress now and then,
// from one goroutine. When ctx ends, so does everything that the call has started,
// except background commands.
func (k *Kit) Call(ctx context.Context, caller Caller, name string, input []byte, report func(Report)) (json.RawMessage, error) {
	out, err := k.runTool(ctx, &call{k: k, caller: caller, report: report}, name, input)
	if err != nil {
		return nil, err
	}
	return marshalPlain(out)
}

// Answer is Call with the output as text and as media, too.
func (k *Kit) Answer(ctx context.Context, caller Caller, name string, input []byte, report func(Report)) (*Answer, error) {
	out, err := k.runTool(ctx, &call{k: k, caller: caller, report: report, media: true}, name, input)
	if err != nil {
		return nil, err
	}
	a := &Answer{}
	if a.JSON, err = marshalPlain(out); err != nil {
		return nil, err
	}
	a.Text = string(a.JSON)
	if t, ok := out.(texter); ok {
		a.Text = t.formatText()
	}
	if f, ok := out.(readFileOutput); ok {
		a.Media = f.media
	}
	return a, nil
}

// runTool calls a tool.
func (k *Kit) runTool(ctx context.Context, c *call, name string, input []byte) (any, error) {
	i := slices.IndexFunc(k.tools, func(t *Tool) bool { return t.Name == name })
	if i < 0 {
		return nil, shortenError(atoll.Errorf(name, "", atoll.ErrNotExist, "unknown tool: use one of %s", strings.Join(k.toolNames(), ", ")))
	}
	out, err := k.tools[i].call(ctx, c, input)
	if err != nil {
		return nil, shortenError(explainError(name, err))
	}
	return out, nil
}

// marshalPlain is json.Marshal without escaping <, > and &: models read the text
// unchanged, and it often is code.
func marshalPlain(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

func (k *Kit) toolNames() []string {
	var names []string
	for _, t := range k.tools {
		names = append(names, t.Name)
	}
	return names
}

// A call is a call in progress.
type call struct {
	k      *Kit
	caller Caller
	report func(Report)
	reads  bool // the call changes no file, and may use those in spoolDir, too
	media  bool // the caller takes images besides JSON
}

// An Answer is the result of a tool in two forms: for programs, and for models.
type Answer struct {
	JSON  json.RawMessage // as described by the tool's output schema
	Text  string          // the same for a model, as plain text
	Media *Media          // nil if there is none
}

// A Media is an image for a model.
type Media struct {
	Type string // a MIME type: of an image, or TypePDF
	Path string // of the file
	Data []byte
}

// TypePDF is the MIME type of a PDF.
const TypePDF = "application/pdf"

// A texter formats the output of a tool as plain text.
type texter interface{ formatText() string }

// newTool completes t with the schemas of its input and output, and its function.
func newTool[In, Out any](t Tool, do func(ctx context.Context, c *call, in In) (Out, error)) *Tool {
	t.Input, t.Output = schemaFor[In](), schemaFor[Out]()
	t.call = func(ctx context.Context, c *call, input []byte) (any, error) {
		var in In
		if err := decodeInput(t.Input, input, &in); err != nil {
			return nil, err
		}
		return do(ctx, c, in)
	}
	return &t
}

// refineInput changes the input's schema with refine.
func (t *Tool) refineInput(refine func(properties map[string]*jsonschema.Schema)) *Tool {
	refine(t.Input.Properties)
	return t
}

// explainError adds advice to an error, for the model.
func explainError(tool string, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return atoll.Errorf(tool, "", atoll.KindOf(err), "the call was broken off, and its processes were killed: %w", err)
	}
	if e, ok := errors.AsType[*atoll.Error](err); ok && e.Err != nil && e.Op == "" { // errors of the tools contain advice
		return atoll.Errorf(tool, "", e.Kind, "%w", e.Err)
	}
	text, advice := err.Error(), ""
	switch atoll.KindOf(err) {
	case atoll.ErrUnavailable:
		advice = "try again in a moment"
	case atoll.ErrNotFound, atoll.ErrStopped:
		advice = "call sandbox_open to have a sandbox again"
	case atoll.ErrExhausted:
		advice = "remove what you no longer need"
	}
	if advice != "" && !strings.Contains(text, ": call ") {
		text += ": " + advice
	}
	return atoll.Errorf(tool, "", atoll.KindOf(err), "%s", text)
}

// shortenError returns err, with the middle of its text left out if it is longer than a
// model needs.
func shortenError(err error) error {
	text := jobs.Text{Data: []byte(err.Error())}
	if text.Size() <= maxErrorText {
		return err
	}
	return longError{err, text.Shorten(maxErrorText).String()}
}

// maxErrorText is the most bytes of the text of an error.
const maxErrorText = 4000

// A longError is an error with a shorter text.
type longError struct {
	error
	text string
}

func (e longError) Error() string { return e.text }

func (e longError) Unwrap() error { return e.error }

// isBelow reports whether name is dir or below it; both are cleaned.
func isBelow(dir, name string) bool {
	dir, name = path.Clean(dir), path.Clean(name)
	return name == dir || dir == "/" || strings.HasPrefix(name, dir+"/")
}

func refusalErrorf(kind atoll.Kind, format string, args ...any) error {
	return atoll.Errorf("", "", kind, format, args...)
}
