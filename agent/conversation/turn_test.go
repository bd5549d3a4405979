package conversation_test

import (
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/agent/conversation"
	"github.com/seed46cd37a8/atoll/agent/hooks"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/server/auth"
)

func TestTurn(t *testing.T) {
	fx := newFixture(t).withBucket()
	v := fx.openService()
	got := sendPrompt(t, v, newPrompt("think well\nsay hello\nrun echo data > file; echo done\nsay bye"))
	first := got[0]
	if first.Type != "stream-start" || first.ConversationID != "c" || first.SandboxID != testSandbox || first.TurnID == "" || first.ID != first.TurnID+":1" {
		t.Errorf("the first event: %+v", first)
	}
	want := "stream-start reasoning-start reasoning-delta reasoning-end text-start text-delta text-end " +
		"tool-input-start tool-input-delta tool-input-end tool-call tool-result text-start text-delta text-end finish"
	if got := typesOf(got); got != want {
		t.Errorf("events: %s\nwant %s", got, want)
	}
	last := got[len(got)-1]
	if last.FinishReason != "stop" || last.Usage.OutputTokens == 0 {
		t.Errorf("the last event: %+v", last)
	}
	if got := fx.readFile("file"); got != "data\n" {
		t.Errorf("the file: %q", got)
	}
	text := messageLines(t, v)
	for i, want := range []string{"user: think well", "assistant: hello", "assistant:  [Bash called", "tool:  [Bash completed", "assistant: bye"} {
		at := strings.Index(text, want)
		if at < 0 {
			t.Fatalf("message %d: no %q in\n%s", i, want, text)
		}
		text = text[at:]
	}
	c, err := v.Conversation(t.Context(), "c")
	if err != nil {
		t.Fatal(err)
	}
	if c.Sandbox != testSandbox || c.Turn != nil || c.Template != "agent" || c.Stats.MessagesExchanged < 4 || c.Stats.OutputTokens != last.Usage.OutputTokens {
		t.Errorf("the conversation: %+v", c)
	}
	x, err := v.Sandbox(t.Context(), testSandbox)
	if err != nil {
		t.Fatal(err)
	}
	if x.State != atoll.StateRunning || x.Conversation != "c" || x.Meta.LastSync == 0 || x.Meta.SyncStats.Version == 0 || x.Meta.SyncError != "" {
		t.Errorf("the sandbox: %+v", x)
	}

	// The agent continues its session in the same sandbox.
	got = sendPrompt(t, v, newPrompt("say more"))
	if text := textOf(got); text != "I remember 1 prompts.more" {
		t.Errorf("the second turn said %q", text)
	}
	again, err := v.Conversation(t.Context(), "c")
	if err != nil || again.Stats.OutputTokens <= c.Stats.OutputTokens || again.Stats.MessagesExchanged <= c.Stats.MessagesExchanged {
		t.Errorf("the counts do not increase: %+v, then %+v, %v", c.Stats, again.Stats, err)
	}
}

func TestBadPrompts(t *testing.T) {
	fx := newFixture(t)
	v := fx.openService()
	sendPrompt(t, v, newPrompt("say hello"))
	for name, test := range map[string]struct {
		change func(*agent.Prompt)
		want   atoll.Kind
		text   string
	}{
		"no prompt":         {func(p *agent.Prompt) { p.Text = " \n" }, atoll.ErrInvalid, "the prompt is missing"},
		"a huge prompt":     {func(p *agent.Prompt) { p.Text = strings.Repeat("x", 2<<20) }, atoll.ErrInvalid, "bytes"},
		"a long argument":   {func(p *agent.Prompt) { p.Text = strings.Repeat("x", 200<<10) }, atoll.ErrInvalid, "stdin"},
		"NUL":               {func(p *agent.Prompt) { p.Text = "a\x00b" }, atoll.ErrInvalid, "NUL"},
		"a bad id":          {func(p *agent.Prompt) { p.Conversation = "../c" }, atoll.ErrInvalid, "id"},
		"a bad sandbox":     {func(p *agent.Prompt) { p.Sandbox = "a/b" }, atoll.ErrInvalid, "invalid sandbox"},
		"a bad agent":       {func(p *agent.Prompt) { p.Conversation, p.Agent = "d", "a b" }, atoll.ErrInvalid, "agent_id"},
		"no such template":  {func(p *agent.Prompt) { p.Conversation, p.Template = "d", "none" }, atoll.ErrInvalid, "unsupported provider: none"},
		"another template":  {func(p *agent.Prompt) { p.Template = "shell" }, atoll.ErrConflict, "its provider is agent, not shell"},
		"another agent":     {func(p *agent.Prompt) { p.Agent = "b" }, atoll.ErrConflict, "its agent is"},
		"another sandbox":   {func(p *agent.Prompt) { p.Sandbox = "box" }, atoll.ErrConflict, "its sandbox is " + testSandbox},
		"another's sandbox": {func(p *agent.Prompt) { p.Conversation = "d" }, atoll.ErrConflict, "belongs to conversation c"},
	} {
		p := newPrompt("say hello")
		test.change(&p)
		_, err := v.Send(t.Context(), p)
		if atoll.KindOf(err) != test.want || !strings.Contains(err.Error(), test.text) {
			t.Errorf("%s: %v, want %s with %q", name, err, test.want, test.text)
		}
	}
	if _, err := v.Conversation(t.Context(), "d"); atoll.KindOf(err) != atoll.ErrNotExist {
		t.Errorf("a rejected prompt created a conversation: %v", err)
	}
}

