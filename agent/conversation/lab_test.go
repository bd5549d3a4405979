package conversation_test

import (
	"context"
	"encoding/json"
	"iter"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/agent/conversation"
	"github.com/seed46cd37a8/atoll/agent/hooks"
	"github.com/seed46cd37a8/atoll/agent/template"
	"github.com/seed46cd37a8/atoll/internal/testing/testagent/agenttest"
	"github.com/seed46cd37a8/atoll/internal/testing/teststore"
	"github.com/seed46cd37a8/atoll/provider/local"
	"github.com/seed46cd37a8/atoll/storage/filesync"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// A lab is what services of conversations are made of.
type lab struct {
	t         testing.TB
	provider  atoll.Provider
	store     store.Conversations
	templates *template.Set
	bucket    string // its directory; "" is none
	hooks     hooks.Hooks
	agent     template.Agent
	policy    template.Policy
}

// sid is the sandbox of most tests.
const sid = "11111111222243338444555555555555"

// newLab has the template "agent" with the test agent, and no object storage.
func newLab(t testing.TB) *lab {
	t.Helper()
	dir := t.TempDir()
	p, err := local.New(local.Options{Dir: filepath.Join(dir, "local")})
	if err != nil {
		t.Fatal(err)
	}
	s := teststore.Open(dir)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("Close of the provider: %v", err)
		}
		s.Close()
	})
	l := &lab{t: t, provider: p, store: s, templates: template.NewSet(), hooks: hooks.Default()}
	l.agent = template.Agent{
		Command:  []string{agenttest.Path(t), "--dangerously-skip-permissions", "--verbose", "--output-format", "stream-json", "{continue}", "-p", "{prompt}"},
		Continue: []string{"-c"}, ContinueIf: ".agent/projects", Env: []string{"CLAUDE_CONFIG_DIR=.agent"}, Format: template.FormatClaude,
	}
	err = l.templates.Register("agent", func(string) (*template.Template, error) {
		return &template.Template{InitFromS3: true, Agent: l.agent, Hooks: l.hooks, Policy: l.policy}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// withBucket adds object storage.
func (l *lab) withBucket() *lab {
	l.bucket = l.t.TempDir()
	return l
}

// options are those of a service.
func (l *lab) options() conversation.Options {
	o := conversation.Options{
		Templates: l.templates, Server: "one", Hooks: hooks.New(hooks.Options{}), Log: slog.New(slog.DiscardHandler),
	}
	if l.bucket != "" {
		b, err := objectstore.OpenDir(l.bucket)
		if err != nil {
			l.t.Fatal(err)
		}
		l.t.Cleanup(func() { b.Close() })
		o.Store = "file:///bucket"
		o.Open = func(_ context.Context, at string) (*conversation.Place, error) {
			prefix := strings.TrimPrefix(at, "file:///bucket/")
			r, err := filesync.New(b, prefix, filesync.Options{})
			return &conversation.Place{Remote: r, Bucket: b, Prefix: prefix}, err
		}
	}
	return o
}

// open opens a service, which is closed when the test ends.
func (l *lab) open() *conversation.Service { return l.openWith(l.options()) }

func (l *lab) openWith(o conversation.Options) *conversation.Service {
	l.t.Helper()
	v := conversation.New(l.provider, l.store, o)
	l.t.Cleanup(func() {
		if err := v.Close(); err != nil {
			l.t.Errorf("Close: %v", err)
		}
	})
	return v
}

// ask is a prompt for the conversation "c" of tests.
func ask(text string) agent.Prompt {
	return agent.Prompt{Conversation: "c", Sandbox: sid, Template: "agent", Text: text}
}

// An event is what a client got.
type event struct {
	ID             string
	Type           string
	Delta          string
	Error          string
	FinishReason   string
	ConversationID string
	SandboxID      string
	TurnID         string
	Input          string
	Result         json.RawMessage
	Usage          struct{ InputTokens, OutputTokens, CachedInputTokens int64 }
}

func eventOf(t testing.TB, e agent.TurnEvent) event {
	t.Helper()
	var ev event
	if err := json.Unmarshal(e.Data, &ev); err != nil {
		t.Errorf("event %q: %v", e.Data, err)
	}
	ev.ID = e.ID
	return ev
}

// read reads events to their end.
func read(t testing.TB, events iter.Seq2[agent.TurnEvent, error]) (all []event) {
	t.Helper()
	for e, err := range events {
		if err != nil {
			t.Fatalf("the stream broke off after %d events: %v", len(all), err)
		}
		all = append(all, eventOf(t, e))
	}
	return all
}

// send sends a prompt, and reads its turn to the end.
func send(t testing.TB, v *conversation.Service, p agent.Prompt) []event {
	t.Helper()
	events, err := v.Send(t.Context(), p)
	if err != nil {
		t.Fatalf("Send: %v", err)
	}
	return read(t, events)
}

// said is the text of events.
func said(all []event) string {
	var text strings.Builder
	for _, e := range all {
		if e.Type == "text-delta" {
			text.WriteString(e.Delta)
		}
	}
	return text.String()
}

// types are those of events.
func types(all []event) string {
	var list []string
	for _, e := range all {
		if list = append(list, e.Type); e.Error != "" && e.Type == "error" {
			list[len(list)-1] += "(" + e.Error + ")"
		}
	}
	return strings.Join(list, " ")
}

// messages are those of the conversation "c", one line each.
func messages(t testing.TB, v *conversation.Service) string {
	t.Helper()
	all, err := v.Messages(t.Context(), "c", "", 0)
	if err != nil {
		t.Fatalf("Messages: %v", err)
	}
	var lines []string
	for _, m := range all {
		line := string(m.Role) + ": " + m.Body
		for _, c := range m.ToolCalls {
			line += " [" + c.Name + " " + c.Status + " " + string(c.Input) + c.Output + "]"
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// wantKind checks the kind of an error.
func wantKind(t testing.TB, what string, err error, want atoll.Kind) {
	t.Helper()
	if got := atoll.KindOf(err); got != want {
		t.Errorf("%s: %q (%v), want %q", what, got, err, want)
	}
}

// readFile reads a file of the sandbox; what it says of an error is the error.
func (l *lab) readFile(name string) string {
	l.t.Helper()
	sb, err := l.provider.Get(l.t.Context(), sid)
	if err != nil {
		return err.Error()
	}
	data, err := atoll.ReadFile(l.t.Context(), sb, name)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// none checks that there is no sandbox.
func (l *lab) none() {
	l.t.Helper()
	all, err := l.provider.List(l.t.Context(), atoll.Filter{})
	if err != nil || len(all) > 0 {
		l.t.Errorf("there are sandboxes: %v, %v", all, err)
	}
}

// kept has another name than its method.
type kept = store.Conversations

// A cut is a store that can be cut off, as it is for a program that was killed.
type cut struct {
	kept
	off atomic.Bool
}

var errOff = atoll.Errorf("store", "", atoll.ErrUnavailable, "cut off")

func (c *cut) InsertConversation(ctx context.Context, x *store.Conversation) error {
	if c.off.Load() {
		return errOff
	}
	return c.kept.InsertConversation(ctx, x)
}

func (c *cut) UpdateConversation(ctx context.Context, x *store.Conversation) error {
	if c.off.Load() {
		return errOff
	}
	return c.kept.UpdateConversation(ctx, x)
}

func (c *cut) DeleteConversation(ctx context.Context, x *store.Conversation) error {
	if c.off.Load() {
		return errOff
	}
	return c.kept.DeleteConversation(ctx, x)
}

func (c *cut) AddMessage(ctx context.Context, m *agent.Message) error {
	if c.off.Load() {
		return errOff
	}
	return c.kept.AddMessage(ctx, m)
}

func (c *cut) AddUsage(ctx context.Context, account, conversation string, turn int64, u agent.TokenUsage) error {
	if c.off.Load() {
		return errOff
	}
	return c.kept.AddUsage(ctx, account, conversation, turn, u)
}

func (c *cut) UpdateSandbox(ctx context.Context, x *store.AgentSandbox) error {
	if c.off.Load() {
		return errOff
	}
	return c.kept.UpdateSandbox(ctx, x)
}

// killed opens a service that ends as if its program were killed, when kill is called.
func (l *lab) killed(o conversation.Options) (v *conversation.Service, kill func()) {
	l.t.Helper()
	c := &cut{kept: l.store}
	v = conversation.New(l.provider, c, o)
	kill = sync.OnceFunc(func() {
		c.off.Store(true)
		v.Close()
	})
	l.t.Cleanup(kill)
	return v, kill
}

// A gate holds what comes to a step until it is opened.
type gate struct {
	name    string
	reached chan struct{}
	open    chan struct{}
	once    sync.Once
}

func newGate(name string) *gate {
	return &gate{name: name, reached: make(chan struct{}), open: make(chan struct{})}
}

func (g *gate) step(name string) {
	if name == g.name {
		g.once.Do(func() {
			close(g.reached)
			<-g.open
		})
	}
}

// The same with a store that servers share.
func TestOverPostgres(t *testing.T) { teststore.OverPostgres(t, ".", "") }
