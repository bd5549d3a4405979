package conversation_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/agent/hooks"
	"github.com/seed46cd37a8/atoll/agent/template"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// Whatever has gone, the next prompt goes on: the sandbox, its volume, or the machine
// with the store.
func TestComesBack(t *testing.T) {
	for name, lose := range map[string]func(l *lab) *lab{
		"stopped": func(l *lab) *lab {
			l.sandbox(func(sb atoll.Sandbox) error { return sb.Stop(l.t.Context(), 0) })
			return l
		},
		"removed": func(l *lab) *lab {
			l.sandbox(func(sb atoll.Sandbox) error { return sb.Remove(l.t.Context()) })
			return l
		},
		"removed with its volume": func(l *lab) *lab {
			l.sandbox(func(sb atoll.Sandbox) error { return sb.Remove(l.t.Context(), atoll.RemoveVolumes()) })
			return l
		},
		"another machine": func(l *lab) *lab {
			there := newLab(l.t)
			there.bucket = l.bucket
			there.agent.ContinueIf = "" // its memory goes by the directory, which is another one there
			there.agent.Env = append(there.agent.Env, "TESTAGENT_CONTINUE=new")
			return there
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t).withBucket()
			v := l.open()
			send(t, v, ask("say one\nrun mkdir -p d && echo data > 'd/a file' && ln -s 'd/a file' link && chmod 751 d"))
			before := messages(t, v)
			was, err := v.Conversation(t.Context(), "c")
			if err != nil {
				t.Fatal(err)
			}
			v.Close()

			l = lose(l)
			v = l.open()
			text := said(send(t, v, ask("run cat link; stat -c %a d")))
			if name != "another machine" && !strings.HasPrefix(text, "I remember 1 prompts.") {
				t.Errorf("the agent does not remember: %q", text)
			}
			after := messages(t, v)
			if !strings.HasPrefix(after, before) {
				t.Errorf("the messages are not those from before:\n%s\nwere\n%s", after, before)
			}
			if !strings.Contains(after, "completed data\n751") {
				t.Errorf("the files are not back:\n%s", after)
			}
			c, err := v.Conversation(t.Context(), "c")
			if err != nil || c.Stats.OutputTokens <= was.Stats.OutputTokens || c.Stats.MessagesExchanged <= was.Stats.MessagesExchanged {
				t.Errorf("the counts: %+v, were %+v, %v", c.Stats, was.Stats, err)
			}
		})
	}
}