func TestAccounts(t *testing.T) {
	fx := newFixture(t).withBucket()
	v := fx.openService()
	mine := auth.WithAccount(t.Context(), auth.Account{Name: "mine"})
	other := auth.WithAccount(t.Context(), auth.Account{Name: "other"})
	events, err := v.Send(mine, newPrompt("run echo secret > file"))
	if err != nil {
		t.Fatal(err)
	}
	readEvents(t, events)
	for what, do := range map[string]func(ctx context.Context) error{
		"Conversation":       func(ctx context.Context) error { _, err := v.Conversation(ctx, "c"); return err },
		"Messages":           func(ctx context.Context) error { _, err := v.Messages(ctx, "c", "", 0); return err },
		"Follow":             func(ctx context.Context) error { _, err := v.Follow(ctx, "c", ""); return err },
		"Cancel":             func(ctx context.Context) error { return v.Cancel(ctx, "c") },
		"DeleteConversation": func(ctx context.Context) error { return deleteConversation(ctx, v) },
		"Sandbox":            func(ctx context.Context) error { _, err := v.Sandbox(ctx, testSandbox); return err },
		"SyncSandbox":        func(ctx context.Context) error { _, err := v.SyncSandbox(ctx, testSandbox); return err },
		"RestoreSandbox":     func(ctx context.Context) error { _, err := v.RestoreSandbox(ctx, testSandbox, 0); return err },
		"Versions":           func(ctx context.Context) error { _, err := v.Versions(ctx, testSandbox); return err },
		"DeleteSandbox":      func(ctx context.Context) error { return deleteSandbox(ctx, v) },
		"Files": func(ctx context.Context) error {
			_, err := v.Files(ctx, testSandbox, agent.FileQuery{Page: 1, PerPage: 1})
			return err
		},
		"FileTree":    func(ctx context.Context) error { _, err := v.FileTree(ctx, testSandbox, "", ""); return err },
		"FileContent": func(ctx context.Context) error { _, _, err := v.FileContent(ctx, testSandbox, "", "file"); return err },
		"Send":        func(ctx context.Context) error { _, err := v.Send(ctx, newPrompt("run cat file")); return err },
	} {
		wantKind(t, what+" of another account's", do(other), atoll.ErrNotExist)
	}
	if all, err := v.Conversations(other, "", 0); err != nil || len(all) != 0 {
		t.Errorf("Conversations of another account: %v, %v", all, err)
	}
	if all, err := v.Sandboxes(other, "", 0); err != nil || len(all) != 0 {
		t.Errorf("Sandboxes of another account: %v, %v", all, err)
	}
	if all, err := v.Conversations(mine, "", 0); err != nil || len(all) != 1 {
		t.Errorf("Conversations: %v, %v", all, err)
	}
	// The other account's conversation has the same id.
	p := newPrompt("say other")
	p.Sandbox = "box"
	if events, err = v.Send(other, p); err != nil {
		t.Fatal(err)
	}
	readEvents(t, events)
	if all, err := v.Messages(other, "c", "", 0); err != nil || len(all) != 2 {
		t.Errorf("Messages: %v, %v", all, err)
	}
}

