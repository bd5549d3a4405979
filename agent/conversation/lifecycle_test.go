package conversation_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/agent/hooks"
	"github.com/seed46cd37a8/atoll/agent/template"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// The next prompt works after the loss of the sandbox, of its volume, or of the machine with the
// store.
func TestRecoverAfterLoss(t *testing.T) {
	for name, lose := range map[string]func(fx *fixture) *fixture{
		"stopped": func(fx *fixture) *fixture {
			fx.withSandbox(func(sb atoll.Sandbox) error { return sb.Stop(fx.t.Context(), 0) })
			return fx
		},
		"removed": func(fx *fixture) *fixture {
			fx.withSandbox(func(sb atoll.Sandbox) error { return sb.Remove(fx.t.Context()) })
			return fx
		},
		"removed with its volume": func(fx *fixture) *fixture {
			fx.withSandbox(func(sb atoll.Sandbox) error { return sb.Remove(fx.t.Context(), atoll.RemoveVolumes()) })
			return fx
		},
		"another machine": func(fx *fixture) *fixture {
			there := newFixture(fx.t)
			there.bucket = fx.bucket
			there.agent.ContinueIf = "" // the agent finds its memory by the directory, which differs there
			there.agent.Env = append(there.agent.Env, "TESTAGENT_CONTINUE=new")
			return there
		},
	} {
		t.Run(name, func(t *testing.T) {
			fx := newFixture(t).withBucket()
			v := fx.openService()
			sendPrompt(t, v, newPrompt("say one\nrun mkdir -p d && echo data > 'd/a file' && ln -s 'd/a file' link && chmod 751 d"))
			before := messageLines(t, v)
			was, err := v.Conversation(t.Context(), "c")
			if err != nil {
				t.Fatal(err)
			}
			v.Close()

			fx = lose(fx)
			v = fx.openService()
			text := textOf(sendPrompt(t, v, newPrompt("run cat link; stat -c %a d")))
			if name != "another machine" && !strings.HasPrefix(text, "I remember 1 prompts.") {
				t.Errorf("the agent does not remember: %q", text)
			}
			after := messageLines(t, v)
			if !strings.HasPrefix(after, before) {
				t.Errorf("the messages are\n%s\nwant those from before first:\n%s", after, before)
			}
			if !strings.Contains(after, "completed data\n751") {
				t.Errorf("the files were not restored:\n%s", after)
			}
			c, err := v.Conversation(t.Context(), "c")
			if err != nil || c.Stats.OutputTokens <= was.Stats.OutputTokens || c.Stats.MessagesExchanged <= was.Stats.MessagesExchanged {
				t.Errorf("the counts: %+v, were %+v, %v", c.Stats, was.Stats, err)
			}
		})
	}
}

// withSandbox calls do with the sandbox.
func (fx *fixture) withSandbox(do func(sb atoll.Sandbox) error) {
	fx.t.Helper()
	sb, err := fx.provider.Get(fx.t.Context(), testSandbox)
	if err == nil {
		err = do(sb)
	}
	if err != nil {
		fx.t.Fatal(err)
	}
}

