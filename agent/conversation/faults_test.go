package conversation_test

import (
	"context"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/agent/hooks"
	"github.com/seed46cd37a8/atoll/agent/template"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// A faultyProvider fails as its fields say.
type faultyProvider struct {
	atoll.ProviderLayer
	failingGets atomic.Int32 // the number of calls of Get that still fail
	onStart     func() error
	onRemove    func()
	unreadable  string // the name of a file that cannot be read
}

func (p *faultyProvider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	if p.failingGets.Add(-1) >= 0 {
		return nil, atoll.Errorf("get", id, atoll.ErrUnavailable, "away for a moment")
	}
	sb, err := p.Provider.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return &faultySandbox{atoll.SandboxLayer{Sandbox: sb}, p}, nil
}

type faultySandbox struct {
	atoll.SandboxLayer
	p *faultyProvider
}

func (s *faultySandbox) Start(ctx context.Context) error {
	if s.p.onStart != nil {
		return s.p.onStart()
	}
	return s.Sandbox.Start(ctx)
}

func (s *faultySandbox) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	if s.p.onRemove != nil {
		s.p.onRemove()
	}
	return s.Sandbox.Remove(ctx, opts...)
}

// Files returns files of which one cannot be read.
func (s *faultySandbox) Files() atoll.FS { return faultyFS{atoll.Files(s.Sandbox), s.p.unreadable} }

type faultyFS struct {
	atoll.FS
	unreadable string
}

func (f faultyFS) Sub(dir string) atoll.FS { return faultyFS{atoll.SubFiles(f.FS, dir), f.unreadable} }

func (f faultyFS) Read(ctx context.Context, name string, offset int64) (io.ReadCloser, atoll.FileInfo, error) {
	if name == f.unreadable {
		return nil, atoll.FileInfo{}, atoll.Errorf("read", name, atoll.ErrDenied, "it is closed")
	}
	return f.FS.Read(ctx, name, offset)
}

// injectFaults wraps the provider, and returns the wrapper.
func (fx *fixture) injectFaults() *faultyProvider {
	p := &faultyProvider{ProviderLayer: atoll.ProviderLayer{Provider: fx.provider}}
	fx.provider = p
	return p
}

// A turn is taken over even if the provider is unavailable for a moment, because its agent still
// runs.
func TestTakeOverWhileUnavailable(t *testing.T) {
	fx := newFixture(t).withBucket()
	p := fx.injectFaults()
	g := newGate("started")
	v, kill := fx.openKillable(fx.serviceOptions().WithStep(g.step))
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	go func() { _, _ = v.Send(ctx, newPrompt("say one\nsleep 1s\nsay two")) }()
	<-g.reached
	leave()
	done := make(chan struct{})
	go func() { defer close(done); kill() }()
	time.Sleep(20 * time.Millisecond)
	close(g.open)
	<-done
	p.failingGets.Store(3)
	w := fx.openService()
	waitForTakeover(t, w)
	if text := messageLines(t, w); !strings.Contains(text, "assistant: two") {
		t.Errorf("the agent's messages are lost: %s", text)
	}
}

// A rejectingStore fails to record the process of a turn.
type rejectingStore struct{ conversationStore }

func (r rejectingStore) UpdateConversation(ctx context.Context, c *store.Conversation) error {
	if c.Turn != nil && c.Turn.Process != "" {
		return errKilled
	}
	return r.conversationStore.UpdateConversation(ctx, c)
}

// The agent of a turn that failed to start is killed.
func TestProcessNotRecorded(t *testing.T) {
	fx := newFixture(t)
	fx.store = rejectingStore{fx.store}
	v := fx.openService()
	_, err := v.Send(t.Context(), newPrompt("sleep 1h"))
	wantKind(t, "Send", err, atoll.ErrUnavailable)
	for end := time.Now().Add(testenv.Scale(time.Minute)); ; time.Sleep(10 * time.Millisecond) {
		sb, err := fx.provider.Get(t.Context(), testSandbox)
		if err != nil {
			break
		}
		all, err := atoll.Processes(t.Context(), sb)
		if err != nil {
			t.Fatal(err)
		}
		running := 0
		for _, p := range all {
			if p.Exit == nil {
				running++
			}
		}
		if running == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the agent still runs")
		}
	}
}

