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

// A troubled provider has troubles that tests ask for.
type troubled struct {
	atoll.ProviderLayer
	away     atomic.Int32 // so many more calls of Get fail
	onStart  func() error
	onRemove func()
	closed   string // cannot be read
}

func (p *troubled) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	if p.away.Add(-1) >= 0 {
		return nil, atoll.Errorf("get", id, atoll.ErrUnavailable, "away for a moment")
	}
	sb, err := p.Provider.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return &troubledSandbox{atoll.SandboxLayer{Sandbox: sb}, p}, nil
}

type troubledSandbox struct {
	atoll.SandboxLayer
	p *troubled
}

func (s *troubledSandbox) Start(ctx context.Context) error {
	if s.p.onStart != nil {
		return s.p.onStart()
	}
	return s.Sandbox.Start(ctx)
}

func (s *troubledSandbox) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	if s.p.onRemove != nil {
		s.p.onRemove()
	}
	return s.Sandbox.Remove(ctx, opts...)
}

// Files are those that can be read, and the closed one.
func (s *troubledSandbox) Files() atoll.FS { return troubledFS{atoll.Files(s.Sandbox), s.p.closed} }

type troubledFS struct {
	atoll.FS
	closed string
}

func (f troubledFS) Sub(dir string) atoll.FS { return troubledFS{atoll.SubFiles(f.FS, dir), f.closed} }

func (f troubledFS) Read(ctx context.Context, name string, offset int64) (io.ReadCloser, atoll.FileInfo, error) {
	if name == f.closed {
		return nil, atoll.FileInfo{}, atoll.Errorf("read", name, atoll.ErrDenied, "it is closed")
	}
	return f.FS.Read(ctx, name, offset)
}

// troubled puts troubles before the provider.
func (l *lab) troubled() *troubled {
	p := &troubled{ProviderLayer: atoll.ProviderLayer{Provider: l.provider}}
	l.provider = p
	return p
}

// A provider that cannot be asked for a moment does not cost a turn that was left: its
// agent still runs.
func TestTakenOverWhileAway(t *testing.T) {
	l := newLab(t).withBucket()
	p := l.troubled()
	g := newGate("started")
	v, kill := l.killed(l.options().WithStep(g.step))
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	go func() { _, _ = v.Send(ctx, ask("say one\nsleep 1s\nsay two")) }()
	<-g.reached
	leave()
	done := make(chan struct{})
	go func() { defer close(done); kill() }()
	time.Sleep(20 * time.Millisecond)
	close(g.open)
	<-done
	p.away.Store(3)
	w := l.open()
	settleHard(t, w)
	if text := messages(t, w); !strings.Contains(text, "assistant: two") {
		t.Errorf("the agent was left alone: %s", text)
	}
}

// refusing does not write down which process runs a turn.
type refusing struct{ kept }

func (r refusing) UpdateConversation(ctx context.Context, c *store.Conversation) error {
	if c.Turn != nil && c.Turn.Process != "" {
		return errOff
	}
	return r.kept.UpdateConversation(ctx, c)
}

