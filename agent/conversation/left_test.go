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

// Templates may have one place for several conversations, and for several accounts: what
// was said in one of them is in no other one, and is not deleted with it.
func TestSharedPlace(t *testing.T) {
	l := newLab(t).withBucket()
	err := l.templates.Register("shared", func(string) (*template.Template, error) {
		return &template.Template{InitFromS3: true, Agent: l.agent, Hooks: l.hooks, KeyPrefix: "shared"}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	v := l.open()
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
		read(t, events)
		all, err := v.Messages(who.ctx, who.conversation, "", 0)
		if err != nil || len(all) != 2 {
			t.Errorf("conversation %s in %s has %d messages, %v", who.conversation, who.box, len(all), err)
		}
	}
	if err := v.DeleteConversation(mine, "d", true); err != nil {
		t.Fatal(err)
	}
	v.Close()
	there := newLab(t)
	there.bucket, there.templates = l.bucket, l.templates
	there.agent = l.agent
	w := there.open()
	events, err := w.Send(mine, agent.Prompt{Conversation: "c", Sandbox: "box1", Template: "shared", Text: "say again"})
	if err != nil {
		t.Fatal(err)
	}
	read(t, events)
	all, err := w.Messages(mine, "c", "", 0)
	if err != nil || len(all) < 3 || all[0].Body != "say box1" || all[1].Body != "box1" || all[2].Body != "say again" {
		t.Errorf("on another machine there are %d messages, %v", len(all), err)
	}
}

// What the agent left running holds its output open; the turn ends with the agent.
func TestAgentLeavesProcess(t *testing.T) {
	l := newLab(t)
	v := l.open()
	events, err := v.Send(t.Context(), agent.Prompt{Conversation: "c", Sandbox: sid, Template: "shell", Text: "sleep 600 & echo begun"})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan []event, 1)
	go func() { done <- read(t, events) }()
	select {
	case got := <-done:
		if last := got[len(got)-1]; last.FinishReason != "stop" || !strings.Contains(messages(t, v), "begun") {
			t.Errorf("the last event: %+v", last)
		}
	case <-time.After(testenv.Scale(20 * time.Second)):
		t.Error("the turn does not end")
		if err := v.Cancel(t.Context(), "c"); err != nil {
			t.Error(err)
		}
	}
}

// Messages are read in pieces: no answer takes more memory than it should.
func TestManyMessages(t *testing.T) {
	l := newLab(t)
	v := l.open()
	send(t, v, ask("say hello"))
	add := func(n, size int) {
		t.Helper()
		for i := range n {
			m := &agent.Message{Key: atoll.NewID(), Account: "default", Conversation: "c", Role: agent.RoleTool, Body: fmt.Sprint(i) + strings.Repeat(".", size), Time: time.Now()}
			if err := l.store.AddMessage(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}
	}
	add(100, 0)
	for limit, want := range map[int]int{1: 1, 16: 16, 17: 17, 90: 90, 0: 100, 1000: 102} {
		all, err := v.Messages(t.Context(), "c", "", limit)
		if err != nil || len(all) != want {
			t.Fatalf("of limit %d there are %d messages, %v, want %d", limit, len(all), err, want)
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
			t.Error("one answer has all messages, which are 80 MiB")
		}
		n, before = n+len(some), some[0].Key
	}
	if n != 122 {
		t.Errorf("there are %d messages in all, want 122", n)
	}
}

// A turn with much to say has several chapters, of which none is missing elsewhere.
func TestLongHistory(t *testing.T) {
	l := newLab(t).withBucket()
	v := l.open()
	send(t, v, ask("say begin"+strings.Repeat("\nrun head -c 6000000 /dev/zero | tr '\\0' x", 4)+"\nsay end"))
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
	chapters, err := filepath.Glob(filepath.Join(l.bucket, "docs/default/c/history/default/c/*"))
	if err != nil || len(chapters) < 2 || bytes < 16<<20 {
		t.Fatalf("%d bytes are in %v, %v", bytes, chapters, err)
	}
	v.Close()
	there := newLab(t)
	there.bucket = l.bucket
	w := there.open()
	send(t, w, ask("say more"))
	now, err := w.Conversation(t.Context(), "c")
	if err != nil || now.Stats.OutputTokens < was.Stats.OutputTokens {
		t.Errorf("the tokens: %+v, were %+v, %v", now.Stats, was.Stats, err)
	}
	again, most := count(w)
	if again < n+1 || most < bytes {
		t.Errorf("there are %d messages of %d bytes, there were %d of %d", again, most, n, bytes)
	}
	if err := w.DeleteConversation(t.Context(), "c", false); err != nil {
		t.Fatal(err)
	}
	if chapters, err = filepath.Glob(filepath.Join(l.bucket, "docs/default/c/history/default/c/*.json")); err != nil || len(chapters) > 0 {
		t.Errorf("after its end there is %v, %v", chapters, err)
	}
}

// A sandbox that was there before is taken by the account that its label names, and one
// without by the default account: two accounts never have one sandbox.
func TestAdoptOfAccount(t *testing.T) {
	l := newLab(t)
	v := l.open()
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
		sb, err := l.provider.Create(t.Context(), &atoll.Spec{Labels: test.labels})
		if err != nil {
			t.Fatal(err)
		}
		ctx := auth.WithAccount(t.Context(), auth.Account{Name: test.taker})
		p := ask("say hello")
		p.Conversation, p.Sandbox = "c"+sb.ID(), sb.ID()
		events, err := v.Send(ctx, p)
		wantKind(t, name, err, test.want)
		if err == nil {
			read(t, events)
			continue
		}
		_, err = v.Sandbox(ctx, sb.ID())
		wantKind(t, name+": its record", err, atoll.ErrNotExist)
	}
}