// A cancelled turn belongs to its server until it has ended.
func TestLeaseUntilTurnEnds(t *testing.T) {
	lease := max(6*time.Second, testenv.Scale(2*time.Second)) // a live server renews it in time, even if it is busy
	fx := newFixture(t)
	watched := &watchedStore{conversationStore: fx.store}
	begun := make(chan struct{})
	fx.hooks.OnColdStart = func(context.Context, *hooks.HookData) error {
		close(begun)
		// The hook ignores its context until the other server has looked for turns twice after the lease would have
		// expired. When it looks once more, it has finished with these.
		time.Sleep(lease)
		for all := watched.looks.Load() + 3; watched.looks.Load() < all; {
			time.Sleep(10 * time.Millisecond)
		}
		return nil
	}
	v := fx.openServiceWith(fx.serviceOptions().WithLease(lease))
	fx.store = watched
	fx.openServiceWith(withServer(fx.serviceOptions(), "two").WithLease(lease))
	go func() { _, _ = v.Send(context.Background(), newPrompt("say hello")) }()
	<-begun
	if err := v.Cancel(t.Context(), "c"); err != nil {
		t.Errorf("Cancel: %v", err)
	}
	if watched.wrote.Load() {
		t.Error("another server took over the turn of a live server")
	}
}

// A watchedStore records whether it was written to, and how often a server has looked for turns to take over.
type watchedStore struct {
	conversationStore
	wrote atomic.Bool
	looks atomic.Int32
}

func (w *watchedStore) RunningTurns(ctx context.Context) ([]*store.Conversation, error) {
	w.looks.Add(1)
	return w.conversationStore.RunningTurns(ctx)
}

func (w *watchedStore) UpdateConversation(ctx context.Context, c *store.Conversation) error {
	w.wrote.Store(true)
	return w.conversationStore.UpdateConversation(ctx, c)
}

// While a sandbox is being created for one conversation, another one on another server cannot
// take it.
func TestConcurrentCreation(t *testing.T) {
	for _, step := range []string{"creating", "created"} {
		t.Run(step, func(t *testing.T) {
			fx := newFixture(t)
			g := newGate(step)
			v, w := fx.openServiceWith(fx.serviceOptions().WithStep(g.step)), fx.openServiceWith(withServer(fx.serviceOptions(), "two"))
			ended := make(chan error, 1)
			go func() {
				events, err := v.Send(t.Context(), newPrompt("say hello"))
				if err == nil {
					for range events {
					}
				}
				ended <- err
			}()
			<-g.reached
			other := newPrompt("say no")
			other.Conversation = "d"
			_, err := w.Send(t.Context(), other)
			wantKind(t, "Send of another conversation", err, atoll.ErrConflict)
			close(g.open)
			if err := <-ended; err != nil {
				t.Errorf("Send: %v", err)
			}
			if x, err := v.Sandbox(t.Context(), testSandbox); err != nil || x.State != atoll.StateRunning || x.Conversation != "c" {
				t.Errorf("the sandbox: %+v, %v", x, err)
			}
		})
	}
}

// The files of an adopted sandbox are retained, even if the sandbox has to be created again.
func TestAdoptStopped(t *testing.T) {
	fx := newFixture(t)
	sb, err := fx.provider.Create(t.Context(), &atoll.Spec{ID: testSandbox})
	if err != nil {
		t.Fatal(err)
	}
	if err := atoll.WriteFile(t.Context(), sb, "mine", []byte("kept"), 0); err != nil {
		t.Fatal(err)
	}
	if err := sb.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	p := fx.injectFaults()
	p.onStart = func() error { return atoll.Errorf("start", testSandbox, atoll.ErrUnsupported, "make another one") }
	failing := atoll.Errorf("", "", atoll.ErrInvalid, "no luck")
	fx.hooks.OnColdStart = func(context.Context, *hooks.HookData) error { return failing }
	v := fx.openService()
	_, err = v.Send(t.Context(), newPrompt("say hello"))
	wantKind(t, "Send that fails", err, atoll.ErrInvalid)
	fx.hooks.OnColdStart = nil
	sendPrompt(t, v, newPrompt("run cat mine"))
	if text := messageLines(t, v); !strings.Contains(text, "completed kept") {
		t.Errorf("messages: %s", text)
	}
}

