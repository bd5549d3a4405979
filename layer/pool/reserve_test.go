package pool_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/layer/pool"
	"github.com/seed46cd37a8/atoll/provider/mock"
)

func mustReserve(t *testing.T, p atoll.Provider, spec atoll.Spec) string {
	t.Helper()
	id, err := atoll.Reserve(t.Context(), p, &spec)
	if err != nil {
		t.Fatalf("Reserve: %v", err)
	}
	return id
}

// A reserved sandbox has no owner until a Create with its ID, which gets it with
// everything in the spec. It counts like any other.
func TestReserve(t *testing.T) {
	dir := t.TempDir()
	o := pool.Options{Server: true, Image: "usual", Entries: []pool.Entry{{Name: "plain", Min: 1, Spec: atoll.Spec{TTL: hour}}}}
	p := waitStocked(t, newPool(t, openMock(t, mock.Options{}), dir, o))
	defer closeProvider(t, p)
	stock := poolReport(t, p).Pools[0].Stock
	for _, spec := range []atoll.Spec{{}, {TTL: hour, User: "0"}, {TTL: hour, ID: atoll.NewID()}, {TTL: hour, Image: "other"}} {
		if id := mustReserve(t, p, spec); id != "" {
			t.Errorf("Reserve returned %s for %+v", id, spec)
		}
	}
	_, err := atoll.Reserve(t.Context(), p, &atoll.Spec{Name: "a b"})
	wantKind(t, "Reserve of an invalid spec", err, atoll.ErrInvalid)
	id := mustReserve(t, p, atoll.Spec{TTL: 2 * hour, Image: "usual"})
	if !slices.Equal(stock, []string{id}) {
		t.Errorf("reserved %s, want that of %s", id, stock)
	}
	if again := mustReserve(t, p, atoll.Spec{TTL: hour}); again != "" {
		t.Errorf("Reserve returned %s, too", again)
	}
	_, err = p.Get(t.Context(), id)
	wantKind(t, "Get before Create", err, atoll.ErrNotFound)
	if ids := listIDs(t, p, atoll.Filter{}); len(ids) > 0 {
		t.Errorf("listed are %s", ids)
	}
	if r := poolReport(t, p).Pools[0]; r.Warm+r.Booting > 0 {
		t.Errorf("the pool replaced a reserved sandbox: %+v", r)
	}
	sb := mustCreate(t, p, atoll.Spec{ID: id, Name: "web", TTL: hour / 2})
	st := mustStatus(t, sb)
	if left := time.Until(st.Expires); sb.ID() != id || st.Spec.Name != "web" || left > 30*time.Minute || left < 29*time.Minute {
		t.Errorf("got status %+v", st)
	}
	if ids := listIDs(t, p, atoll.Filter{Name: "web"}); !slices.Equal(ids, []string{id}) {
		t.Errorf("listed are %s", ids)
	}
	_, err = p.Create(t.Context(), &atoll.Spec{ID: id, TTL: hour})
	wantKind(t, "Create with the same ID", err, atoll.ErrAlreadyExists)
	r := poolReport(t, waitStocked(t, p))
	if r.Total.WarmHits != 1 || r.Total.ColdMisses != 1 || r.Total.Created != 2 || r.Total.Destroyed != 0 {
		t.Errorf("got report %+v", r.Total)
	}
}