func TestOneTurnAtATime(t *testing.T) {
	fx := newFixture(t)
	v, w := fx.openService(), fx.openServiceWith(withServer(fx.serviceOptions(), "two"))
	events, err := v.Send(t.Context(), newPrompt("say begun\nsleep 1h"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = v.Send(t.Context(), newPrompt("say no"))
	wantKind(t, "a second turn", err, atoll.ErrConflict)
	_, err = w.Send(t.Context(), newPrompt("say no"))
	wantKind(t, "a second turn on another server", err, atoll.ErrConflict)
	if err == nil || !strings.Contains(err.Error(), "on server one") {
		t.Errorf("the error does not name the server: %v", err)
	}
	_, err = w.Follow(t.Context(), "c", "")
	wantKind(t, "Follow on another server", err, atoll.ErrUnavailable)
	wantKind(t, "Cancel on another server", w.Cancel(t.Context(), "c"), atoll.ErrUnavailable)
	wantKind(t, "DeleteSandbox meanwhile", deleteSandbox(t.Context(), v), atoll.ErrConflict)
	wantKind(t, "DeleteConversation meanwhile", deleteConversation(t.Context(), v), atoll.ErrConflict)
	_, err = v.SyncSandbox(t.Context(), testSandbox)
	wantKind(t, "SyncSandbox meanwhile", err, atoll.ErrConflict)
	waitForText(t, v, "begun")
	if err := v.Cancel(t.Context(), "c"); err != nil {
		t.Errorf("Cancel: %v", err)
	}
	got := readEvents(t, events)
	if last := got[len(got)-1]; last.FinishReason != "cancelled" {
		t.Errorf("the last event: %+v", last)
	}
	if text := messageLines(t, v); !strings.Contains(text, "assistant: begun") {
		t.Errorf("the messages before the cancellation are lost: %s", text)
	}
	wantKind(t, "Cancel without a turn", v.Cancel(t.Context(), "c"), atoll.ErrStopped)
	if text := textOf(sendPrompt(t, w, newPrompt("say hello"))); !strings.HasSuffix(text, "hello") {
		t.Errorf("the next turn said %q", text)
	}
}

// waitForText waits until the agent of the conversation "c" has said text.
func waitForText(t testing.TB, v *conversation.Service, text string) {
	t.Helper()
	events, err := v.Follow(t.Context(), "c", "")
	if err != nil {
		t.Fatal(err)
	}
	for e, err := range events {
		if err != nil {
			t.Fatal(err)
		}
		if eventOf(t, e).Delta == text {
			return
		}
	}
	t.Fatalf("the agent did not say %q", text)
}

// withServer returns o with another name of the server.
func withServer(o conversation.Options, name string) conversation.Options {
	o.Server = name
	return o
}

func TestConcurrentPrompts(t *testing.T) {
	fx := newFixture(t)
	v := fx.openService()
	const many = 20
	var won, refused int
	var mu sync.Mutex
	var all sync.WaitGroup
	for range many {
		all.Go(func() {
			_, err := v.Send(t.Context(), newPrompt("say hello\nsleep 1h"))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				won++
			case atoll.KindOf(err) == atoll.ErrConflict:
				refused++
			default:
				t.Errorf("Send: %v", err)
			}
		})
	}
	all.Wait()
	if won != 1 || refused != many-1 {
		t.Errorf("%d turns began, and %d were refused", won, refused)
	}
	if err := v.Cancel(t.Context(), "c"); err != nil {
		t.Errorf("Cancel: %v", err)
	}
	waitForTurn(t, v)
	sandboxes, err := fx.provider.List(t.Context(), atoll.Filter{})
	if err != nil || len(sandboxes) != 1 {
		t.Errorf("there are %d sandboxes, %v", len(sandboxes), err)
	}
}

// waitForTurn waits until no turn of the conversation "c" runs.
func waitForTurn(t testing.TB, v *conversation.Service) {
	t.Helper()
	for end := time.Now().Add(testenv.Scale(30 * time.Second)); ; time.Sleep(10 * time.Millisecond) {
		c, err := v.Conversation(t.Context(), "c")
		if err != nil || c.Turn == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the turn does not end")
		}
	}
}

