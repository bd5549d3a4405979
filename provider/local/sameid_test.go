package local_test

import (
	"context"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/local"
)

// Sandsandboxes with the same id in two directories are independent.
func TestSameIDTwice(t *testing.T) {
	var sandboxes []atoll.Sandbox
	for range 2 {
		p, err := local.New(local.Options{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		sb, err := p.Create(t.Context(), &atoll.Spec{ID: "0000000000004000800000000000007e"})
		if err != nil {
			t.Fatal(err)
		}
		sandboxes = append(sandboxes, sb)
	}
	p, err := sandboxes[1].Exec(t.Context(), &atoll.Command{Args: []string{"sleep", "600"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := sandboxes[0].Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Errorf("Remove of the first: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if exit, err := p.Wait(ctx); err == nil {
		t.Errorf("the process of the second: %s", exit)
	}
}
