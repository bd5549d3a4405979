package conversation_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/agent/conversation"
	"github.com/seed46cd37a8/atoll/agent/hooks"
	"github.com/seed46cd37a8/atoll/agent/template"
)

// The sandbox of a conversation is deleted with it, unless the caller keeps it. The result says so.
func TestDeleteConversation(t *testing.T) {
	for name, test := range map[string]struct {
		fate   agent.SandboxFate
		want   agent.SandboxState
		pushes int
	}{
		"default": {"", agent.SandboxRemoved, 2},
		"remove":  {agent.SandboxRemove, agent.SandboxRemoved, 2},
		"keep":    {agent.SandboxKeep, agent.SandboxKept, 1},
	} {
		t.Run(name, func(t *testing.T) {
			fx := newFixture(t).withBucket()
			fx.hooks.OnTerminate = func(context.Context, *hooks.HookData) error { return errors.New("not so fast") }
			v := fx.openService()
			sendPrompt(t, v, newPrompt("run echo one > file"))
			fx.withSandbox(func(sb atoll.Sandbox) error { return atoll.WriteFile(t.Context(), sb, "file", []byte("two\n"), 0) })
			done, err := v.DeleteConversation(t.Context(), "c", agent.DeleteOptions{Sandbox: test.fate})
			if err != nil || done.Outcome != test.want || done.Sandbox != testSandbox || (done.Version != 0) != (test.pushes == 2) || len(done.Warnings) != test.pushes-1 {
				t.Errorf("DeleteConversation: %+v, %v", done, err)
			}
			_, err = v.Conversation(t.Context(), "c")
			wantKind(t, "the conversation", err, atoll.ErrNotExist)
			if all, err := v.Sandboxes(t.Context(), "", 0); err != nil || len(all) != 2-test.pushes {
				t.Errorf("Sandboxes: %+v, %v", all, err)
			}
			if test.want == agent.SandboxRemoved {
				fx.wantNoSandboxes()
				if all, err := v.Versions(t.Context(), testSandbox); err != nil || len(all) != test.pushes {
					t.Errorf("Versions: %v, %v", all, err)
				}
			} else if got := fx.readFile("file"); got != "two\n" {
				t.Errorf("the file: %q", got)
			}
		})
	}
}

// A sandbox that a user created remains when a conversation in it is deleted, unless the user asks.
func TestDeleteAdopted(t *testing.T) {
	fx := newFixture(t)
	if _, err := fx.provider.Create(t.Context(), &atoll.Spec{ID: testSandbox}); err != nil {
		t.Fatal(err)
	}
	v := fx.openService()
	for _, want := range []agent.SandboxState{agent.SandboxKept, agent.SandboxRemoved} {
		sendPrompt(t, v, newPrompt("say hello"))
		o := agent.DeleteOptions{}
		if want == agent.SandboxRemoved {
			o.Sandbox = agent.SandboxRemove
		}
		if done, err := v.DeleteConversation(t.Context(), "c", o); err != nil || done.Outcome != want || (len(done.Warnings) > 0) != (want == agent.SandboxKept) {
			t.Errorf("DeleteConversation: %+v, %v; want %s", done, err, want)
		}
	}
	fx.wantNoSandboxes()
}