// A failed creation leaves nothing: no sandbox, no record, no conversation.
func TestColdStartFails(t *testing.T) {
	fx := newFixture(t).withBucket()
	failing := errors.New("no luck")
	fx.hooks.OnColdStart = func(context.Context, *hooks.HookData) error { return failing }
	v := fx.openService()
	nothing := func(what string) {
		t.Helper()
		fx.wantNoSandboxes()
		if _, err := v.Conversation(t.Context(), "c"); atoll.KindOf(err) != atoll.ErrNotExist {
			t.Errorf("%s: the conversation: %v", what, err)
		}
		if _, err := v.Sandbox(t.Context(), testSandbox); atoll.KindOf(err) != atoll.ErrNotExist {
			t.Errorf("%s: the sandbox: %v", what, err)
		}
		if volumes, err := atoll.Volumes(t.Context(), fx.provider, ""); err != nil || len(volumes) > 0 {
			t.Errorf("%s: volumes: %v, %v", what, volumes, err)
		}
	}
	if _, err := v.Send(t.Context(), newPrompt("say hello")); !errors.Is(err, failing) {
		t.Errorf("Send: %v", err)
	}
	nothing("a hook that fails")
	if _, err := v.CreateSandbox(t.Context(), agent.Sandbox{ID: testSandbox, Template: "agent"}); !errors.Is(err, failing) {
		t.Errorf("CreateSandbox: %v", err)
	}
	nothing("CreateSandbox")
	fx.hooks.OnColdStart = func(context.Context, *hooks.HookData) error { panic("oh") }
	_, err := v.Send(t.Context(), newPrompt("say hello"))
	wantKind(t, "Send with a hook that panics", err, atoll.ErrInternal)
	nothing("a hook that panics")
	fx.hooks.OnColdStart = hooks.DefaultOnColdStart
	fx.agent.Setup = [][]string{{"sh", "-c", "echo it is broken >&2; exit 3"}}
	if _, err = v.Send(t.Context(), newPrompt("say hello")); err == nil || !strings.Contains(err.Error(), "it is broken") {
		t.Errorf("Send with a setup that fails: %v", err)
	}
	nothing("a setup that fails")
	fx.agent.Setup = nil
	fx.agent.Secrets = map[string]template.Secret{"KEY": secretOf(t, "env:ATOLL_TEST_NO_SUCH_KEY")}
	_, err = v.Send(t.Context(), newPrompt("say hello"))
	wantKind(t, "Send without the agent's key", err, atoll.ErrUnavailable)
	nothing("an agent without its key")
	fx.agent.Secrets = nil
	if text := textOf(sendPrompt(t, v, newPrompt("say hello"))); text != "hello" {
		t.Errorf("the next turn said %q", text)
	}
}

