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

// A fixture is the surroundings of a service: a provider, a store, templates and object storage.
type fixture struct {
	t         testing.TB
	provider  atoll.Provider
	store     store.Conversations
	templates *template.Set
	bucket    string // its directory; "" means no object storage
	hooks     hooks.Hooks
	agent     template.Agent
	policy    template.Policy
}

// testSandbox is the id of the sandbox of most tests.
const testSandbox = "11111111222243338444555555555555"

// newFixture returns a fixture with the template "agent", which runs the test agent, and without
// object storage.
func newFixture(t testing.TB) *fixture {
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
	fx := &fixture{t: t, provider: p, store: s, templates: template.NewSet(), hooks: hooks.Default()}
	fx.agent = template.Agent{
		Command:  []string{agenttest.Path(t), "--dangerously-skip-permissions", "--verbose", "--output-format", "stream-json", "{continue}", "-p", "{prompt}"},
		Continue: []string{"-c"}, ContinueIf: ".agent/projects", Env: []string{"CLAUDE_CONFIG_DIR=.agent"}, Format: template.FormatClaude,
	}
	err = fx.templates.Register("agent", func(string) (*template.Template, error) {
		return &template.Template{InitFromS3: true, Agent: fx.agent, Hooks: fx.hooks, Policy: fx.policy}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return fx
}

// withBucket adds object storage.
func (fx *fixture) withBucket() *fixture {
	fx.bucket = fx.t.TempDir()
	return fx
}

// serviceOptions returns the options of a service.
func (fx *fixture) serviceOptions() conversation.Options {
	o := conversation.Options{
		Templates: fx.templates, Server: "one", Hooks: hooks.New(hooks.Options{}), Log: slog.New(slog.DiscardHandler),
	}
	if fx.bucket != "" {
		b, err := objectstore.OpenDir(fx.bucket)
		if err != nil {
			fx.t.Fatal(err)
		}
		fx.t.Cleanup(func() { b.Close() })
		o.Store = "file:///bucket"
		o.Open = func(_ context.Context, at string) (*conversation.Storage, error) {
			prefix := strings.TrimPrefix(at, "file:///bucket/")
			r, err := filesync.New(b, prefix, filesync.Options{})
			return &conversation.Storage{Remote: r, Bucket: b, Prefix: prefix}, err
		}
	}
	return o
}

// openService returns a service that is closed when the test ends.
func (fx *fixture) openService() *conversation.Service {
	return fx.openServiceWith(fx.serviceOptions())
}

func (fx *fixture) openServiceWith(o conversation.Options) *conversation.Service {
	fx.t.Helper()
	v := conversation.New(fx.provider, fx.store, o)
	fx.t.Cleanup(func() {
		if err := v.Close(); err != nil {
			fx.t.Errorf("Close: %v", err)
		}
	})
	return v
}

// newPrompt returns a prompt to the conversation "c".
func newPrompt(text string) agent.Prompt {
	return agent.Prompt{Conversation: "c", Sandbox: testSandbox, Template: "agent", Text: text}
}

// An event is a decoded event of a turn.
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

// readEvents reads events to their end.
func readEvents(t testing.TB, events iter.Seq2[agent.TurnEvent, error]) (all []event) {
	t.Helper()
	for e, err := range events {
		if err != nil {
			t.Fatalf("the stream failed after %d events: %v", len(all), err)
		}
		all = append(all, eventOf(t, e))
	}
	return all
}

// sendPrompt sends a prompt, and reads its turn to the end.
func sendPrompt(t testing.TB, v *conversation.Service, p agent.Prompt) []event {
	t.Helper()
	events, err := v.Send(t.Context(), p)
	if err != nil {
		t.Fatalf("Send: %v", err)
	}
	return readEvents(t, events)
}

// textOf returns the agent's text in the events.
func textOf(all []event) string {
	var text strings.Builder
	for _, e := range all {
		if e.Type == "text-delta" {
			text.WriteString(e.Delta)
		}
	}
	return text.String()
}

// typesOf returns the types of the events, with the texts of errors.
func typesOf(all []event) string {
	var list []string
	for _, e := range all {
		if list = append(list, e.Type); e.Error != "" && e.Type == "error" {
			list[len(list)-1] += "(" + e.Error + ")"
		}
	}
	return strings.Join(list, " ")
}

// messageLines returns the messages of the conversation "c", one per line.
func messageLines(t testing.TB, v *conversation.Service) string {
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

// readFile returns the content of a file in the sandbox, or the text of the error.
func (fx *fixture) readFile(name string) string {
	fx.t.Helper()
	sb, err := fx.provider.Get(fx.t.Context(), testSandbox)
	if err != nil {
		return err.Error()
	}
	data, err := atoll.ReadFile(fx.t.Context(), sb, name)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// untilGo is a shell command that runs until letGo.
const untilGo = "until test -e go; do sleep 0.05; done"

// letGo ends untilGo in the sandbox.
func letGo(t testing.TB, p atoll.Provider) {
	t.Helper()
	sb, err := p.Get(t.Context(), testSandbox)
	if err == nil {
		err = atoll.WriteFile(t.Context(), sb, "go", nil, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// deleteSandbox deletes the sandbox of most tests.
func deleteSandbox(ctx context.Context, v *conversation.Service) error {
	_, err := v.DeleteSandbox(ctx, testSandbox, agent.DeleteOptions{})
	return err
}

// deleteConversation deletes the conversation "c".
func deleteConversation(ctx context.Context, v *conversation.Service) error {
	_, err := v.DeleteConversation(ctx, "c", agent.DeleteOptions{})
	return err
}

// wantNoSandboxes checks that the provider has no sandbox.
func (fx *fixture) wantNoSandboxes() {
	fx.t.Helper()
	all, err := fx.provider.List(fx.t.Context(), atoll.Filter{})
	if err != nil || len(all) > 0 {
		fx.t.Errorf("there are sandboxes: %v, %v", all, err)
	}
}

// conversationStore is an alias, so that the embedded field has another name than its method
// Conversations.
type conversationStore = store.Conversations

// A killableStore fails all writes once its program is killed.
type killableStore struct {
	conversationStore
	killed atomic.Bool
}

var errKilled = atoll.Errorf("store", "", atoll.ErrUnavailable, "cut off")

func (c *killableStore) InsertConversation(ctx context.Context, x *store.Conversation) error {
	if c.killed.Load() {
		return errKilled
	}
	return c.conversationStore.InsertConversation(ctx, x)
}

func (c *killableStore) UpdateConversation(ctx context.Context, x *store.Conversation) error {
	if c.killed.Load() {
		return errKilled
	}
	return c.conversationStore.UpdateConversation(ctx, x)
}

func (c *killableStore) DeleteConversation(ctx context.Context, x *store.Conversation) error {
	if c.killed.Load() {
		return errKilled
	}
	return c.conversationStore.DeleteConversation(ctx, x)
}

func (c *killableStore) AddMessage(ctx context.Context, m *agent.Message) error {
	if c.killed.Load() {
		return errKilled
	}
	return c.conversationStore.AddMessage(ctx, m)
}

func (c *killableStore) AddUsage(ctx context.Context, account, conversation string, turn int64, u agent.TokenUsage) error {
	if c.killed.Load() {
		return errKilled
	}
	return c.conversationStore.AddUsage(ctx, account, conversation, turn, u)
}

func (c *killableStore) UpdateSandbox(ctx context.Context, x *store.AgentSandbox) error {
	if c.killed.Load() {
		return errKilled
	}
	return c.conversationStore.UpdateSandbox(ctx, x)
}

// openKillable opens a service. kill makes it end as if its program was killed.
func (fx *fixture) openKillable(o conversation.Options) (v *conversation.Service, kill func()) {
	fx.t.Helper()
	c := &killableStore{conversationStore: fx.store}
	v = conversation.New(fx.provider, c, o)
	kill = sync.OnceFunc(func() {
		c.killed.Store(true)
		v.Close()
	})
	fx.t.Cleanup(kill)
	return v, kill
}

// A gate blocks the first caller that comes to a step, until the test opens it.
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

// The tests pass with a store that servers share.
func TestOverPostgres(t *testing.T) { teststore.OverPostgres(t, ".", "") }
