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

func reserve(t *testing.T, p atoll.Provider, spec atoll.Spec) string {
	t.Helper()
	id, err := atoll.Reserve(t.Context(), p, &spec)
	if err != nil {
		t.Fatalf("Reserve: %v", err)
	}
	return id
}

// What is reserved is nobody's until its id is asked for, and then it is who asked's,
// with all that was asked for; it counts as any other.
func TestReserve(t *testing.T) {
	dir := t.TempDir()
	o := pool.Options{Server: true, Image: "usual", Entries: []pool.Entry{{Name: "plain", Min: 1, Spec: atoll.Spec{TTL: hour}}}}
	p := stocked(t, around(t, openMock(t, mock.Options{}), dir, o))
	defer closed(t, p)
	stock := report(t, p).Pools[0].Stock
	for _, spec := range []atoll.Spec{{}, {TTL: hour, User: "0"}, {TTL: hour, ID: atoll.NewID()}, {TTL: hour, Image: "other"}} {
		if id := reserve(t, p, spec); id != "" {
			t.Errorf("%s is ready for %+v", id, spec)
		}
	}
	_, err := atoll.Reserve(t.Context(), p, &atoll.Spec{Name: "a b"})
	wantKind(t, "Reserve of what makes no sense", err, atoll.ErrInvalid)
	id := reserve(t, p, atoll.Spec{TTL: 2 * hour, Image: "usual"})
	if !slices.Equal(stock, []string{id}) {
		t.Errorf("reserved is %s of %s", id, stock)
	}
	if again := reserve(t, p, atoll.Spec{TTL: hour}); again != "" {
		t.Errorf("%s is ready, too", again)
	}
	_, err = p.Get(t.Context(), id)
	wantKind(t, "Get before Create", err, atoll.ErrNotFound)
	if ids := list(t, p, atoll.Filter{}); len(ids) > 0 {
		t.Errorf("listed are %s", ids)
	}
	if r := report(t, p).Pools[0]; r.Warm+r.Booting > 0 {
		t.Errorf("another one is made before it is had: %+v", r)
	}
	sb := mustCreate(t, p, atoll.Spec{ID: id, Name: "web", TTL: hour / 2})
	st := status(t, sb)
	if left := time.Until(st.Expires); sb.ID() != id || st.Spec.Name != "web" || left > 30*time.Minute || left < 29*time.Minute {
		t.Errorf("it is %+v", st)
	}
	if ids := list(t, p, atoll.Filter{Name: "web"}); !slices.Equal(ids, []string{id}) {
		t.Errorf("listed are %s", ids)
	}
	_, err = p.Create(t.Context(), &atoll.Spec{ID: id, TTL: hour})
	wantKind(t, "Create of the same", err, atoll.ErrAlreadyExists)
	r := report(t, stocked(t, p))
	if r.Total.WarmHits != 1 || r.Total.ColdMisses != 1 || r.Total.Created != 2 || r.Total.Destroyed != 0 {
		t.Errorf("the report is %+v", r.Total)
	}
}

// Who has an id that was reserved gets a sandbox of that id, also when what was
// reserved is not what he asks for, or does not run any more, or has lapsed; it is never
// somebody else's.
func TestReservedAndNotHad(t *testing.T) {
	below := openMock(t, mock.Options{})
	o := plain(1)
	o.Hasten(5*time.Millisecond, time.Millisecond)
	o.Hold(testenv.Scale(time.Second))
	o.Patience = testenv.Scale(100 * time.Millisecond)
	p := stocked(t, around(t, below, t.TempDir(), o))
	defer closed(t, p)
	made := func(what string, spec atoll.Spec) {
		t.Helper()
		sb := mustCreate(t, p, spec)
		if st := status(t, sb); st.ID != spec.ID || st.Spec.User != spec.User || st.State != atoll.StateRunning {
			t.Errorf("%s: it is %+v", what, st)
		}
		stocked(t, p)
	}
	made("another one", atoll.Spec{ID: reserve(t, p, atoll.Spec{}), User: "0"})

	id := reserve(t, p, atoll.Spec{})
	stopped, err := below.Get(t.Context(), id)
	if err == nil {
		err = stopped.Stop(t.Context(), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(o.Patience) // until then it is taken to be as it was
	made("one that has stopped", atoll.Spec{ID: id})

	id = reserve(t, p, atoll.Spec{})
	stocked(t, p) // in the place of what has lapsed
	if other := mustCreate(t, p, atoll.Spec{}); other.ID() == id {
		t.Error("somebody else has what was reserved")
	}
	eventually(t, func() error {
		if _, err := below.Get(t.Context(), id); atoll.KindOf(err) != atoll.ErrNotFound {
			return fmt.Errorf("what has lapsed is there: %v", err)
		}
		return nil
	})
	made("one that has lapsed", atoll.Spec{ID: id})
	for range 20 { // it is looked after meanwhile
		if _, err := p.Get(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Millisecond)
	}

	mustCreate(t, p, atoll.Spec{Name: "web", User: "0"})
	id = reserve(t, p, atoll.Spec{Name: "web"})
	_, err = p.Create(t.Context(), &atoll.Spec{ID: id, Name: "web"})
	wantKind(t, "Create with a name that is taken", err, atoll.ErrAlreadyExists)
	_, err = p.Get(t.Context(), id)
	wantKind(t, "Get of what could not be had", err, atoll.ErrNotFound)
}

// What cannot be removed at once is, before another sandbox has its id.
func TestReservedAndHardToRemove(t *testing.T) {
	var broken atomic.Bool
	below := openMock(t, mock.Options{Before: func(_ context.Context, op string, _ int) error {
		if op == "remove" && broken.Load() {
			return atoll.Errorf("remove", "", atoll.ErrUnavailable, "the engine is on holiday")
		}
		return nil
	}})
	o := plain(1)
	o.Hasten(5*time.Millisecond, time.Millisecond)
	p := stocked(t, around(t, below, t.TempDir(), o))
	defer closed(t, p)
	id := reserve(t, p, atoll.Spec{})
	broken.Store(true)
	_, err := p.Create(t.Context(), &atoll.Spec{ID: id, User: "0"})
	wantKind(t, "Create", err, atoll.ErrUnavailable)
	broken.Store(false)
	if st := status(t, mustCreate(t, p, atoll.Spec{ID: id, User: "0"})); st.ID != id || st.Spec.User != "0" {
		t.Errorf("it is %+v", st)
	}
}

// What is reserved goes when its program ends.
func TestCloseWithReserved(t *testing.T) {
	dir := t.TempDir()
	below := openMock(t, mock.Options{})
	defer closed(t, below)
	p := stocked(t, around(t, unclosed{atoll.ProviderLayer{Provider: below}}, dir, plain(2)))
	id := reserve(t, p, atoll.Spec{})
	closed(t, p)
	if ids := list(t, below, atoll.Filter{}); len(ids) > 0 {
		t.Errorf("there are %s", ids)
	}
	next := around(t, unclosed{atoll.ProviderLayer{Provider: below}}, dir, pool.Options{})
	defer closed(t, next)
	mustCreate(t, next, atoll.Spec{ID: id})
}