func secretOf(t testing.TB, ref string) template.Secret {
	t.Helper()
	s, err := template.NewSecret(ref, false)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Hooks that fail after the start do not disturb the stream.
func TestHooksFail(t *testing.T) {
	fx := newFixture(t).withBucket()
	boom := func(context.Context, *hooks.HookData) error { panic("boom") }
	fx.hooks.OnMessage, fx.hooks.OnStreamFinish = boom, boom
	v := fx.openService()
	got := sendPrompt(t, v, newPrompt("say hello"))
	if textOf(got) != "hello" || got[len(got)-1].FinishReason != "stop" {
		t.Errorf("events: %+v", got)
	}
	terminated := 0
	fx.hooks.OnTerminate = func(context.Context, *hooks.HookData) error { terminated++; return errors.New("not so fast") }
	done, err := v.DeleteSandbox(t.Context(), testSandbox, agent.DeleteOptions{})
	if err != nil || done.Outcome != agent.SandboxRemoved || done.Version == 0 || len(done.Warnings) != 1 || !strings.Contains(done.Warnings[0], "not so fast") {
		t.Errorf("DeleteSandbox: %+v, %v", done, err)
	}
	fx.wantNoSandboxes()
	if x, err := v.Sandbox(t.Context(), testSandbox); terminated != 1 || err != nil || x.Deleted.IsZero() || x.State != atoll.StateRemoved {
		t.Errorf("after it: %d, %+v, %v", terminated, x, err)
	}
	if all, err := v.Sandboxes(t.Context(), "", 0); err != nil || len(all) != 0 {
		t.Errorf("Sandboxes: %v, %v", all, err)
	}
}

// If the program is killed at any step, the next one finishes the turn, and no message or token
// is saved twice.
func TestProgramKilled(t *testing.T) {
	lease := max(3*time.Second, testenv.Scale(2*time.Second))
	for _, step := range []string{"creating", "created", "cold start", "starting", "started", "listening", "finishing", "finished"} {
		for _, name := range []string{"one", "two"} {
			if name == "two" && step != "created" && step != "listening" {
				continue // another server waits until the lease expires
			}
			t.Run(strings.ReplaceAll(step, " ", "_")+"/server_"+name, func(t *testing.T) {
				fx := newFixture(t).withBucket()
				g := newGate(step)
				v, kill := fx.openKillable(fx.serviceOptions().WithStep(g.step).WithLease(lease))
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				go func() { _, _ = v.Send(ctx, newPrompt("say one\nsleep 200ms\nrun echo data > file\nsay two")) }()
				if step == "listening" {
					for end := time.Now().Add(testenv.Scale(30 * time.Second)); !strings.Contains(strings.Join(processCommands(fx), " "), "claude"); time.Sleep(5 * time.Millisecond) {
						if time.Now().After(end) {
							t.Fatal("the agent does not run")
						}
					}
				} else {
					select {
					case <-g.reached:
					case <-time.After(testenv.Scale(30 * time.Second)):
						t.Fatalf("the turn does not reach %q", step)
					}
				}
				leave()
				done := make(chan struct{})
				go func() { defer close(done); kill() }()
				time.Sleep(20 * time.Millisecond)
				close(g.open)
				<-done

				w := fx.openServiceWith(withServer(fx.serviceOptions(), name).WithLease(lease))
				waitForTakeover(t, w)
				if _, err := w.Conversation(t.Context(), "c"); atoll.KindOf(err) == atoll.ErrNotExist {
					t.Log(typesOf(sendPrompt(t, w, newPrompt("say one\nsleep 200ms\nrun echo data > file\nsay two"))))
				} else if text := messageLines(t, w); !strings.Contains(text, "assistant: two") {
					// The agent was not started, or its start was not recorded.
					sendPrompt(t, w, newPrompt("say one\nrun echo data > file\nsay two"))
				}
				text := messageLines(t, w)
				if !strings.Contains(text, "assistant: two") {
					t.Errorf("the agent did not finish: %s", text)
				}
				if got := fx.readFile("file"); got != "data\n" {
					t.Errorf("the file: %q", got)
				}
				c, err := w.Conversation(t.Context(), "c")
				if err != nil {
					t.Fatal(err)
				}
				if n := strings.Count(text, "\n") + 1; int(c.Stats.MessagesExchanged) < n/2 {
					t.Errorf("%d messages are counted, want at least half of %d lines", c.Stats.MessagesExchanged, n)
				}
				x, err := w.Sandbox(t.Context(), testSandbox)
				if err != nil || x.Meta.LastSync == 0 {
					t.Errorf("the files were not pushed: %+v, %v", x.Meta, err)
				}
			})
		}
	}
}

// processCommands returns the commands of all processes in the sandbox, if there is one.
func processCommands(fx *fixture) (all []string) {
	sb, err := fx.provider.Get(context.Background(), testSandbox)
	if err != nil {
		return nil
	}
	list, err := atoll.Processes(context.Background(), sb)
	if err != nil {
		return nil
	}
	for _, p := range list {
		all = append(all, strings.Join(p.Args, " "))
	}
	return all
}

// waitForTakeover waits until another program has finished the turn of the conversation "c".
func waitForTakeover(t testing.TB, v interface {
	Conversation(ctx context.Context, id string) (agent.Conversation, error)
}) {
	t.Helper()
	for end := time.Now().Add(testenv.Scale(30 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
		c, err := v.Conversation(t.Context(), "c")
		if atoll.KindOf(err) == atoll.ErrNotExist || err == nil && c.Turn == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the turn was not finished: %+v, %v", c.Turn, err)
		}
	}
}

// A conversation can begin with an existing sandbox.
func TestAdopt(t *testing.T) {
	fx := newFixture(t).withBucket()
	sb, err := fx.provider.Create(t.Context(), &atoll.Spec{ID: testSandbox})
	if err != nil {
		t.Fatal(err)
	}
	if err := atoll.WriteFile(t.Context(), sb, "mine", []byte("kept"), 0); err != nil {
		t.Fatal(err)
	}
	v := fx.openService()
	sendPrompt(t, v, newPrompt("run cat mine"))
	if text := messageLines(t, v); !strings.Contains(text, "completed kept") {
		t.Errorf("messages: %s", text)
	}
	// The first prompt links a sandbox that was created from a template, and need not name
	// the template.
	x, err := v.CreateSandbox(t.Context(), agent.Sandbox{ID: "box", Template: "agent"})
	if err != nil || x.State != atoll.StateRunning || x.Conversation != "" {
		t.Fatalf("CreateSandbox: %+v, %v", x, err)
	}
	_, err = v.CreateSandbox(t.Context(), agent.Sandbox{ID: "box", Template: "agent"})
	wantKind(t, "CreateSandbox once more", err, atoll.ErrAlreadyExists)
	if got := sendPrompt(t, v, agent.Prompt{Conversation: "d", Sandbox: "box", Text: "say hello"}); textOf(got) != "hello" {
		t.Errorf("events: %+v", got)
	}
	if _, err := v.DeleteConversation(t.Context(), "d", agent.DeleteOptions{Sandbox: agent.SandboxKeep}); err != nil {
		t.Errorf("DeleteConversation: %v", err)
	}
	if x, err = v.Sandbox(t.Context(), "box"); err != nil || x.Conversation != "" {
		t.Errorf("the sandbox after that: %+v, %v", x, err)
	}
	if got := sendPrompt(t, v, agent.Prompt{Conversation: "e", Sandbox: "box", Text: "say again"}); !strings.HasSuffix(textOf(got), "again") {
		t.Errorf("events: %+v", got)
	}
	if _, err := v.DeleteConversation(t.Context(), "e", agent.DeleteOptions{}); err != nil {
		t.Errorf("DeleteConversation: %v", err)
	}
	if x, err = v.Sandbox(t.Context(), "box"); err != nil || x.State != atoll.StateRemoved {
		t.Errorf("the sandbox after that: %+v, %v", x, err)
	}
}

// Versions can be listed and restored. A restore makes a version of the files before it.
func TestRestore(t *testing.T) {
	fx := newFixture(t).withBucket()
	v := fx.openService()
	sendPrompt(t, v, newPrompt("run echo one > file"))
	sendPrompt(t, v, newPrompt("run echo two > file"))
	fx.withSandbox(func(sb atoll.Sandbox) error {
		return atoll.WriteFile(t.Context(), sb, "file", []byte("three"), 0)
	})
	all, err := v.Versions(t.Context(), testSandbox)
	if err != nil || len(all) != 2 {
		t.Fatalf("Versions: %+v, %v", all, err)
	}
	if _, err := v.RestoreSandbox(t.Context(), testSandbox, all[0].Version); err != nil {
		t.Fatalf("RestoreSandbox: %v", err)
	}
	if got := fx.readFile("file"); got != "one\n" {
		t.Errorf("the file: %q", got)
	}
	if all, err = v.Versions(t.Context(), testSandbox); err != nil || len(all) != 3 {
		t.Errorf("Versions: %+v, %v", all, err)
	}
	st, err := v.SyncSandbox(t.Context(), testSandbox)
	if err != nil || st.FilesUploaded == 0 && st.Version == all[2].Version {
		t.Errorf("SyncSandbox: %+v, %v", st, err)
	}
	_, err = v.RestoreSandbox(t.Context(), testSandbox, 5)
	wantKind(t, "RestoreSandbox of no version", err, atoll.ErrNotExist)
	none := newFixture(t)
	w := none.openService()
	sendPrompt(t, w, newPrompt("say hello"))
	_, err = w.SyncSandbox(t.Context(), testSandbox)
	wantKind(t, "SyncSandbox without object storage", err, atoll.ErrUnsupported)
}