// Create with a reserved ID returns a sandbox with that ID, even if the specs
// differ, or the reserved sandbox has stopped or expired. Nobody else gets that
// sandbox.
func TestCreateReplacesReserved(t *testing.T) {
	below := openMock(t, mock.Options{})
	o := plainOptions(1)
	o.Hasten(5*time.Millisecond, time.Millisecond)
	o.Hold(testenv.Scale(time.Second))
	o.HealthTimeout = testenv.Scale(500 * time.Millisecond) // long enough for a healthy sandbox
	p := waitStocked(t, newPool(t, below, t.TempDir(), o))
	defer closeProvider(t, p)
	create := func(what string, spec atoll.Spec) {
		t.Helper()
		sb := mustCreate(t, p, spec)
		if st := mustStatus(t, sb); st.ID != spec.ID || st.Spec.User != spec.User || st.State != atoll.StateRunning {
			t.Errorf("%s: got status %+v", what, st)
		}
		waitStocked(t, p)
	}
	create("a different spec", atoll.Spec{ID: mustReserve(t, p, atoll.Spec{}), User: "0"})

	id := mustReserve(t, p, atoll.Spec{})
	stopped, err := below.Get(t.Context(), id)
	if err == nil {
		err = stopped.Stop(t.Context(), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(o.HealthTimeout) // until then Create relies on the check of Reserve
	create("after a stop", atoll.Spec{ID: id})

	id = mustReserve(t, p, atoll.Spec{})
	waitStocked(t, p) // the pool has replaced the expired one
	if other := mustCreate(t, p, atoll.Spec{}); other.ID() == id {
		t.Error("another caller got the reserved sandbox")
	}
	eventually(t, func() error {
		if _, err := below.Get(t.Context(), id); atoll.KindOf(err) != atoll.ErrNotFound {
			return fmt.Errorf("the expired sandbox still exists: %v", err)
		}
		return nil
	})
	create("after expiry", atoll.Spec{ID: id})
	for range 20 { // maintenance runs meanwhile
		if _, err := p.Get(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Millisecond)
	}

	mustCreate(t, p, atoll.Spec{Name: "web", User: "0"})
	id = mustReserve(t, p, atoll.Spec{Name: "web"})
	_, err = p.Create(t.Context(), &atoll.Spec{ID: id, Name: "web"})
	wantKind(t, "Create with a name that is taken", err, atoll.ErrAlreadyExists)
	_, err = p.Get(t.Context(), id)
	wantKind(t, "Get after the failed Create", err, atoll.ErrNotFound)
}

// If the removal of a reserved sandbox fails, no other sandbox gets its ID before a
// retry succeeds.
func TestReservedRemovalFails(t *testing.T) {
	var broken atomic.Bool
	below := openMock(t, mock.Options{Before: func(_ context.Context, op string, _ int) error {
		if op == "remove" && broken.Load() {
			return atoll.Errorf("remove", "", atoll.ErrUnavailable, "the engine is down")
		}
		return nil
	}})
	o := plainOptions(1)
	o.Hasten(5*time.Millisecond, time.Millisecond)
	p := waitStocked(t, newPool(t, below, t.TempDir(), o))
	defer closeProvider(t, p)
	id := mustReserve(t, p, atoll.Spec{})
	broken.Store(true)
	_, err := p.Create(t.Context(), &atoll.Spec{ID: id, User: "0"})
	wantKind(t, "Create", err, atoll.ErrUnavailable)
	broken.Store(false)
	if st := mustStatus(t, mustCreate(t, p, atoll.Spec{ID: id, User: "0"})); st.ID != id || st.Spec.User != "0" {
		t.Errorf("got status %+v", st)
	}
}

// Close removes reserved sandboxes.
func TestCloseWithReserved(t *testing.T) {
	dir := t.TempDir()
	below := openMock(t, mock.Options{})
	defer closeProvider(t, below)
	p := waitStocked(t, newPool(t, sharedBackend{atoll.ProviderLayer{Provider: below}}, dir, plainOptions(2)))
	id := mustReserve(t, p, atoll.Spec{})
	closeProvider(t, p)
	if ids := listIDs(t, below, atoll.Filter{}); len(ids) > 0 {
		t.Errorf("listed are %s", ids)
	}
	next := newPool(t, sharedBackend{atoll.ProviderLayer{Provider: below}}, dir, pool.Options{})
	defer closeProvider(t, next)
	mustCreate(t, next, atoll.Spec{ID: id})
}