// A foreign sandbox with the id of an unfinished one is not removed.
func TestAdoptInPlaceOfUnfinished(t *testing.T) {
	fx := newFixture(t)
	g := newGate("creating")
	v, kill := fx.openKillable(fx.serviceOptions().WithStep(g.step))
	ctx, leave := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = v.CreateSandbox(ctx, agent.Sandbox{ID: testSandbox, Template: "agent"})
	}()
	<-g.reached
	x, err := fx.store.FindSandbox(t.Context(), "default", testSandbox)
	if err != nil {
		t.Fatal(err)
	}
	leave()
	close(g.open)
	kill()
	<-over                                                                               // including its last write
	if _, err := fx.store.FindSandbox(t.Context(), "default", testSandbox); err != nil { // restore the record that a killed program leaves
		if err := fx.store.InsertSandbox(t.Context(), x); err != nil {
			t.Fatal(err)
		}
	}
	sb, err := fx.provider.Create(t.Context(), &atoll.Spec{ID: testSandbox})
	if err != nil {
		t.Fatal(err)
	}
	if err := atoll.WriteFile(t.Context(), sb, "mine", []byte("kept"), 0); err != nil {
		t.Fatal(err)
	}
	w := fx.openService()
	sendPrompt(t, w, newPrompt("run cat mine"))
	if text := messageLines(t, w); !strings.Contains(text, "completed kept") {
		t.Errorf("messages: %s", text)
	}
}

// If a file cannot be saved first, a restore changes nothing.
func TestRestoreAfterFailedPush(t *testing.T) {
	fx := newFixture(t).withBucket()
	p := fx.injectFaults()
	v := fx.openService()
	sendPrompt(t, v, newPrompt("run echo one > file"))
	fx.withSandbox(func(sb atoll.Sandbox) error { return atoll.WriteFile(t.Context(), sb, "file", []byte("two\n"), 0) })
	p.unreadable = "file"
	_, err := v.RestoreSandbox(t.Context(), testSandbox, 0)
	wantKind(t, "RestoreSandbox", err, atoll.ErrUnavailable)
	p.unreadable = ""
	if got := fx.readFile("file"); got != "two\n" {
		t.Errorf("the file: %q", got)
	}
}

// A restore without a version restores the latest one.
func TestRestoreLatest(t *testing.T) {
	fx := newFixture(t).withBucket()
	v := fx.openService()
	sendPrompt(t, v, newPrompt("run echo one > file"))
	fx.withSandbox(func(sb atoll.Sandbox) error {
		return atoll.WriteFile(t.Context(), sb, "file", []byte("two\n"), 0)
	})
	if _, err := v.RestoreSandbox(t.Context(), testSandbox, 0); err != nil {
		t.Fatal(err)
	}
	if got := fx.readFile("file"); got != "one\n" {
		t.Errorf("the file: %q", got)
	}
	if all, err := v.Versions(t.Context(), testSandbox); err != nil || len(all) != 2 {
		t.Errorf("Versions: %v, %v", all, err)
	}
}

// A restore runs to its end if its client disconnects.
func TestRestoreClientLeaves(t *testing.T) {
	fx := newFixture(t).withBucket()
	v := fx.openService()
	sendPrompt(t, v, newPrompt("run echo one > file"))
	all, err := v.Versions(t.Context(), testSandbox)
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	fx.agent.Setup = [][]string{{"sh", "-c", "touch begun; while [ ! -e go ]; do sleep 0.05; done; touch ended"}}
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := v.RestoreSandbox(ctx, testSandbox, all[0].Version); done <- err }()
	for end := time.Now().Add(testenv.Scale(10 * time.Second)); fx.readFile("begun") != ""; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the restore does not begin")
		}
	}
	leave()
	if err := <-done; err == nil {
		t.Error("RestoreSandbox: no error")
	}
	fx.withSandbox(func(sb atoll.Sandbox) error { return atoll.WriteFile(t.Context(), sb, "go", nil, 0) })
	waitForTurn(t, v)
	if got := fx.readFile("ended"); got != "" {
		t.Errorf("the restore did not finish: %s", got)
	}
}

