package storetest

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// newSession returns a session of a workflow.
func newSession(project, id string) *session.Record {
	now := time.Now().Truncate(time.Millisecond)
	return &session.Record{
		Spec:    session.Spec{Project: project, Scope: session.Scope{Kind: session.ScopeWorkflow, ID: id}},
		Sandbox: atoll.NewID(), State: session.StateOpening, Holder: "somebody", Created: now, Opened: now, Used: now,
	}
}

func insertSession(t *testing.T, s Store, x *session.Record) {
	t.Helper()
	if err := s.InsertSession(t.Context(), x); err != nil {
		t.Fatalf("InsertSession: %v", err)
	}
}

func wantSameSession(t *testing.T, what string, got, want *session.Record) {
	t.Helper()
	if got == nil || !got.Created.Equal(want.Created) || !got.Opened.Equal(want.Opened) || !got.Used.Equal(want.Used) {
		t.Errorf("%s: %+v, want %+v", what, got, want)
		return
	}
	g, w := *got, *want
	g.Created, g.Opened, g.Used, w.Created, w.Opened, w.Used = time.Time{}, time.Time{}, time.Time{}, time.Time{}, time.Time{}, time.Time{}
	if !reflect.DeepEqual(g, w) {
		t.Errorf("%s:\n%+v, want\n%+v", what, g, w)
	}
}

func checkSessionLifecycle(t *testing.T, open func(string) Store) {
	a, b := open("a"), open("a")
	x := newSession("p", "one")
	x.Spec.Sandbox = atoll.Spec{Image: "i", Labels: map[string]string{"k": "ü\n"}}
	x.Spec.Workflow, x.Spec.IdleTimeout, x.Spec.MaxLifetime = "w", atoll.Never, atoll.Duration(time.Hour)
	key := x.Spec.Scope.Key()
	_, err := a.FindSession(t.Context(), "p", key)
	wantKind(t, "FindSession of a missing one", err, atoll.ErrNotExist)
	insertSession(t, a, x)
	wantKind(t, "InsertSession again", b.InsertSession(t.Context(), newSession("p", "one")), atoll.ErrAlreadyExists)
	stale, err := b.FindSession(t.Context(), "p", key)
	if err != nil {
		t.Fatalf("FindSession: %v", err)
	}
	wantSameSession(t, "FindSession", stale, x)
	x.Sandbox, x.State, x.Holder, x.Problem = atoll.NewID(), session.StateClosing, "", "why"
	x.Opened, x.Used = x.Opened.Add(time.Minute), x.Used.Add(time.Hour)
	if err := a.UpdateSession(t.Context(), x); err != nil {
		t.Fatalf("UpdateSession: %v", err)
	}
	for what, err := range map[string]error{"UpdateSession": b.UpdateSession(t.Context(), stale), "DeleteSession": b.DeleteSession(t.Context(), stale)} {
		wantKind(t, what+" of an old revision", err, atoll.ErrConflict)
		if !errors.Is(err, store.ErrChanged) {
			t.Errorf("%s: %v, want ErrChanged", what, err)
		}
	}
	other, late := newSession("other", "one"), newSession("p", "two")
	late.Created = late.Created.Add(time.Minute)
	insertSession(t, b, late)
	insertSession(t, b, other)
	for project, want := range map[string][]*session.Record{"p": {x, late}, "other": {other}, "none": nil} {
		all, err := a.Sessions(t.Context(), project)
		if err != nil || len(all) != len(want) {
			t.Fatalf("Sessions of %s: %+v, %v; want %+v", project, all, err, want)
		}
		for i := range want {
			wantSameSession(t, "Sessions", all[i], want[i])
		}
	}
	if all, err := a.Sessions(t.Context(), ""); err != nil || len(all) != 3 {
		t.Errorf("all Sessions: %+v, %v", all, err)
	}
	if err := b.DeleteSession(t.Context(), x); err != nil {
		t.Errorf("DeleteSession: %v", err)
	}
	wantKind(t, "DeleteSession again", a.DeleteSession(t.Context(), x), atoll.ErrConflict)
	_, err = a.FindSession(t.Context(), "p", key)
	wantKind(t, "FindSession of a deleted session", err, atoll.ErrNotExist)
}

// checkSessionRaced opens one session many times at once.
func checkSessionRaced(t *testing.T, open func(string) Store) {
	var claims []func() error
	for range 8 {
		s := open("a")
		claims = append(claims, func() error { return s.InsertSession(t.Context(), newSession("p", "one")) })
	}
	oneWins(t, claims, atoll.ErrAlreadyExists)
}