// sandbox does something with the sandbox.
func (l *lab) sandbox(do func(sb atoll.Sandbox) error) {
	l.t.Helper()
	sb, err := l.provider.Get(l.t.Context(), sid)
	if err == nil {
		err = do(sb)
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

// A creation that fails leaves nothing: no sandbox, no record, no conversation.
func TestColdStartFails(t *testing.T) {
	l := newLab(t).withBucket()
	failing := errors.New("no luck")
	l.hooks.OnColdStart = func(context.Context, *hooks.HookData) error { return failing }
	v := l.open()
	nothing := func(what string) {
		t.Helper()
		l.none()
		if _, err := v.Conversation(t.Context(), "c"); atoll.KindOf(err) != atoll.ErrNotExist {
			t.Errorf("%s: the conversation: %v", what, err)
		}
		if _, err := v.Sandbox(t.Context(), sid); atoll.KindOf(err) != atoll.ErrNotExist {
			t.Errorf("%s: the sandbox: %v", what, err)
		}
		if volumes, err := atoll.Volumes(t.Context(), l.provider, ""); err != nil || len(volumes) > 0 {
			t.Errorf("%s: volumes: %v, %v", what, volumes, err)
		}
	}
	if _, err := v.Send(t.Context(), ask("say hello")); !errors.Is(err, failing) {
		t.Errorf("Send: %v", err)
	}
	nothing("a hook that fails")
	if _, err := v.CreateSandbox(t.Context(), agent.Sandbox{ID: sid, Template: "agent"}); !errors.Is(err, failing) {
		t.Errorf("CreateSandbox: %v", err)
	}
	nothing("CreateSandbox")
	l.hooks.OnColdStart = func(context.Context, *hooks.HookData) error { panic("oh") }
	_, err := v.Send(t.Context(), ask("say hello"))
	wantKind(t, "Send with a hook that panics", err, atoll.ErrInternal)
	nothing("a hook that panics")
	l.hooks.OnColdStart = hooks.DefaultOnColdStart
	l.agent.Setup = [][]string{{"sh", "-c", "echo it is broken >&2; exit 3"}}
	if _, err = v.Send(t.Context(), ask("say hello")); err == nil || !strings.Contains(err.Error(), "it is broken") {
		t.Errorf("Send with a setup that fails: %v", err)
	}
	nothing("a setup that fails")
	l.agent.Setup = nil
	l.agent.Secrets = map[string]template.Secret{"KEY": secretOf(t, "env:ATOLL_TEST_NO_SUCH_KEY")}
	_, err = v.Send(t.Context(), ask("say hello"))
	wantKind(t, "Send without the agent's key", err, atoll.ErrUnavailable)
	nothing("an agent without its key")
	l.agent.Secrets = nil
	if text := said(send(t, v, ask("say hello"))); text != "hello" {
		t.Errorf("the turn after it said %q", text)
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

// What fails behind the stream does not touch it.
func TestHooksFail(t *testing.T) {
	l := newLab(t).withBucket()
	boom := func(context.Context, *hooks.HookData) error { panic("boom") }
	l.hooks.OnMessage, l.hooks.OnStreamFinish = boom, boom
	v := l.open()
	got := send(t, v, ask("say hello"))
	if said(got) != "hello" || got[len(got)-1].FinishReason != "stop" {
		t.Errorf("events: %+v", got)
	}
	terminated := 0
	l.hooks.OnTerminate = func(context.Context, *hooks.HookData) error { terminated++; return errors.New("not so fast") }
	if err := v.DeleteSandbox(t.Context(), sid); err == nil || !strings.Contains(err.Error(), "not so fast") {
		t.Errorf("DeleteSandbox: %v", err)
	}
	l.none()
	if x, err := v.Sandbox(t.Context(), sid); terminated != 1 || err != nil || x.Deleted.IsZero() || x.State != atoll.StateRemoved {
		t.Errorf("after it: %d, %+v, %v", terminated, x, err)
	}
	if all, err := v.Sandboxes(t.Context(), "", 0); err != nil || len(all) != 0 {
		t.Errorf("Sandboxes: %v, %v", all, err)
	}
}

// Wherever the program is killed, the next one finishes the turn, and nothing is said
// or counted twice.
func TestKilled(t *testing.T) {
	lease := max(3*time.Second, testenv.Scale(2*time.Second))
	for _, step := range []string{"creating", "created", "cold start", "starting", "started", "listening", "finishing", "finished"} {
		for _, name := range []string{"one", "two"} {
			if name == "two" && step != "created" && step != "listening" {
				continue // which waits for the lease to end
			}
			t.Run(strings.ReplaceAll(step, " ", "_")+"/server_"+name, func(t *testing.T) {
				l := newLab(t).withBucket()
				g := newGate(step)
				v, kill := l.killed(l.options().WithStep(g.step).WithLease(lease))
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				go func() { _, _ = v.Send(ctx, ask("say one\nsleep 200ms\nrun echo data > file\nsay two")) }()
				if step == "listening" {
					for end := time.Now().Add(testenv.Scale(30 * time.Second)); !strings.Contains(strings.Join(agents(l), " "), "claude"); time.Sleep(5 * time.Millisecond) {
						if time.Now().After(end) {
							t.Fatal("the agent does not run")
						}
					}
				} else {
					select {
					case <-g.reached:
					case <-time.After(testenv.Scale(30 * time.Second)):
						t.Fatalf("the turn does not come to %q", step)
					}
				}
				leave()
				done := make(chan struct{})
				go func() { defer close(done); kill() }()
				time.Sleep(20 * time.Millisecond)
				close(g.open)
				<-done

				w := l.openWith(withServer(l.options(), name).WithLease(lease))
				settleHard(t, w)
				if _, err := w.Conversation(t.Context(), "c"); atoll.KindOf(err) == atoll.ErrNotExist {
					t.Log(types(send(t, w, ask("say one\nsleep 200ms\nrun echo data > file\nsay two"))))
				} else if text := messages(t, w); !strings.Contains(text, "assistant: two") {
					// The agent had not been started, or nobody knew that it was.
					send(t, w, ask("say one\nrun echo data > file\nsay two"))
				}
				text := messages(t, w)
				if !strings.Contains(text, "assistant: two") {
					t.Errorf("the agent did not end: %s", text)
				}
				if got := l.readFile("file"); got != "data\n" {
					t.Errorf("the file: %q", got)
				}
				c, err := w.Conversation(t.Context(), "c")
				if err != nil {
					t.Fatal(err)
				}
				if n := strings.Count(text, "\n") + 1; int(c.Stats.MessagesExchanged) < n/2 {
					t.Errorf("%d messages are counted, there are %d lines of them", c.Stats.MessagesExchanged, n)
				}
				x, err := w.Sandbox(t.Context(), sid)
				if err != nil || x.Meta.LastSync == 0 {
					t.Errorf("the files were not pushed: %+v, %v", x.Meta, err)
				}
			})
		}
	}
}

// agents are the processes of the sandbox, if there is one.
func agents(l *lab) (all []string) {
	sb, err := l.provider.Get(context.Background(), sid)
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

// settleHard waits until no turn is left that nobody runs.
func settleHard(t testing.TB, v interface {
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

// A conversation can be begun for a sandbox that is there.
func TestAdopt(t *testing.T) {
	l := newLab(t).withBucket()
	sb, err := l.provider.Create(t.Context(), &atoll.Spec{ID: sid})
	if err != nil {
		t.Fatal(err)
	}
	if err := atoll.WriteFile(t.Context(), sb, "mine", []byte("kept"), 0); err != nil {
		t.Fatal(err)
	}
	v := l.open()
	send(t, v, ask("run cat mine"))
	if text := messages(t, v); !strings.Contains(text, "completed kept") {
		t.Errorf("messages: %s", text)
	}
	// One that was made from a template is linked by the first prompt, which need not
	// name the template.
	x, err := v.CreateSandbox(t.Context(), agent.Sandbox{ID: "box", Template: "agent"})
	if err != nil || x.State != atoll.StateRunning || x.Conversation != "" {
		t.Fatalf("CreateSandbox: %+v, %v", x, err)
	}
	_, err = v.CreateSandbox(t.Context(), agent.Sandbox{ID: "box", Template: "agent"})
	wantKind(t, "CreateSandbox once more", err, atoll.ErrAlreadyExists)
	if got := send(t, v, agent.Prompt{Conversation: "d", Sandbox: "box", Text: "say hello"}); said(got) != "hello" {
		t.Errorf("events: %+v", got)
	}
	if err := v.DeleteConversation(t.Context(), "d", false); err != nil {
		t.Errorf("DeleteConversation: %v", err)
	}
	if x, err = v.Sandbox(t.Context(), "box"); err != nil || x.Conversation != "" {
		t.Errorf("the sandbox after that: %+v, %v", x, err)
	}
	if got := send(t, v, agent.Prompt{Conversation: "e", Sandbox: "box", Text: "say again"}); !strings.HasSuffix(said(got), "again") {
		t.Errorf("events: %+v", got)
	}
	if err := v.DeleteConversation(t.Context(), "e", true); err != nil {
		t.Errorf("DeleteConversation: %v", err)
	}
	if x, err = v.Sandbox(t.Context(), "box"); err != nil || x.State != atoll.StateRemoved {
		t.Errorf("the sandbox after that: %+v, %v", x, err)
	}
}

// What can be kept nowhere else is not removed.
func TestDeleteKeepsWhatIsNotPushed(t *testing.T) {
	for name, test := range map[string]struct {
		policy template.Policy
		bucket bool
		broken bool
		kept   bool
	}{
		"synced":             {template.PolicySynced, true, false, false},
		"synced, no storage": {"", false, false, true},
		"synced, broken":     {template.PolicySynced, true, true, true},
		"persistent":         {template.PolicyPersistent, true, false, true},
		"ephemeral":          {template.PolicyEphemeral, true, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			if test.bucket {
				l.withBucket()
			}
			l.policy = test.policy
			v := l.open()
			send(t, v, ask("run echo data > file"))
			if test.broken {
				latest, err := filepath.Glob(filepath.Join(l.bucket, "docs/default/c/latest*"))
				if err != nil || len(latest) != 1 {
					t.Fatal(latest, err)
				}
				if err := os.WriteFile(latest[0], []byte("nonsense"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			err := v.DeleteSandbox(t.Context(), sid)
			if (err != nil) != test.broken {
				t.Errorf("DeleteSandbox: %v", err)
			}
			l.none()
			volumes, err := atoll.Volumes(t.Context(), l.provider, "")
			if err != nil || (len(volumes) == 1) != test.kept {
				t.Errorf("volumes: %+v, %v", volumes, err)
			}
			stored, err := filepath.Glob(filepath.Join(l.bucket, "docs/default/c/latest*"))
			if pushed := test.bucket && test.policy == template.PolicySynced; err != nil || (len(stored) > 0) != pushed {
				t.Errorf("in object storage: %v, %v", stored, err)
			}
		})
	}
}

// Versions can be listed and brought back; what was there is a version, too.
func TestRestore(t *testing.T) {
	l := newLab(t).withBucket()
	v := l.open()
	send(t, v, ask("run echo one > file"))
	send(t, v, ask("run echo two > file"))
	l.sandbox(func(sb atoll.Sandbox) error {
		return atoll.WriteFile(t.Context(), sb, "file", []byte("three"), 0)
	})
	all, err := v.Versions(t.Context(), sid)
	if err != nil || len(all) != 2 {
		t.Fatalf("Versions: %+v, %v", all, err)
	}
	if _, err := v.RestoreSandbox(t.Context(), sid, all[0].Version); err != nil {
		t.Fatalf("RestoreSandbox: %v", err)
	}
	if got := l.readFile("file"); got != "one\n" {
		t.Errorf("the file: %q", got)
	}
	if all, err = v.Versions(t.Context(), sid); err != nil || len(all) != 3 {
		t.Errorf("Versions: %+v, %v", all, err)
	}
	st, err := v.SyncSandbox(t.Context(), sid)
	if err != nil || st.FilesUploaded == 0 && st.Version == all[2].Version {
		t.Errorf("SyncSandbox: %+v, %v", st, err)
	}
	_, err = v.RestoreSandbox(t.Context(), sid, 5)
	wantKind(t, "RestoreSandbox of no version", err, atoll.ErrNotExist)
	none := newLab(t)
	w := none.open()
	send(t, w, ask("say hello"))
	_, err = w.SyncSandbox(t.Context(), sid)
	wantKind(t, "SyncSandbox without object storage", err, atoll.ErrUnsupported)
}