// If the client disconnects, the agent continues, and its messages and files are saved.
func TestClientLeaves(t *testing.T) {
	fx := newFixture(t).withBucket()
	v := fx.openService()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events, err := v.Send(ctx, newPrompt("say one\nsleep 300ms\nsay two\nrun echo data > file"))
	if err != nil {
		t.Fatal(err)
	}
	var last string
	for e, err := range events {
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("the stream of the disconnected client: %v", err)
			}
			break
		}
		if ev := eventOf(t, e); ev.Delta == "one" {
			last = ev.ID
			cancel()
		}
	}
	again, err := v.Follow(t.Context(), "c", last)
	if err != nil {
		t.Fatal(err)
	}
	rest := readEvents(t, again)
	if text := textOf(rest); text != "two" {
		t.Errorf("after %s came %q", last, text)
	}
	if rest[len(rest)-1].Type != "finish" {
		t.Errorf("the last event: %+v", rest[len(rest)-1])
	}
	if text := messageLines(t, v); !strings.Contains(text, "two") {
		t.Errorf("messages: %s", text)
	}
	if x, err := v.Sandbox(t.Context(), testSandbox); err != nil || x.Meta.LastSync == 0 {
		t.Errorf("the files were not pushed: %+v, %v", x.Meta, err)
	}
	// The stream can be read again. After its last event there is none: a client that reconnects learns that it has all.
	if again, err = v.Follow(t.Context(), "c", ""); err != nil {
		t.Fatal(err)
	}
	whole := readEvents(t, again)
	if again, err = v.Follow(t.Context(), "c", whole[len(whole)-1].ID); err != nil || again != nil {
		t.Errorf("after the last event: a stream %t, %v", again != nil, err)
	}
	for id, want := range map[string]atoll.Kind{"nonsense": atoll.ErrInvalid, "abc:1": atoll.ErrNotExist, whole[0].TurnID + ":x": atoll.ErrInvalid} {
		_, err := v.Follow(t.Context(), "c", id)
		wantKind(t, "Follow after "+id, err, want)
	}
}

func TestAgentFails(t *testing.T) {
	fx := newFixture(t).withBucket()
	finished := 0
	fx.hooks.OnStreamFinish = hooks.Then(fx.hooks.OnStreamFinish, func(context.Context, *hooks.HookData) error { finished++; return nil })
	v := fx.openService()
	for i, prompt := range []string{"say a\nfail no credit", "say b\ncrash", "say c\nraw not JSON at all\nfail x"} {
		got := sendPrompt(t, v, newPrompt(prompt))
		last := got[len(got)-1]
		if last.Type != "finish" || last.FinishReason != "error" || !strings.Contains(typesOf(got), "error") {
			t.Errorf("%q: %s, %+v", prompt, typesOf(got), last)
		}
		if finished != i+1 {
			t.Errorf("%q: OnStreamFinish ran %d times, want %d", prompt, finished, i+1)
		}
	}
	if text := messageLines(t, v); !strings.Contains(text, "assistant: a") || !strings.Contains(text, "not JSON at all") {
		t.Errorf("messages: %s", text)
	}
}

// The error of an agent that fails has the end of its stderr, as text without secrets.
func TestStderr(t *testing.T) {
	v := newFixture(t).openService()
	for prompt, want := range map[string]string{
		"warn \x1b[31mno route\nwarn API_KEY=very-secret-value\nfail no credit": "API Error: no credit\nstderr: no route\nAPI_KEY=•••",
		"warn before\ncrash":          "exited with code 70: before\npanic: the prompt says so",
		"warn all is well\nsay hello": "",
	} {
		got := ""
		for _, e := range sendPrompt(t, v, newPrompt(prompt)) {
			got += e.Error
		}
		if got != want {
			t.Errorf("%q: the error is %q, want %q", prompt, got, want)
		}
	}
}

// A turn that changes a file without another size or time pushes the new content.
func TestTurnPushesSameTime(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows tells only the time that programs can set")
	}
	v := newFixture(t).withBucket().openService()
	for _, text := range []string{"aaaa", "bbbb"} {
		sendPrompt(t, v, newPrompt("run echo "+text+" > file; touch -d 2026-01-01T00:00:00 file"))
		body, _, err := v.FileContent(t.Context(), testSandbox, agent.SourceS3, "file")
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(body)
		body.Close()
		if string(got) != text+"\n" || err != nil {
			t.Errorf("the version has %q, %v; want %s", got, err, text)
		}
	}
}