// An agent whose turn could not begin does not go on by itself.
func TestNotWrittenDown(t *testing.T) {
	l := newLab(t)
	l.store = refusing{l.store}
	v := l.open()
	_, err := v.Send(t.Context(), ask("sleep 1h"))
	wantKind(t, "Send", err, atoll.ErrUnavailable)
	for end := time.Now().Add(testenv.Scale(time.Minute)); ; time.Sleep(10 * time.Millisecond) {
		sb, err := l.provider.Get(t.Context(), sid)
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

// What ends a turn is not its end: until then it is its server's.
func TestCancelIsNotTheEnd(t *testing.T) {
	lease := testenv.Scale(2 * time.Second)
	l := newLab(t)
	begun := make(chan struct{})
	l.hooks.OnColdStart = func(context.Context, *hooks.HookData) error {
		close(begun)
		time.Sleep(lease * 9 / 4) // it ignores the end of its context; the other server looks three times a lease
		return nil
	}
	v := l.openWith(l.options().WithLease(lease))
	watched := &watching{kept: l.store}
	l.store = watched
	l.openWith(withServer(l.options(), "two").WithLease(lease))
	go func() { _, _ = v.Send(context.Background(), ask("say hello")) }()
	<-begun
	if err := v.Cancel(t.Context(), "c"); err != nil {
		t.Errorf("Cancel: %v", err)
	}
	if watched.wrote.Load() {
		t.Error("another server has taken over the turn of one that lives")
	}
}

// watching notes that it was written to.
type watching struct {
	kept
	wrote atomic.Bool
}

func (w *watching) UpdateConversation(ctx context.Context, c *store.Conversation) error {
	w.wrote.Store(true)
	return w.kept.UpdateConversation(ctx, c)
}

// While a sandbox is being made for one conversation, another one, on another server,
// does not take it away.
func TestTwoMakeOneSandbox(t *testing.T) {
	for _, step := range []string{"creating", "created"} {
		t.Run(step, func(t *testing.T) {
			l := newLab(t)
			g := newGate(step)
			v, w := l.openWith(l.options().WithStep(g.step)), l.openWith(withServer(l.options(), "two"))
			ended := make(chan error, 1)
			go func() {
				events, err := v.Send(t.Context(), ask("say hello"))
				if err == nil {
					for range events {
					}
				}
				ended <- err
			}()
			<-g.reached
			other := ask("say no")
			other.Conversation = "d"
			_, err := w.Send(t.Context(), other)
			wantKind(t, "Send of another conversation", err, atoll.ErrConflict)
			close(g.open)
			if err := <-ended; err != nil {
				t.Errorf("Send: %v", err)
			}
			if x, err := v.Sandbox(t.Context(), sid); err != nil || x.State != atoll.StateRunning || x.Conversation != "c" {
				t.Errorf("the sandbox: %+v, %v", x, err)
			}
		})
	}
}

// What somebody had in a sandbox that was there before is kept, also where it has to be
// made again.
func TestAdoptStopped(t *testing.T) {
	l := newLab(t)
	sb, err := l.provider.Create(t.Context(), &atoll.Spec{ID: sid})
	if err != nil {
		t.Fatal(err)
	}
	if err := atoll.WriteFile(t.Context(), sb, "mine", []byte("kept"), 0); err != nil {
		t.Fatal(err)
	}
	if err := sb.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	p := l.troubled()
	p.onStart = func() error { return atoll.Errorf("start", sid, atoll.ErrUnsupported, "make another one") }
	failing := atoll.Errorf("", "", atoll.ErrInvalid, "no luck")
	l.hooks.OnColdStart = func(context.Context, *hooks.HookData) error { return failing }
	v := l.open()
	_, err = v.Send(t.Context(), ask("say hello"))
	wantKind(t, "Send that fails", err, atoll.ErrInvalid)
	l.hooks.OnColdStart = nil
	send(t, v, ask("run cat mine"))
	if text := messages(t, v); !strings.Contains(text, "completed kept") {
		t.Errorf("messages: %s", text)
	}
}

// A sandbox that has the id of one that was never finished, and is not ours, is not
// removed.
func TestAdoptInPlaceOfUnfinished(t *testing.T) {
	l := newLab(t)
	g := newGate("creating")
	v, kill := l.killed(l.options().WithStep(g.step))
	ctx, leave := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = v.CreateSandbox(ctx, agent.Sandbox{ID: sid, Template: "agent"})
	}()
	<-g.reached
	x, err := l.store.FindSandbox(t.Context(), "default", sid)
	if err != nil {
		t.Fatal(err)
	}
	leave()
	close(g.open)
	kill()
	<-over                                                                      // what it was just writing, too
	if _, err := l.store.FindSandbox(t.Context(), "default", sid); err != nil { // as if it had been killed at once
		if err := l.store.InsertSandbox(t.Context(), x); err != nil {
			t.Fatal(err)
		}
	}
	sb, err := l.provider.Create(t.Context(), &atoll.Spec{ID: sid})
	if err != nil {
		t.Fatal(err)
	}
	if err := atoll.WriteFile(t.Context(), sb, "mine", []byte("kept"), 0); err != nil {
		t.Fatal(err)
	}
	w := l.open()
	send(t, w, ask("run cat mine"))
	if text := messages(t, w); !strings.Contains(text, "completed kept") {
		t.Errorf("messages: %s", text)
	}
}

// The last push of a sandbox that has stopped, which those do that nobody uses, is no
// less needed.
func TestDeleteStopped(t *testing.T) {
	l := newLab(t).withBucket()
	v := l.open()
	send(t, v, ask("run echo one > file"))
	l.sandbox(func(sb atoll.Sandbox) error {
		if err := atoll.WriteFile(t.Context(), sb, "file", []byte("two\n"), 0); err != nil {
			return err
		}
		return sb.Stop(t.Context(), 0)
	})
	if err := v.DeleteSandbox(t.Context(), sid); err != nil {
		t.Errorf("DeleteSandbox: %v", err)
	}
	if all, err := v.Versions(t.Context(), sid); err != nil || len(all) != 2 {
		t.Errorf("Versions: %v, %v", all, err)
	}
}

// Files that could not be pushed are nowhere else: their volume stays.
func TestDeleteKeepsWhatCannotBePushed(t *testing.T) {
	l := newLab(t).withBucket()
	p := l.troubled()
	v := l.open()
	send(t, v, ask("run echo data > file"))
	l.sandbox(func(sb atoll.Sandbox) error { return atoll.WriteFile(t.Context(), sb, "file", []byte("more"), 0) })
	p.closed = "file"
	if err := v.DeleteSandbox(t.Context(), sid); err == nil {
		t.Error("DeleteSandbox does not say that some files could not be pushed")
	}
	l.none()
	if volumes, err := atoll.Volumes(t.Context(), l.provider, ""); err != nil || len(volumes) != 1 {
		t.Errorf("volumes: %+v, %v", volumes, err)
	}
}

// Without a version, a sandbox is brought to the latest one.
func TestRestoreLatest(t *testing.T) {
	l := newLab(t).withBucket()
	v := l.open()
	send(t, v, ask("run echo one > file"))
	l.sandbox(func(sb atoll.Sandbox) error {
		return atoll.WriteFile(t.Context(), sb, "file", []byte("two\n"), 0)
	})
	if _, err := v.RestoreSandbox(t.Context(), sid, 0); err != nil {
		t.Fatal(err)
	}
	if got := l.readFile("file"); got != "one\n" {
		t.Errorf("the file: %q", got)
	}
	if all, err := v.Versions(t.Context(), sid); err != nil || len(all) != 2 {
		t.Errorf("Versions: %v, %v", all, err)
	}
}

// What a client has asked for is done to its end, also when the client leaves.
func TestRestoreClientLeaves(t *testing.T) {
	l := newLab(t).withBucket()
	v := l.open()
	send(t, v, ask("run echo one > file"))
	all, err := v.Versions(t.Context(), sid)
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	l.agent.Setup = [][]string{{"sh", "-c", "touch begun; sleep 1; touch ended"}}
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := v.RestoreSandbox(ctx, sid, all[0].Version); done <- err }()
	for end := time.Now().Add(testenv.Scale(10 * time.Second)); l.readFile("begun") != ""; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not begin")
		}
	}
	leave()
	if err := <-done; err == nil {
		t.Error("RestoreSandbox: no error")
	}
	settle(t, v)
	if got := l.readFile("ended"); got != "" {
		t.Errorf("it was not done to its end: %s", got)
	}
}

