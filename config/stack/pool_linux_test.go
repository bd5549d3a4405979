package stack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/layer/pool"
)

// A booted virtual machine of a pool is claimed at once, like any other sandbox. When the server ends, only claimed
// machines remain.
func TestPoolOfMachines(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: no machine is booted")
	}
	store := testenv.BundleStore(t)
	state, err := os.MkdirTemp("", "atoll") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(state)
	if err := os.Symlink(store, filepath.Join(state, "bundles")); err != nil {
		t.Fatal(err)
	}
	b, err := loadBuilder(t, "provider: microvm\nproviders: [microvm]\nstate_dir: "+state+"\npool: {machines: {size: 1, for: run}}", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := b.Open(Options{Server: true})
	if err != nil {
		t.Fatal(err)
	}
	end := func() error { err := p.Close(); p = nil; return err }
	defer func() {
		if p != nil {
			_ = end()
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(3*time.Minute))
	defer cancel()
	if err := full(ctx, p); err != nil {
		t.Fatal(err)
	}
	spec := &atoll.Spec{Name: "web", IdleStop: config.RunIdleTimeout, IdleRemove: true}
	start := time.Now()
	id, err := atoll.Reserve(ctx, p, spec)
	if err != nil || id == "" {
		t.Fatalf("reserved is %q: %v", id, err)
	}
	spec.ID = id
	sb, err := p.Create(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	out, err := atoll.Output(ctx, sb, &atoll.Command{Args: []string{"uname", "-a"}})
	if err != nil || !strings.HasPrefix(string(out), "Linux ") {
		t.Errorf("uname -a: %q, %v", out, err)
	}
	if r, err := pool.ReportOf(ctx, p); err != nil || sb.ID() != id || r.Total.WarmHits != 1 || r.Total.Created != 1 {
		t.Errorf("%s after %s; the report is %+v, %v", sb.ID(), took, r, err)
	}
	t.Logf("claimed after %s", took)
	if err := end(); err != nil { // while the next machine boots
		t.Errorf("Close: %v", err)
	}
	next, err := b.Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	records := openStore(b)
	defer records.Close()
	if left, err := records.Warm(ctx, "microvm"); err != nil || len(left) != 1 || left[0].ID != id { // the list below finds machines without a record
		t.Errorf("warm sandboxes after the end of the server: %+v, %v", left, err)
	}
	found, err := atoll.Resolve(ctx, next, "", "web")
	if err == nil {
		err = found.Remove(ctx, atoll.RemoveVolumes())
	}
	if err != nil {
		t.Errorf("Remove: %v", err)
	}
	if all, err := next.List(ctx, atoll.Filter{}); err != nil || len(all) > 0 {
		t.Errorf("List: %+v, %v", all, err)
	}
}

// full waits until the first pool has its minimum of warm sandboxes.
func full(ctx context.Context, p atoll.Provider) error {
	for {
		r, err := pool.ReportOf(ctx, p)
		if err != nil || r.Pools[0].Warm == r.Pools[0].Min {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the pool is not full: %+v", r.Pools[0])
		}
	}
}
