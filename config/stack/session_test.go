package stack

import (
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/layer/session"
)

// No session lasts longer than its sandbox may.
func TestSessionLifetime(t *testing.T) {
	b, err := loadBuilder(t, "lifetime: 1h\nprovider: mock\n", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := b.Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	o, err := session.Open(t.Context(), p, &session.Spec{Scope: session.Scope{Kind: session.ScopeWorkflow, ID: "w"}})
	if err != nil {
		t.Fatal(err)
	}
	if left := time.Until(o.Expires); left > time.Hour || left < 50*time.Minute {
		t.Errorf("the session expires in %s, want an hour", left)
	}
}
