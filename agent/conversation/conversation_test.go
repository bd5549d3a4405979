package conversation_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/agent/conversation"
	"github.com/seed46cd37a8/atoll/agent/hooks"
	"github.com/seed46cd37a8/atoll/agent/template"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// Conversations and accounts may share a place. Each has only its own history, and its deletion
// removes no other.
func TestSharedPlace(t *testing.T) {
	fx := newFixture(t).withBucket()
	err := fx.templates.Register("shared", func(string) (*template.Template, error) {
		return &template.Template{InitFromS3: true, Agent: fx.agent, Hooks: fx.hooks, KeyPrefix: "shared"}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	v := fx.openService()
	mine := auth.WithAccount(t.Context(), auth.Account{Name: "mine"})
	other := auth.WithAccount(t.Context(), auth.Account{Name: "other"})
	for _, who := range []struct {
		ctx               context.Context
		conversation, box string
	}{{mine, "c", "box1"}, {mine, "d", "box2"}, {other, "c", "box3"}} {
		events, err := v.Send(who.ctx, agent.Prompt{Conversation: who.conversation, Sandbox: who.box, Template: "shared", Text: "say " + who.box})
		if err != nil {
			t.Fatal(err)
		}
		readEvents(t, events)
		all, err := v.Messages(who.ctx, who.conversation, "", 0)
		if err != nil || len(all) != 2 {
			t.Errorf("conversation %s with %s has %d messages, %v", who.conversation, who.box, len(all), err)
		}
	}
	if _, err := v.DeleteConversation(mine, "d", agent.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	v.Close()
	there := newFixture(t)
	there.bucket, there.templates = fx.bucket, fx.templates
	there.agent = fx.agent
	w := there.openService()
	events, err := w.Send(mine, agent.Prompt{Conversation: "c", Sandbox: "box1", Template: "shared", Text: "say again"})
	if err != nil {
		t.Fatal(err)
	}
	readEvents(t, events)
	all, err := w.Messages(mine, "c", "", 0)
	if err != nil || len(all) < 3 || all[0].Body != "say box1" || all[1].Body != "box1" || all[2].Body != "say again" {
		t.Errorf("another machine has %d messages, %v", len(all), err)
	}
}

// A turn ends with its agent, even if a process that the agent left running holds its output
// open.
func TestAgentLeavesProcess(t *testing.T) {
	fx := newFixture(t)
	v := fx.openService()
	events, err := v.Send(t.Context(), agent.Prompt{Conversation: "c", Sandbox: testSandbox, Template: "shell", Text: "sleep 600 & echo begun"})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan []event, 1)
	go func() { done <- readEvents(t, events) }()
	select {
	case got := <-done:
		if last := got[len(got)-1]; last.FinishReason != "stop" || !strings.Contains(messageLines(t, v), "begun") {
			t.Errorf("the last event: %+v", last)
		}
	case <-time.After(testenv.Scale(20 * time.Second)):
		t.Error("the turn does not end")
		if err := v.Cancel(t.Context(), "c"); err != nil {
			t.Error(err)
		}
	}
}

// Messages are read in pieces, which bounds the memory of an answer.
func TestManyMessages(t *testing.T) {
	fx := newFixture(t)
	v := fx.openService()
	sendPrompt(t, v, newPrompt("say hello"))
	add := func(n, size int) {
		t.Helper()
		for i := range n {
			m := &agent.Message{Key: atoll.NewID(), Account: "default", Conversation: "c", Role: agent.RoleTool, Body: fmt.Sprint(i) + strings.Repeat(".", size), Time: time.Now()}
			if err := fx.store.AddMessage(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}
	}
	add(100, 0)
	for limit, want := range map[int]int{1: 1, 16: 16, 17: 17, 90: 90, 0: 100, 1000: 102} {
		all, err := v.Messages(t.Context(), "c", "", limit)
		if err != nil || len(all) != want {
			t.Fatalf("limit %d: %d messages, %v, want %d", limit, len(all), err, want)
		}
		if last := all[len(all)-1]; last.Body != "99" {
			t.Errorf("the newest message is %q", last.Body)
		}
		for i := 1; i < len(all); i++ {
			if !all[i].Time.After(all[i-1].Time) {
				t.Fatalf("message %d is not after the one before it", i)
			}
		}
	}
	add(20, 4<<20)
	n, before := 0, ""
	for {
		some, err := v.Messages(t.Context(), "c", before, 1000)
		if err != nil {
			t.Fatal(err)
		}
		if len(some) == 0 {
			break
		}
		if len(some) == 122 {
			t.Error("one answer has all 80 MiB of messages")
		}
		n, before = n+len(some), some[0].Key
	}
	if n != 122 {
		t.Errorf("there are %d messages in all, want 122", n)
	}
}

// A turn with long messages has several history files, and another machine restores all of them.
func TestLongHistory(t *testing.T) {
	fx := newFixture(t).withBucket()
	v := fx.openService()
	sendPrompt(t, v, newPrompt("say begin"+strings.Repeat("\nrun head -c 6000000 /dev/zero | tr '\\0' x", 4)+"\nsay end"))
	count := func(v *conversation.Service) (n, bytes int) {
		t.Helper()
		before := ""
		for {
			some, err := v.Messages(t.Context(), "c", before, 0)
			if err != nil {
				t.Fatal(err)
			}
			if len(some) == 0 {
				return n, bytes
			}
			for _, m := range some {
				bytes += len(m.Body)
				for _, c := range m.ToolCalls {
					bytes += len(c.Output)
				}
			}
			n, before = n+len(some), some[0].Key
		}
	}
	n, bytes := count(v)
	was, err := v.Conversation(t.Context(), "c")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(fx.bucket, "docs/default/c/history/default/c/*"))
	if err != nil || len(files) < 2 || bytes < 16<<20 {
		t.Fatalf("%d bytes are in %v, %v", bytes, files, err)
	}
	v.Close()
	there := newFixture(t)
	there.bucket = fx.bucket
	w := there.openService()
	sendPrompt(t, w, newPrompt("say more"))
	now, err := w.Conversation(t.Context(), "c")
	if err != nil || now.Stats.OutputTokens < was.Stats.OutputTokens {
		t.Errorf("the tokens: %+v, were %+v, %v", now.Stats, was.Stats, err)
	}
	again, most := count(w)
	if again < n+1 || most < bytes {
		t.Errorf("there are %d messages of %d bytes, there were %d of %d", again, most, n, bytes)
	}
	if _, err := w.DeleteConversation(t.Context(), "c", agent.DeleteOptions{Sandbox: agent.SandboxKeep}); err != nil {
		t.Fatal(err)
	}
	if files, err = filepath.Glob(filepath.Join(fx.bucket, "docs/default/c/history/default/c/*.json")); err != nil || len(files) > 0 {
		t.Errorf("the deletion left %v, %v", files, err)
	}
}

// A sandbox without a record belongs to the account in its label, or to the default account. Two
// accounts never have the same sandbox.
func TestAdoptByAccount(t *testing.T) {
	fx := newFixture(t)
	v := fx.openService()
	for name, test := range map[string]struct {
		labels map[string]string
		taker  string
		want   atoll.Kind
	}{
		"labelled":     {map[string]string{"account": "mine"}, "mine", ""},
		"another's":    {map[string]string{"account": "mine"}, "other", atoll.ErrNotExist},
		"nobody's":     {nil, "mine", atoll.ErrNotExist},
		"the default":  {nil, auth.DefaultAccount, ""},
		"default's":    {map[string]string{"account": auth.DefaultAccount}, "mine", atoll.ErrNotExist},
		"no default's": {map[string]string{"account": "mine"}, auth.DefaultAccount, atoll.ErrNotExist},
	} {
		sb, err := fx.provider.Create(t.Context(), &atoll.Spec{Labels: test.labels})
		if err != nil {
			t.Fatal(err)
		}
		ctx := auth.WithAccount(t.Context(), auth.Account{Name: test.taker})
		p := newPrompt("say hello")
		p.Conversation, p.Sandbox = "c"+sb.ID(), sb.ID()
		events, err := v.Send(ctx, p)
		wantKind(t, name, err, test.want)
		if err == nil {
			readEvents(t, events)
			continue
		}
		_, err = v.Sandbox(ctx, sb.ID())
		wantKind(t, name+": its record", err, atoll.ErrNotExist)
	}
}

// A turn that is taken over after its agent has died still pushes its files, and its prompt is
// in the history.
func TestTakeOverWithoutAgent(t *testing.T) {
	fx := newFixture(t).withBucket()
	var finished atomic.Int64
	fx.hooks.OnStreamFinish = hooks.Then(fx.hooks.OnStreamFinish, func(context.Context, *hooks.HookData) error {
		finished.Add(1)
		return nil
	})
	v, kill := fx.openKillable(fx.serviceOptions())
	sendPrompt(t, v, newPrompt("say hello"))
	if _, err := v.Send(t.Context(), newPrompt("run echo data > file\nsay one\nsleep 1h")); err != nil {
		t.Fatal(err)
	}
	waitForText(t, v, "one")
	kill()
	fx.withSandbox(func(sb atoll.Sandbox) error { // as after a power failure
		if err := sb.Stop(t.Context(), 0); err != nil {
			return err
		}
		return sb.Start(t.Context())
	})
	before := finished.Load()
	w := fx.openService()
	waitForTurn(t, w)
	if n := finished.Load() - before; n != 1 {
		t.Errorf("OnStreamFinish ran %d times", n)
	}
	if all, err := w.Versions(t.Context(), testSandbox); err != nil || len(all) != 2 {
		t.Errorf("Versions: %v, %v", all, err)
	}
	w.Close()
	there := newFixture(t)
	there.bucket = fx.bucket
	x := there.openService()
	sendPrompt(t, x, newPrompt("say hello"))
	if text, file := messageLines(t, x), there.readFile("file"); !strings.Contains(text, "user: run echo data") || file != "data\n" {
		t.Errorf("another machine has the file %q and the messages %s", file, text)
	}
}

// A turn that is taken over still streams raw lines if its client asked for them.
func TestTakeOverRaw(t *testing.T) {
	fx := newFixture(t)
	v, kill := fx.openKillable(fx.serviceOptions())
	p := newPrompt("say one\nrun " + untilGo + "\nsay two")
	p.Raw = true
	if _, err := v.Send(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	kill()
	w := fx.openService()
	letGo(t, fx.provider)
	var text string
	for end := time.Now().Add(testenv.Scale(10 * time.Second)); text == ""; time.Sleep(10 * time.Millisecond) {
		events, err := w.Follow(t.Context(), "c", "")
		if atoll.KindOf(err) == atoll.ErrUnavailable && time.Now().Before(end) { // the turn is not yet taken over
			continue
		}
		if err != nil || events == nil {
			t.Fatalf("Follow: %v", err)
		}
		for e, err := range events {
			if err != nil {
				t.Fatal(err)
			}
			text += string(e.Data) + "\n"
		}
	}
	if strings.Contains(text, "stream-start") || !strings.Contains(text, `"type":"result"`) {
		t.Errorf("the stream: %s", text)
	}
}

// A sandbox whose template no longer exists can be deleted. Its volume is retained, since
// nothing was pushed.
func TestDeleteWithoutTemplate(t *testing.T) {
	fx := newFixture(t).withBucket()
	v := fx.openService()
	sendPrompt(t, v, newPrompt("run echo data > file"))
	v.Close()
	fx.templates = template.NewSet()
	w := fx.openService()
	done, err := w.DeleteConversation(t.Context(), "c", agent.DeleteOptions{})
	text := strings.Join(done.Warnings, "\n")
	if err != nil || !strings.Contains(text, "unsupported provider: agent") || !strings.Contains(text, "volume is kept") || !strings.Contains(text, "history") {
		t.Errorf("DeleteConversation: %+v, %v", done, err)
	}
	_, err = w.Conversation(t.Context(), "c")
	wantKind(t, "Conversation", err, atoll.ErrNotExist)
	fx.wantNoSandboxes()
	if _, err := fx.provider.Create(t.Context(), &atoll.Spec{ID: testSandbox}); err != nil {
		t.Fatal(err)
	}
	if text := fx.readFile("file"); text != "data\n" {
		t.Errorf("the volume has %q", text)
	}
}
