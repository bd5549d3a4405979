package pool_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/layer/pool"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/provider/mock"
)

const hour = atoll.Duration(time.Hour)

func mustCreate(t testing.TB, p atoll.Provider, spec atoll.Spec) atoll.Sandbox {
	t.Helper()
	sb, err := p.Create(context.Background(), &spec)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	return sb
}

func poolReport(t testing.TB, p atoll.Provider) pool.Report {
	t.Helper()
	r, err := pool.ReportOf(context.Background(), p)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func mustStatus(t testing.TB, sb atoll.Sandbox) atoll.Status {
	t.Helper()
	st, err := sb.Status(context.Background())
	if err != nil {
		t.Fatalf("Status: %v", err)
	}
	return st
}

func listIDs(t testing.TB, p atoll.Provider, f atoll.Filter) []string {
	t.Helper()
	all, err := p.List(context.Background(), f)
	if err != nil {
		t.Fatal(err)
	}
	ids := []string{}
	for _, st := range all {
		ids = append(ids, st.ID)
	}
	return ids
}

func closeProvider(t testing.TB, p atoll.Provider) {
	t.Helper()
	if err := p.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func wantKind(t testing.TB, what string, err error, want atoll.Kind) {
	t.Helper()
	if atoll.KindOf(err) != want {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

// A Create with the spec of an entry returns its oldest sandbox, with everything in
// the spec. A Create with any other spec does not.
func TestHitAndMiss(t *testing.T) {
	o := pool.Options{Entries: []pool.Entry{
		{Name: "plain", Min: 2},
		{Name: "blue", Spec: atoll.Spec{Env: []string{"COLOUR=blue"}, TTL: hour}, Min: 1},
	}}
	p := waitStocked(t, newPool(t, openMock(t, mock.Options{}), t.TempDir(), o))
	defer closeProvider(t, p)
	stock := poolReport(t, p).Pools[0].Stock
	before := time.Now().Truncate(time.Millisecond)
	sb := mustCreate(t, p, atoll.Spec{Name: "web", Labels: map[string]string{"a": "b"}})
	if sb.ID() != stock[0] {
		t.Errorf("Create returned %s, want the oldest of %s", sb.ID(), stock)
	}
	st := mustStatus(t, sb)
	if st.Spec.Name != "web" || st.Spec.Labels["a"] != "b" || st.Spec.TTL != 0 || !st.Expires.IsZero() || st.Created.Before(before) || st.State != atoll.StateRunning {
		t.Errorf("got status %+v", st)
	}
	for _, f := range []atoll.Filter{{}, {Name: "web"}, {Labels: map[string]string{"a": "b"}}, {Project: "default"}} {
		if ids := listIDs(t, p, f); !slices.Equal(ids, []string{sb.ID()}) {
			t.Errorf("List of %+v: %s", f, ids)
		}
	}
	for _, f := range []atoll.Filter{{Name: "other"}, {Labels: map[string]string{"a": "c"}}, {Project: "other"}} {
		if ids := listIDs(t, p, f); len(ids) > 0 {
			t.Errorf("List of %+v: %s", f, ids)
		}
	}
	found, err := atoll.Resolve(t.Context(), p, "", "web")
	if err != nil || found.ID() != sb.ID() || mustStatus(t, found).Spec.Name != "web" {
		t.Errorf("Resolve: %v, %v", found, err)
	}
	if secret, err := atoll.SecretOf(t.Context(), p, sb.ID()); err != nil || secret == "" {
		t.Errorf("Secret: %q, %v", secret, err)
	}

	blue := mustStatus(t, mustCreate(t, p, atoll.Spec{Env: []string{"COLOUR=blue"}, TTL: hour / 2}))
	if left := time.Until(blue.Expires); left < 29*time.Minute || left > 30*time.Minute || blue.Spec.TTL != hour/2 {
		t.Errorf("the sandbox expires in %s, and its TTL is %s", left, blue.Spec.TTL)
	}
	waitStocked(t, p)
	for _, spec := range []atoll.Spec{
		{Env: []string{"COLOUR=red"}}, {Env: []string{"COLOUR=blue"}}, {TTL: hour}, {Project: "other"}, {ID: atoll.NewID()}, {NoStart: true},
		{Cmd: []string{"sleep", "60"}}, {Workdir: "/elsewhere"},
	} {
		made := mustCreate(t, p, spec)
		if got := mustStatus(t, made); got.Spec.TTL != spec.TTL || spec.Project != "" && got.Spec.Project != spec.Project || len(spec.Env) > 0 && !slices.Contains(got.Spec.Env, spec.Env[0]) {
			t.Errorf("Create(%+v) made %+v", spec, got.Spec)
		}
	}
	r := poolReport(t, p)
	if r.Unmatched != 7 || r.Total.WarmHits != 2 || r.Total.ColdMisses != 0 || r.Total.HitRate != 100 {
		t.Errorf("got report %+v", r)
	}
	if r.Pools[0].WarmHits != 1 || r.Pools[0].Created != 3 || r.Pools[1].WarmHits != 1 || r.Pools[1].Created != 2 || r.Total.Created != 5 {
		t.Errorf("got pools %+v", r.Pools)
	}
}

// No call shows stock or accepts its IDs.
func TestStockIsHidden(t *testing.T) {
	dir := t.TempDir()
	below := openMock(t, mock.Options{})
	p := waitStocked(t, newPool(t, below, dir, plainOptions(2)))
	defer closeProvider(t, p)
	reader, err := pool.New(registry.New(sharedBackend{atoll.ProviderLayer{Provider: below}}, openStore(dir), registry.Options{}), openStore(dir), pool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer closeProvider(t, reader)
	for name, p := range map[string]atoll.Provider{"its program": p, "another program": reader} {
		if ids := listIDs(t, p, atoll.Filter{}); len(ids) > 0 {
			t.Errorf("%s lists %s", name, ids)
		}
	}
	stock := poolReport(t, p).Pools[0].Stock
	for name, p := range map[string]atoll.Provider{"its program": p, "another program": reader} {
		for _, id := range stock {
			_, err := p.Get(t.Context(), id)
			wantKind(t, name+": Get", err, atoll.ErrNotFound)
			_, err = atoll.Resolve(t.Context(), p, "", id)
			wantKind(t, name+": Resolve", err, atoll.ErrNotFound)
			_, err = atoll.SecretOf(t.Context(), p, id)
			wantKind(t, name+": Secret", err, atoll.ErrNotFound)
		}
		if all, err := atoll.Volumes(t.Context(), p, ""); err != nil || len(all) > 0 {
			t.Errorf("%s: Volumes: %+v, %v", name, all, err)
		}
		for ev, err := range p.Watch(t.Context()) {
			if err != nil || ev.Type == atoll.EventState {
				t.Errorf("%s: Watch: %+v, %v", name, ev, err)
			}
			break
		}
	}
	sb := mustCreate(t, p, atoll.Spec{Name: "web"})
	for name, p := range map[string]atoll.Provider{"its program": p, "another program": reader} {
		if ids := listIDs(t, p, atoll.Filter{Name: "web"}); !slices.Equal(ids, []string{sb.ID()}) {
			t.Errorf("%s lists %s", name, ids)
		}
		found, err := atoll.Resolve(t.Context(), p, "", "web")
		if err != nil || found.ID() != sb.ID() || mustStatus(t, found).Spec.Name != "web" {
			t.Errorf("%s: Resolve: %v, %v", name, found, err)
		}
	}
	if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]atoll.Provider{"its program": p, "another program": reader} {
		_, err := atoll.Resolve(t.Context(), p, "", "web")
		wantKind(t, name+": Resolve of a removed sandbox", err, atoll.ErrNotFound)
	}
	mustCreate(t, p, atoll.Spec{Name: "web"}) // the name is free
}

// sharedBackend is a backend that outlives one provider: Close does nothing.
type sharedBackend struct{ atoll.ProviderLayer }

func (u sharedBackend) Close() error { return nil }

// A sandbox appears when it is claimed, and its removal event has its name.
func TestWatch(t *testing.T) {
	p := waitStocked(t, newPool(t, openMock(t, mock.Options{}), t.TempDir(), plainOptions(1)))
	defer closeProvider(t, p)
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(20*time.Second))
	defer cancel()
	var got []string
	var id string
	for ev, err := range p.Watch(ctx) {
		if err != nil {
			t.Fatalf("after %s: %v", got, err)
		}
		if ev.Type == atoll.EventSynced {
			sb := mustCreate(t, p, atoll.Spec{Name: "web"})
			id = sb.ID()
			go func() {
				_ = sb.Stop(ctx, 0)
				_ = sb.Remove(ctx, atoll.RemoveVolumes())
			}()
			continue
		}
		if ev.Status.ID != id || ev.Status.Spec.Name != "web" {
			t.Errorf("got an event of %+v", ev.Status)
		}
		got = append(got, string(ev.Status.State))
		if ev.Status.State == atoll.StateRemoved {
			break
		}
	}
	if all := strings.Join(got, " "); !strings.HasSuffix(all, "removed") || got[0] == "removed" {
		t.Errorf("got the states %s", all)
	}
}

// A reader that is busy while a sandbox is claimed and removed still sees both.
func TestWatchOfRemovedClaim(t *testing.T) {
	p := waitStocked(t, newPool(t, openMock(t, mock.Options{}), t.TempDir(), plainOptions(1)))
	defer closeProvider(t, p)
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(20*time.Second))
	defer cancel()
	var got []string
	for ev, err := range p.Watch(ctx) {
		if err != nil {
			t.Fatalf("after %s: %v", got, err)
		}
		if ev.Type == atoll.EventSynced {
			sb := mustCreate(t, p, atoll.Spec{Name: "web"})
			if err := sb.Remove(ctx, atoll.RemoveVolumes()); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if ev.Status.Spec.Name != "web" {
			t.Errorf("got an event of %+v", ev.Status)
		}
		got = append(got, string(ev.Status.State))
		if ev.Status.State == atoll.StateRemoved {
			break
		}
	}
	if len(got) < 2 || got[0] != string(atoll.StateRunning) {
		t.Errorf("got the states %s", got)
	}
}

// Only one sandbox has a name, from the pool or not.
func TestNames(t *testing.T) {
	p := waitStocked(t, newPool(t, openMock(t, mock.Options{}), t.TempDir(), plainOptions(3)))
	defer closeProvider(t, p)
	warm := mustCreate(t, p, atoll.Spec{Name: "warm"})
	cold := mustCreate(t, p, atoll.Spec{Name: "cold", User: "0"})
	for _, spec := range []atoll.Spec{{Name: "warm"}, {Name: "warm", User: "0"}, {Name: "cold"}, {Name: "cold", User: "0"}} {
		_, err := p.Create(t.Context(), &spec)
		wantKind(t, "Create with the name "+spec.Name, err, atoll.ErrAlreadyExists)
	}
	for name, sb := range map[string]atoll.Sandbox{"warm": warm, "cold": cold} {
		if found, err := atoll.Resolve(t.Context(), p, "", name); err != nil || found.ID() != sb.ID() {
			t.Errorf("Resolve of %s: %v, %v", name, found, err)
		}
	}
	// Exactly one of many concurrent calls gets a name.
	var won atomic.Int32
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			spec := &atoll.Spec{Name: "one"}
			if i%2 > 0 {
				spec.User = "0"
			}
			switch _, err := p.Create(t.Context(), spec); {
			case err == nil:
				won.Add(1)
			case atoll.KindOf(err) != atoll.ErrAlreadyExists:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := won.Load(); n != 1 {
		t.Errorf("%d of 8 calls succeeded", n)
	}
	if ids := listIDs(t, p, atoll.Filter{}); len(ids) != 3 {
		t.Errorf("listed are %s", ids)
	}
}

// Ten concurrent calls get ten sandboxes, and the stock never exceeds Min.
func TestConcurrentCreate(t *testing.T) {
	var boots, most atomic.Int32
	below := openMock(t, mock.Options{Before: func(_ context.Context, op string, _ int) error {
		if op == "create" {
			n := boots.Add(1)
			defer boots.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(5 * time.Millisecond)
		}
		return nil
	}})
	p := waitStocked(t, newPool(t, below, t.TempDir(), plainOptions(10)))
	defer closeProvider(t, p)
	if n := most.Load(); n > pool.DefaultMaxCreations {
		t.Errorf("%d concurrent creations", n)
	}
	var mu sync.Mutex
	ids := map[string]bool{}
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() {
			sb := mustCreate(t, p, atoll.Spec{Name: fmt.Sprint("n", i)})
			mu.Lock()
			defer mu.Unlock()
			ids[sb.ID()] = true
		})
	}
	all.Wait()
	if r := poolReport(t, p); len(ids) != 10 || r.Total.WarmHits != 10 || r.Total.ColdMisses > 0 {
		t.Errorf("%d different sandboxes: %+v", len(ids), r.Total)
	}
	waitStocked(t, p)
	if r := poolReport(t, p); r.Pools[0].Warm != 10 || r.Total.Created != 20 {
		t.Errorf("got pool %+v", r.Pools[0])
	}
}

// A caller that finds no warm sandbox takes one that is in creation, unless another caller does.
func TestAwaitCreation(t *testing.T) {
	var hold atomic.Pointer[chan struct{}]
	below := openMock(t, mock.Options{Before: func(ctx context.Context, op string, _ int) error {
		if gate := hold.Load(); op == "create" && gate != nil {
			<-*gate
		}
		return ctx.Err()
	}})
	p := waitStocked(t, newPool(t, below, t.TempDir(), plainOptions(1)))
	defer closeProvider(t, p)
	gate := make(chan struct{})
	hold.Store(&gate)
	mustCreate(t, p, atoll.Spec{}) // warm
	await := func(what string, ok func(pool.Pool) bool) {
		t.Helper()
		eventually(t, func() error {
			if r := poolReport(t, p).Pools[0]; !ok(r) {
				return fmt.Errorf("got %+v, want %s", r, what)
			}
			return nil
		})
	}
	await("one in creation", func(r pool.Pool) bool { return r.Booting == 1 })
	var all sync.WaitGroup
	for range 3 { // one gets the sandbox in creation, the others one of their own
		all.Go(func() { mustCreate(t, p, atoll.Spec{}) })
	}
	await("three misses", func(r pool.Pool) bool { return r.ColdMisses == 3 })
	hold.Store(nil)
	close(gate)
	all.Wait()
	await("2 hits and 2 misses", func(r pool.Pool) bool { return r.WarmHits == 2 && r.ColdMisses == 2 })
}

// The pool gives nobody a sandbox that has stopped or does not answer, and removes
// it.
func TestUnhealthy(t *testing.T) {
	var silent atomic.Value
	silent.Store("")
	below := openMock(t, mock.Options{})
	o := plainOptions(3)
	o.HealthTimeout = testenv.Scale(500 * time.Millisecond) // long enough for a healthy sandbox
	partlySilent := &silentProvider{Provider: below, silent: &silent}
	p := waitStocked(t, newPool(t, partlySilent, t.TempDir(), o))
	defer closeProvider(t, p)
	stock := poolReport(t, p).Pools[0].Stock
	stopped, err := below.Get(t.Context(), stock[0])
	if err == nil {
		err = stopped.Stop(t.Context(), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	if sb := mustCreate(t, p, atoll.Spec{}); sb.ID() == stock[0] {
		t.Error("Create returned a stopped sandbox")
	}
	waitGone := func(id string) {
		t.Helper()
		eventually(t, func() error {
			if _, err := below.Get(t.Context(), id); atoll.KindOf(err) != atoll.ErrNotFound {
				return fmt.Errorf("%s is still there: %v", id, err)
			}
			return nil
		})
	}
	waitGone(stock[0])
	waitStocked(t, p)
	oldest := poolReport(t, p).Pools[0].Stock[0]
	silent.Store(oldest)
	start := time.Now()
	if sb := mustCreate(t, p, atoll.Spec{}); sb.ID() == oldest {
		t.Error("Create returned a silent sandbox")
	}
	if took := time.Since(start); took > testenv.Scale(10*time.Second) {
		t.Errorf("Create took %s", took)
	}
	silent.Store("")
	waitGone(oldest)
	eventually(t, func() error {
		if r := poolReport(t, p); r.Total.Destroyed != 2 {
			return fmt.Errorf("got report %+v", r.Total)
		}
		return nil
	})
}

// silentProvider is a provider with one sandbox that does not answer.
type silentProvider struct {
	atoll.Provider
	silent *atomic.Value
}

func (m *silentProvider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	sb, err := m.Provider.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	return &silentSandbox{atoll.SandboxLayer{Sandbox: sb}, m.silent}, nil
}

type silentSandbox struct {
	atoll.SandboxLayer
	silent *atomic.Value
}

func (m *silentSandbox) Status(ctx context.Context) (atoll.Status, error) {
	if m.silent.Load() == m.ID() {
		<-ctx.Done()
		return atoll.Status{}, ctx.Err()
	}
	return m.SandboxLayer.Status(ctx)
}

// The pool checks stock without calls, too, and replaces unusable sandboxes.
func TestStockIsChecked(t *testing.T) {
	o := plainOptions(2)
	o.Hasten(5*time.Millisecond, time.Millisecond)
	below := openMock(t, mock.Options{})
	p := waitStocked(t, newPool(t, below, t.TempDir(), o))
	defer closeProvider(t, p)
	stock := poolReport(t, p).Pools[0].Stock
	for i, id := range stock {
		sb, err := below.Get(t.Context(), id)
		if err == nil && i == 0 {
			err = sb.Remove(t.Context())
		} else if err == nil { // another program uses it
			_, err = sb.Exec(t.Context(), &atoll.Command{Args: []string{"sleep", "60"}})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() error {
		now := poolReport(t, p).Pools[0]
		if now.Warm != 2 || slices.ContainsFunc(now.Stock, func(id string) bool { return slices.Contains(stock, id) }) || now.Destroyed != 2 {
			return fmt.Errorf("got pool %+v", now)
		}
		return nil
	})
}

// A pool that cannot create sandboxes reports why, retries less and less often, and
// recovers.
func TestBackOff(t *testing.T) {
	var broken atomic.Bool
	var tries atomic.Int32
	broken.Store(true)
	below := openMock(t, mock.Options{Before: func(_ context.Context, op string, _ int) error {
		if op == "create" {
			tries.Add(1)
			if broken.Load() {
				return atoll.Errorf("create", "", atoll.ErrUnavailable, "the engine is down")
			}
		}
		return nil
	}})
	o := plainOptions(2)
	o.Hasten(0, 20*time.Millisecond)
	p := newPool(t, below, t.TempDir(), o)
	defer closeProvider(t, p)
	eventually(t, func() error {
		if r := poolReport(t, p).Pools[0]; !strings.Contains(r.Problem, "is down") {
			return fmt.Errorf("got pool %+v", r)
		}
		return nil
	})
	_, err := p.Create(t.Context(), &atoll.Spec{})
	wantKind(t, "Create", err, atoll.ErrUnavailable)
	if n := tries.Load(); n > 40 {
		t.Errorf("%d attempts", n)
	}
	broken.Store(false)
	if r := poolReport(t, waitStocked(t, p)).Pools[0]; r.Problem != "" || r.Created != 2 {
		t.Errorf("got pool %+v", r)
	}
}

// When there is no room for a new sandbox, the pool removes stock.
func TestStockMakesRoom(t *testing.T) {
	dir := t.TempDir()
	p, err := pool.New(registry.New(openMock(t, mock.Options{}), openStore(dir), registry.Options{Server: true, MaxSandboxes: 3}), openStore(dir), plainOptions(3))
	if err != nil {
		t.Fatal(err)
	}
	defer closeProvider(t, p)
	waitStocked(t, p)
	for range 3 {
		mustCreate(t, p, atoll.Spec{User: "0"})
	}
	_, err = p.Create(t.Context(), &atoll.Spec{User: "0"})
	wantKind(t, "Create above the limit", err, atoll.ErrExhausted)
	if r := poolReport(t, p); r.Total.Destroyed != 3 || r.Pools[0].Warm != 0 {
		t.Errorf("got report %+v", r)
	}
}

// Close removes all stock, including sandboxes in creation, and leaves claimed
// sandboxes.
func TestClose(t *testing.T) {
	for name, wait := range map[string]bool{"stocked": true, "at the first creation": false} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			below := openMock(t, mock.Options{Before: func(_ context.Context, op string, _ int) error {
				if op == "create" {
					time.Sleep(5 * time.Millisecond)
				}
				return nil
			}})
			defer closeProvider(t, below)
			p := newPool(t, sharedBackend{atoll.ProviderLayer{Provider: below}}, dir, plainOptions(3))
			want := []string{}
			if wait {
				waitStocked(t, p)
				want = append(want, mustCreate(t, p, atoll.Spec{Name: "claimed"}).ID())
			}
			closeProvider(t, p)
			if ids := listIDs(t, below, atoll.Filter{}); !slices.Equal(ids, want) {
				t.Errorf("listed are %s, want %s", ids, want)
			}
			s := openStore(dir)
			defer s.Close()
			all, err := s.Warm(t.Context(), "mock")
			if err != nil || len(all) != len(want) {
				t.Errorf("recorded are %+v, %v", all, err)
			}
			again := newPool(t, sharedBackend{atoll.ProviderLayer{Provider: below}}, dir, pool.Options{Server: true})
			defer closeProvider(t, again)
			for _, id := range want {
				if found, err := atoll.Resolve(t.Context(), again, "", "claimed"); err != nil || found.ID() != id || mustStatus(t, found).Spec.Name != "claimed" {
					t.Errorf("Resolve: %v, %v", found, err)
				}
			}
			_, err = again.Create(t.Context(), &atoll.Spec{ID: atoll.NewID()})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// New refuses invalid entries.
func TestInvalidEntries(t *testing.T) {
	for want, entries := range map[string][]pool.Entry{
		"use a letter":        {{Name: "a b"}},
		"must be positive":    {{Name: "a", Min: -1}},
		"cmd: not allowed":    {{Name: "a", Spec: atoll.Spec{Cmd: []string{"x"}}}},
		"id: not allowed":     {{Name: "a", Spec: atoll.Spec{ID: atoll.NewID()}}},
		"name and labels":     {{Name: "a", Spec: atoll.Spec{Name: "x"}}},
		"same spec as pool a": {{Name: "a"}, {Name: "b"}},
		"duplicate name":      {{Name: "a"}, {Name: "a", Spec: atoll.Spec{User: "0"}}},
		"provider is mock":    {{Name: "a", Spec: atoll.Spec{Provider: "other"}}},
		"workdir":             {{Name: "a", Spec: atoll.Spec{Workdir: "x"}}},
	} {
		below := openMock(t, mock.Options{})
		_, err := pool.New(below, openStore(t.TempDir()), pool.Options{Entries: entries})
		if atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", entries, err, want)
		}
		closeProvider(t, below)
	}
}
