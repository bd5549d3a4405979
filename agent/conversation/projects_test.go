package conversation_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/layer/authz"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// A turn has its caller's permissions: its sandbox is in a project of the caller. A sandbox in
// another project does not exist for it, though the same account labels both.
func TestProjects(t *testing.T) {
	fx := newFixture(t)
	inner := fx.provider
	fx.provider = authz.New(inner, authz.Options{})
	v := fx.openService()
	ctx := auth.WithAccount(t.Context(), auth.Account{Name: "team", Role: auth.RoleProject, Projects: []string{"web"}})
	events, err := v.Send(ctx, newPrompt("echo hello"))
	if err != nil {
		t.Fatal(err)
	}
	all := readEvents(t, events)
	if text := typesOf(all); strings.Contains(text, "error") {
		t.Fatalf("the events are %s", text)
	}
	made, err := inner.List(t.Context(), atoll.Filter{})
	if err != nil || len(made) != 1 || made[0].Spec.Project != "web" {
		t.Fatalf("the sandboxes are %+v, %v, want one in web", made, err)
	}
	theirs, err := inner.Create(t.Context(), &atoll.Spec{Project: "theirs", Labels: map[string]string{agent.LabelAccount: "team"}})
	if err != nil {
		t.Fatal(err)
	}
	events, err = v.Send(ctx, agent.Prompt{Conversation: "d", Sandbox: theirs.ID(), Template: "agent", Text: "echo hello"})
	if err == nil {
		err = errorOf(t, readEvents(t, events))
	}
	if err == nil {
		t.Error("an agent works in the sandbox of another project")
	}
	if st, err := theirs.Status(t.Context()); err != nil || st.State != atoll.StateRunning {
		t.Errorf("its status is %+v, %v", st, err)
	}
	procs, err := atoll.Processes(t.Context(), theirs)
	if err != nil || len(procs) != 0 {
		t.Errorf("its processes are %+v, %v", procs, err)
	}
}

// A callerRecorder records the accounts that look for sandboxes.
type callerRecorder struct {
	atoll.ProviderLayer
	mu      sync.Mutex
	callers []string
}

func (w *callerRecorder) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	w.mu.Lock()
	w.callers = append(w.callers, auth.AccountFrom(ctx).Identity())
	w.mu.Unlock()
	return w.ProviderLayer.Get(ctx, id)
}

// A turn that is taken over has the permissions of its first caller, and no more.
func TestTakeOverInProject(t *testing.T) {
	fx := newFixture(t)
	w := &callerRecorder{ProviderLayer: atoll.ProviderLayer{Provider: fx.provider}}
	fx.provider = authz.New(w, authz.Options{})
	team := auth.Account{Name: "team", Role: auth.RoleProject, Projects: []string{"web"}}
	ctx := auth.WithAccount(t.Context(), team)
	v, kill := fx.openKillable(fx.serviceOptions())
	if _, err := v.Send(ctx, newPrompt("say one\nrun "+untilGo+"\nsay two")); err != nil {
		t.Fatal(err)
	}
	kill()
	w.mu.Lock()
	w.callers = nil
	w.mu.Unlock()
	next := fx.openService()
	letGo(t, w.Provider)
	for end := time.Now().Add(testenv.Scale(30 * time.Second)); ; time.Sleep(10 * time.Millisecond) {
		c, err := next.Conversation(ctx, "c")
		if err == nil && c.Turn == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the turn does not end: %+v, %v", c, err)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.callers) == 0 || slices.ContainsFunc(w.callers, func(who string) bool { return who != team.Identity() }) {
		t.Errorf("sandboxes were looked for on behalf of %q, want %q", w.callers, team.Identity())
	}
	all, err := next.Messages(ctx, "c", "", 0)
	if err != nil || len(all) == 0 || !strings.Contains(all[len(all)-1].Body, "two") {
		t.Errorf("the messages are %+v, %v", all, err)
	}
}

// errorOf returns the error in the events of a turn.
func errorOf(t *testing.T, all []event) error {
	t.Helper()
	for _, e := range all {
		if e.Error != "" {
			return atoll.Errorf("", "", atoll.ErrInternal, "%s", e.Error)
		}
	}
	return nil
}