// A panic is no success.
func TestPanicInDelete(t *testing.T) {
	l := newLab(t)
	p := l.troubled()
	v := l.open()
	send(t, v, ask("say hello"))
	p.onRemove = func() { panic("oh") }
	wantKind(t, "DeleteSandbox", v.DeleteSandbox(t.Context(), sid), atoll.ErrInternal)
	p.onRemove = nil
	settle(t, v)
}

// Who gets the lines of an agent is told when there are none.
func TestRawTellsErrors(t *testing.T) {
	l := newLab(t)
	l.agent.Continue, l.agent.ContinueIf = nil, ""
	l.agent.Command = []string{"sh", "-c", "echo no luck >&2; exit 3", "{prompt}"}
	v := l.open()
	p := ask("say hello")
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

// A sandbox is that of the agent whose conversation it is linked with.
func TestAgentOfSandbox(t *testing.T) {
	l := newLab(t).withBucket()
	err := l.templates.Register("mine", func(string) (*template.Template, error) {
		return &template.Template{InitFromS3: true, Agent: l.agent, Hooks: l.hooks, KeyPrefix: "agents/{account}/{agent}"}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	v := l.open()
	if _, err := v.CreateSandbox(t.Context(), agent.Sandbox{ID: sid, Template: "mine", Agent: "a"}); err != nil {
		t.Fatal(err)
	}
	send(t, v, agent.Prompt{Conversation: "c", Sandbox: sid, Text: "run echo data > file"})
	if c, err := v.Conversation(t.Context(), "c"); err != nil || c.Agent != "a" {
		t.Errorf("the conversation: %+v, %v", c, err)
	}
	if err := v.DeleteConversation(t.Context(), "c", false); err != nil {
		t.Fatal(err)
	}
	send(t, v, agent.Prompt{Conversation: "d", Sandbox: sid, Agent: "b", Text: "run echo more > other"})
	page, err := v.Files(t.Context(), sid, agent.FileQuery{Source: agent.SourceS3, Page: 1, PerPage: 100, Flat: true})
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, f := range page.Files {
		found = found || f.Path == "other"
	}
	if !found {
		t.Errorf("what was pushed is not found: %+v", page.Files)
	}
}

// Close does not wait for the hooks of all that an agent has said: who takes over says
// it once more.
func TestCloseWithSlowHooks(t *testing.T) {
	l := newLab(t)
	slow := make(chan struct{}, 100)
	l.hooks.OnMessage = hooks.Then(func(ctx context.Context, d *hooks.HookData) error {
		if d.Message.Role == agent.RoleAssistant {
			slow <- struct{}{}
			time.Sleep(time.Second)
		}
		return nil
	}, hooks.DefaultOnMessage)
	v := l.open()
	if _, err := v.Send(t.Context(), ask("flood 50\nsleep 1h")); err != nil {
		t.Fatal(err)
	}
	<-slow
	begin := time.Now()
	v.Close()
	if took := time.Since(begin); took > testenv.Scale(10*time.Second) {
		t.Errorf("Close took %s", took)
	}
	l.hooks.OnMessage = hooks.DefaultOnMessage
	w := l.open()
	for end := time.Now().Add(testenv.Scale(20 * time.Second)); !strings.Contains(messages(t, w), "flood 49"); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("what was said is lost")
		}
	}
	if err := w.Cancel(t.Context(), "c"); err != nil {
		t.Error(err)
	}
}

// UUIDs have one form, whatever they name.
func TestAgentIDs(t *testing.T) {
	l := newLab(t)
	v := l.open()
	p := ask("say hello")
	p.Agent = "AAAAAAAA-BBBB-4CCC-8DDD-EEEEEEEEEEEE"
	send(t, v, p)
	p.Agent = "aaaaaaaabbbb4ccc8dddeeeeeeeeeeee"
	send(t, v, p)
}
