package storetest

import (
	"slices"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// agentSandbox returns a sandbox with a value in each field.
func agentSandbox(account, id string) *store.AgentSandbox {
	at := storedNow()
	return &store.AgentSandbox{Sandbox: agent.Sandbox{
		ID: id, Account: account, Organization: "o " + oddText, Agent: "a " + oddText, Template: "t " + oddText, External: "x " + oddText, Conversation: "c " + oddText,
		Meta: agent.SandboxMeta{
			LastSync: 1 << 40, SyncError: "e " + oddText,
			SyncStats: &agent.SyncStats{
				Version: 1 << 40, FilesDownloaded: 1, FilesUploaded: 2, FilesDeleted: 3, FilesSkipped: 4, BytesTransferred: 1 << 60, Duration: 5, Conflicts: 6, Failed: 7,
			},
		},
		Created: at.Add(-time.Hour), Deleted: at,
	}}
}

func insertSandbox(t *testing.T, s store.Conversations, x *store.AgentSandbox) *store.AgentSandbox {
	t.Helper()
	if err := s.InsertSandbox(t.Context(), x); err != nil {
		t.Fatalf("InsertSandbox: %v", err)
	}
	return x
}

func wantSandbox(t *testing.T, what string, s store.Conversations, want *store.AgentSandbox) {
	t.Helper()
	got, err := s.FindSandbox(t.Context(), want.Account, want.ID)
	if err != nil {
		t.Errorf("FindSandbox of %s: %v", what, err)
		return
	}
	wantEqual(t, "FindSandbox of "+what, got, want)
}

func checkAgentSandboxes(t *testing.T, open func(string) store.Conversations) {
	a, b := open("a"), open("a")
	_, err := a.FindSandbox(t.Context(), "acme", "box")
	wantKind(t, "FindSandbox of a missing one", err, atoll.ErrNotExist)
	x := insertSandbox(t, a, agentSandbox("acme", "box"))
	if x.Rev == 0 {
		t.Error("InsertSandbox has not set Rev")
	}
	wantKind(t, "InsertSandbox again", b.InsertSandbox(t.Context(), agentSandbox("acme", "box")), atoll.ErrAlreadyExists)
	wantSandbox(t, "a full sandbox", b, x)
	wantSandbox(t, "a sandbox with few fields", a, insertSandbox(t, b, &store.AgentSandbox{Sandbox: agent.Sandbox{ID: "bare", Account: "acme"}}))
	stale := *x
	for _, change := range []func(){
		func() { x.Organization, x.Agent, x.Template, x.External, x.Conversation = "o2", "a2", "t2", "x2", "c2" },
		func() { x.Deleted, x.Created = time.Time{}, x.Created.Add(time.Microsecond) },
		func() { x.Meta.SyncStats = &agent.SyncStats{} },
		func() { x.Meta, x.External = agent.SandboxMeta{}, "" },
	} {
		change()
		rev := x.Rev
		if err := b.UpdateSandbox(t.Context(), x); err != nil {
			t.Fatalf("UpdateSandbox: %v", err)
		}
		if x.Rev == rev {
			t.Error("UpdateSandbox has not raised Rev")
		}
		wantSandbox(t, "an updated sandbox", a, x)
	}
	wantChanged(t, "UpdateSandbox of an old revision", a.UpdateSandbox(t.Context(), &stale))
	wantChanged(t, "DeleteSandbox of an old revision", a.DeleteSandbox(t.Context(), &stale))
	if err := a.DeleteSandbox(t.Context(), x); err != nil {
		t.Fatalf("DeleteSandbox: %v", err)
	}
	_, err = b.FindSandbox(t.Context(), "acme", "box")
	wantKind(t, "FindSandbox of a deleted sandbox", err, atoll.ErrNotExist)
	wantChanged(t, "UpdateSandbox of a deleted sandbox", b.UpdateSandbox(t.Context(), x))
	wantChanged(t, "DeleteSandbox of a deleted sandbox", b.DeleteSandbox(t.Context(), x))
	next := insertSandbox(t, b, agentSandbox("acme", "box"))
	wantChanged(t, "UpdateSandbox of a predecessor", a.UpdateSandbox(t.Context(), &stale))
	wantChanged(t, "DeleteSandbox of a predecessor", a.DeleteSandbox(t.Context(), &stale))
	wantSandbox(t, "a new sandbox", a, next)
}

func checkAgentSandboxPages(t *testing.T, open func(string) store.Conversations) {
	s := open("a")
	ids := []string{"0", "1a", "A", "a", "a-", "aa", "b"}
	for i := range ids {
		x := agentSandbox("acme", ids[(i*3)%len(ids)])
		x.Deleted = time.Time{}
		insertSandbox(t, s, x)
	}
	for _, id := range []string{"2", "ab", "z"} {
		insertSandbox(t, s, agentSandbox("acme", id))
	}
	gone, err := s.FindSandbox(t.Context(), "acme", "b")
	if err != nil {
		t.Fatal(err)
	}
	gone.Deleted = storedNow()
	if err := s.UpdateSandbox(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	ids = ids[:len(ids)-1]
	for limit := 1; limit <= len(ids)+1; limit++ {
		var got []string
		for after := ""; ; {
			page, err := s.Sandboxes(t.Context(), "acme", store.Page{After: after, Limit: limit})
			if err != nil || len(page) > limit {
				t.Fatalf("Sandboxes: %d of %d, %v", len(page), limit, err)
			}
			for _, x := range page {
				after = x.ID
				got = append(got, after)
				wantSandbox(t, "a listed sandbox", s, x)
			}
			if len(page) < limit {
				break
			}
		}
		if !slices.Equal(got, ids) {
			t.Errorf("in pages of %d: %q, want %q", limit, got, ids)
		}
	}
}