// The name of a sandbox that was deleted is its conversation's, until that is deleted, too.
func TestDeleteFreesName(t *testing.T) {
	fx := newFixture(t).withBucket()
	v := fx.openService()
	sendPrompt(t, v, newPrompt("run echo data > file"))
	if err := deleteSandbox(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	next := newPrompt("run cat file || echo none > new")
	next.Conversation = "d"
	_, err := v.Send(t.Context(), next)
	wantKind(t, "a prompt of another conversation", err, atoll.ErrConflict)
	if err := deleteConversation(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	sendPrompt(t, v, next)
	if got := fx.readFile("new"); got != "none\n" {
		t.Errorf("the file: %q", got)
	}
}

// A deletion that failed after it had unlinked the sandbox says on the next try that it keeps the sandbox.
func TestDeleteAgainKeepsSandbox(t *testing.T) {
	fx := newFixture(t).withBucket()
	v, lost := fx.openLosingService()
	sendPrompt(t, v, newPrompt("run echo data > file"))
	lost.Store(true)
	keep := agent.DeleteOptions{Sandbox: agent.SandboxKeep}
	_, err := v.DeleteConversation(t.Context(), "c", keep)
	wantKind(t, "DeleteConversation", err, atoll.ErrUnavailable)
	lost.Store(false)
	if done, err := v.DeleteConversation(t.Context(), "c", keep); err != nil || done.Outcome != agent.SandboxKept || done.Sandbox != testSandbox {
		t.Errorf("DeleteConversation again: %+v, %v", done, err)
	}
	if got := fx.readFile("file"); got != "data\n" {
		t.Errorf("the file: %q", got)
	}
}

// A sandbox from which nothing has to be pushed can be deleted while its object storage is lost.
func TestDeletePersistentWithoutStorage(t *testing.T) {
	fx := newFixture(t).withBucket()
	fx.policy = template.PolicyPersistent
	v, lost := fx.openLosingService()
	sendPrompt(t, v, newPrompt("run echo data > file"))
	lost.Store(true)
	done, err := v.DeleteSandbox(t.Context(), testSandbox, agent.DeleteOptions{})
	if err != nil || done.Outcome != agent.SandboxRemoved || !strings.Contains(strings.Join(done.Warnings, "\n"), "no such bucket") {
		t.Errorf("DeleteSandbox: %+v, %v", done, err)
	}
	fx.wantNoSandboxes()
}

// The deletion of a sandbox retains its volume if that has the only copy of the files.
func TestDeleteRetainsVolume(t *testing.T) {
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
			fx := newFixture(t)
			if test.bucket {
				fx.withBucket()
			}
			fx.policy = test.policy
			v := fx.openService()
			sendPrompt(t, v, newPrompt("run echo data > file"))
			if test.broken {
				latest, err := filepath.Glob(filepath.Join(fx.bucket, "docs/default/c/latest*"))
				if err != nil || len(latest) != 1 {
					t.Fatal(latest, err)
				}
				if err := os.WriteFile(latest[0], []byte("nonsense"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := deleteSandbox(t.Context(), v); (err != nil) != test.broken {
				t.Errorf("DeleteSandbox: %v", err)
			}
			if test.broken {
				if done, err := v.DeleteSandbox(t.Context(), testSandbox, agent.DeleteOptions{Force: true}); err != nil || len(done.Warnings) != 1 || done.Version != 0 {
					t.Errorf("by force: %+v, %v", done, err)
				}
			}
			fx.wantNoSandboxes()
			volumes, err := atoll.Volumes(t.Context(), fx.provider, "")
			if err != nil || (len(volumes) == 1) != test.kept {
				t.Errorf("volumes: %+v, %v", volumes, err)
			}
			stored, err := filepath.Glob(filepath.Join(fx.bucket, "docs/default/c/latest*"))
			if pushed := test.bucket && test.policy == template.PolicySynced; err != nil || (len(stored) > 0) != pushed {
				t.Errorf("in object storage: %v, %v", stored, err)
			}
		})
	}
}

// The deletion of a stopped sandbox pushes its files too.
func TestDeleteStopped(t *testing.T) {
	fx := newFixture(t).withBucket()
	v := fx.openService()
	sendPrompt(t, v, newPrompt("run echo one > file"))
	fx.withSandbox(func(sb atoll.Sandbox) error {
		if err := atoll.WriteFile(t.Context(), sb, "file", []byte("two\n"), 0); err != nil {
			return err
		}
		return sb.Stop(t.Context(), 0)
	})
	if err := deleteSandbox(t.Context(), v); err != nil {
		t.Errorf("DeleteSandbox: %v", err)
	}
	if all, err := v.Versions(t.Context(), testSandbox); err != nil || len(all) != 2 {
		t.Errorf("Versions: %v, %v", all, err)
	}
}

// If a file cannot be pushed, nothing is deleted. A deletion by force retains the volume.
func TestDeleteAfterFailedPush(t *testing.T) {
	fx := newFixture(t).withBucket()
	p := fx.injectFaults()
	v := fx.openService()
	sendPrompt(t, v, newPrompt("run echo data > file"))
	fx.withSandbox(func(sb atoll.Sandbox) error { return atoll.WriteFile(t.Context(), sb, "file", []byte("more"), 0) })
	p.unreadable = "file"
	for what, do := range map[string]func(context.Context, *conversation.Service) error{"DeleteSandbox": deleteSandbox, "DeleteConversation": deleteConversation} {
		err := do(t.Context(), v)
		wantKind(t, what, err, atoll.ErrUnavailable)
		if !strings.Contains(fmt.Sprint(err), "1 files could not be read") || !strings.Contains(fmt.Sprint(err), "force=true") {
			t.Errorf("%s: %v", what, err)
		}
		if x, err := v.Sandbox(t.Context(), testSandbox); err != nil || x.State != atoll.StateRunning || x.Conversation != "c" {
			t.Errorf("the sandbox after %s: %+v, %v", what, x, err)
		}
	}
	done, err := v.DeleteSandbox(t.Context(), testSandbox, agent.DeleteOptions{Force: true})
	if err != nil || !strings.Contains(strings.Join(done.Warnings, "\n"), "its data volume is kept: ") {
		t.Errorf("by force: %+v, %v", done, err)
	}
	fx.wantNoSandboxes()
	if volumes, err := atoll.Volumes(t.Context(), fx.provider, ""); err != nil || len(volumes) != 1 {
		t.Errorf("volumes: %+v, %v", volumes, err)
	}
}

// openLosingService opens a service that finds no object storage while lost is true.
func (fx *fixture) openLosingService() (v *conversation.Service, lost *atomic.Bool) {
	o := fx.serviceOptions()
	open, lost := o.Open, new(atomic.Bool)
	o.Open = func(ctx context.Context, at string) (*conversation.Storage, error) {
		if lost.Load() {
			return nil, atoll.Errorf("open", at, atoll.ErrNotExist, "no such bucket")
		}
		return open(ctx, at)
	}
	return fx.openServiceWith(o), lost
}

// A sandbox whose object storage is lost can be deleted by force only.
func TestDeleteWithoutStorage(t *testing.T) {
	fx := newFixture(t).withBucket()
	v, lost := fx.openLosingService()
	sendPrompt(t, v, newPrompt("run echo data > file"))
	lost.Store(true)
	wantKind(t, "DeleteConversation", deleteConversation(t.Context(), v), atoll.ErrUnavailable)
	if got := fx.readFile("file"); got != "data\n" {
		t.Errorf("the file: %q", got)
	}
	done, err := v.DeleteConversation(t.Context(), "c", agent.DeleteOptions{Force: true})
	if text := strings.Join(done.Warnings, "\n"); err != nil || done.Outcome != agent.SandboxRemoved || !strings.Contains(text, "its volume is kept") || !strings.Contains(text, "history") {
		t.Errorf("by force: %+v, %v", done, err)
	}
	fx.wantNoSandboxes()
	if volumes, err := atoll.Volumes(t.Context(), fx.provider, ""); err != nil || len(volumes) != 1 {
		t.Errorf("volumes: %+v, %v", volumes, err)
	}
}