// A panic in a deletion is an error.
func TestPanicInDelete(t *testing.T) {
	fx := newFixture(t)
	p := fx.injectFaults()
	v := fx.openService()
	sendPrompt(t, v, newPrompt("say hello"))
	p.onRemove = func() { panic("oh") }
	wantKind(t, "DeleteSandbox", deleteSandbox(t.Context(), v), atoll.ErrInternal)
	p.onRemove = nil
	waitForTurn(t, v)
}

// A raw stream has an event if the agent fails without a line.
func TestRawStreamError(t *testing.T) {
	fx := newFixture(t)
	fx.agent.Continue, fx.agent.ContinueIf = nil, ""
	fx.agent.Command = []string{"sh", "-c", "echo no luck >&2; exit 3", "{prompt}"}
	v := fx.openService()
	p := newPrompt("say hello")
	p.Raw = true
	events, err := v.Send(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for e, err := range events {
		if err != nil {
			t.Fatal(err)
		}
		text += string(e.Data) + "\n"
	}
	if !strings.Contains(text, `"type":"error"`) || !strings.Contains(text, "no luck") {
		t.Errorf("the stream: %q", text)
	}
}

// A sandbox belongs to the agent of the conversation that it is linked with.
func TestSandboxAgent(t *testing.T) {
	fx := newFixture(t).withBucket()
	err := fx.templates.Register("mine", func(string) (*template.Template, error) {
		return &template.Template{InitFromS3: true, Agent: fx.agent, Hooks: fx.hooks, KeyPrefix: "agents/{account}/{agent}"}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	v := fx.openService()
	if _, err := v.CreateSandbox(t.Context(), agent.Sandbox{ID: testSandbox, Template: "mine", Agent: "a"}); err != nil {
		t.Fatal(err)
	}
	sendPrompt(t, v, agent.Prompt{Conversation: "c", Sandbox: testSandbox, Text: "run echo data > file"})
	if c, err := v.Conversation(t.Context(), "c"); err != nil || c.Agent != "a" {
		t.Errorf("the conversation: %+v, %v", c, err)
	}
	if _, err := v.DeleteConversation(t.Context(), "c", agent.DeleteOptions{Sandbox: agent.SandboxKeep}); err != nil {
		t.Fatal(err)
	}
	sendPrompt(t, v, agent.Prompt{Conversation: "d", Sandbox: testSandbox, Agent: "b", Text: "run echo more > other"})
	page, err := v.Files(t.Context(), testSandbox, agent.FileQuery{Source: agent.SourceS3, Page: 1, PerPage: 100, Flat: true})
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, f := range page.Files {
		found = found || f.Path == "other"
	}
	if !found {
		t.Errorf("the pushed file is missing: %+v", page.Files)
	}
}

// Close does not wait for the hooks of all messages: the program that takes the turn over saves
// them.
func TestCloseWithSlowHooks(t *testing.T) {
	fx := newFixture(t)
	slow := make(chan struct{}, 100)
	fx.hooks.OnMessage = hooks.Then(func(ctx context.Context, d *hooks.HookData) error {
		if d.Message.Role == agent.RoleAssistant {
			slow <- struct{}{}
			time.Sleep(time.Second)
		}
		return nil
	}, hooks.DefaultOnMessage)
	v := fx.openService()
	if _, err := v.Send(t.Context(), newPrompt("flood 50\nsleep 1h")); err != nil {
		t.Fatal(err)
	}
	<-slow
	begin := time.Now()
	v.Close()
	if took := time.Since(begin); took > testenv.Scale(10*time.Second) {
		t.Errorf("Close took %s", took)
	}
	fx.hooks.OnMessage = hooks.DefaultOnMessage
	w := fx.openService()
	for end := time.Now().Add(testenv.Scale(20 * time.Second)); !strings.Contains(messageLines(t, w), "flood 49"); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the messages are lost")
		}
	}
	if err := w.Cancel(t.Context(), "c"); err != nil {
		t.Error(err)
	}
}

// A UUID has one canonical form, also as the id of an agent.
func TestAgentIDs(t *testing.T) {
	fx := newFixture(t)
	v := fx.openService()
	p := newPrompt("say hello")
	p.Agent = "AAAAAAAA-BBBB-4CCC-8DDD-EEEEEEEEEEEE"
	sendPrompt(t, v, p)
	p.Agent = "aaaaaaaabbbb4ccc8dddeeeeeeeeeeee"
	sendPrompt(t, v, p)
}