// Who finishes a turn whose agent is gone has its files pushed, and its prompt be in the
// history: what was done until then is not lost with the machine.
func TestTakenOverWithoutAgent(t *testing.T) {
	l := newLab(t).withBucket()
	var finished atomic.Int64
	l.hooks.OnStreamFinish = hooks.Then(l.hooks.OnStreamFinish, func(context.Context, *hooks.HookData) error {
		finished.Add(1)
		return nil
	})
	v, kill := l.killed(l.options())
	send(t, v, ask("say hello"))
	if _, err := v.Send(t.Context(), ask("run echo data > file\nsay one\nsleep 1h")); err != nil {
		t.Fatal(err)
	}
	hear(t, v, "one")
	kill()
	l.sandbox(func(sb atoll.Sandbox) error { // as after a loss of power
		if err := sb.Stop(t.Context(), 0); err != nil {
			return err
		}
		return sb.Start(t.Context())
	})
	before := finished.Load()
	w := l.open()
	settle(t, w)
	if n := finished.Load() - before; n != 1 {
		t.Errorf("OnStreamFinish ran %d times", n)
	}
	if all, err := w.Versions(t.Context(), sid); err != nil || len(all) != 2 {
		t.Errorf("Versions: %v, %v", all, err)
	}
	w.Close()
	there := newLab(t)
	there.bucket = l.bucket
	x := there.open()
	send(t, x, ask("say hello"))
	if text, file := messages(t, x), there.readFile("file"); !strings.Contains(text, "user: run echo data") || file != "data\n" {
		t.Errorf("on another machine the file is %q, and the messages: %s", file, text)
	}
}

// The events of a turn that is taken over are those that its client asked for.
func TestTakenOverRaw(t *testing.T) {
	l := newLab(t)
	v, kill := l.killed(l.options())
	p := ask("say one\nsleep 1s\nsay two")
	p.Raw = true
	if _, err := v.Send(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	kill()
	w := l.open()
	var text string
	for end := time.Now().Add(testenv.Scale(10 * time.Second)); text == ""; time.Sleep(10 * time.Millisecond) {
		events, err := w.Follow(t.Context(), "c", "")
		if atoll.KindOf(err) == atoll.ErrUnavailable && time.Now().Before(end) { // not yet taken over
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

// What was made from a template that is not there any more can be deleted, and its data,
// which could not be pushed, is kept.
func TestDeleteWithoutTemplate(t *testing.T) {
	l := newLab(t).withBucket()
	v := l.open()
	send(t, v, ask("run echo data > file"))
	v.Close()
	l.templates = template.NewSet()
	w := l.open()
	err := w.DeleteConversation(t.Context(), "c", true)
	if err == nil || !strings.Contains(err.Error(), "unsupported provider: agent") || !strings.Contains(err.Error(), "volume is kept") {
		t.Errorf("DeleteConversation: %v", err)
	}
	_, err = w.Conversation(t.Context(), "c")
	wantKind(t, "Conversation", err, atoll.ErrNotExist)
	l.none()
	if _, err := l.provider.Create(t.Context(), &atoll.Spec{ID: sid}); err != nil {
		t.Fatal(err)
	}
	if text := l.readFile("file"); text != "data\n" {
		t.Errorf("its volume has %q", text)
	}
}
