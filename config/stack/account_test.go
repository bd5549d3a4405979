package stack

import (
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/auth"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// An account with the role project can only use sandboxes of its projects, and cannot use a provider without isolation.
func TestAccountOfProjects(t *testing.T) {
	t.Setenv("TOKEN_OF_ALICE", "sesame")
	b, err := loadBuilder(t, "provider: local\naccounts: ['alice:project:web+api=env:TOKEN_OF_ALICE']\n", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := b.Tokens()
	if err != nil {
		t.Fatal(err)
	}
	p, err := b.Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ctx := auth.WithAccount(t.Context(), tokens["sesame"].Account)
	if _, err := p.Create(ctx, &atoll.Spec{}); atoll.KindOf(err) != atoll.ErrDenied || !strings.Contains(err.Error(), "provider local") {
		t.Errorf("Create: %v", err)
	}
	sb, err := p.Create(t.Context(), &atoll.Spec{Project: "other"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Get(ctx, sb.ID()); atoll.KindOf(err) != atoll.ErrNotFound {
		t.Errorf("Get of a sandbox in another project: %v", err)
	}
	if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Fatal(err)
	}
}

func TestQuotas(t *testing.T) {
	b, err := loadBuilder(t, "quota:\n  sandboxes: 3\n  memory: 4g\nquotas:\n  web:\n    cpus: 1.5\n", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := b.quotaOf("api"), (store.Quota{Sandboxes: 3, Memory: 4 << 30}); got != want {
		t.Errorf("quota of a project without its own: %+v, want %+v", got, want)
	}
	if got, want := b.quotaOf("web"), (store.Quota{CPUs: 1.5}); got != want {
		t.Errorf("quota of web: %+v, want %+v", got, want)
	}
}
