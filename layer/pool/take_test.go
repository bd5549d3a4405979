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

func report(t testing.TB, p atoll.Provider) pool.Report {
	t.Helper()
	r, err := pool.ReportOf(context.Background(), p)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func status(t testing.TB, sb atoll.Sandbox) atoll.Status {
	t.Helper()
	st, err := sb.Status(context.Background())
	if err != nil {
		t.Fatalf("Status: %v", err)
	}
	return st
}

func list(t testing.TB, p atoll.Provider, f atoll.Filter) []string {
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

func closed(t testing.TB, p atoll.Provider) {
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

// Who asks for what a pool has gets the oldest of it, with all that was asked for;
// who asks for anything else does not.
func TestHitAndMiss(t *testing.T) {
	o := pool.Options{Entries: []pool.Entry{
		{Name: "plain", Min: 2},
		{Name: "blue", Spec: atoll.Spec{Env: []string{"COLOUR=blue"}, TTL: hour}, Min: 1},
	}}
	p := stocked(t, around(t, openMock(t, mock.Options{}), t.TempDir(), o))
	defer closed(t, p)
	stock := report(t, p).Pools[0].Stock
	before := time.Now().Truncate(time.Millisecond)
	sb := mustCreate(t, p, atoll.Spec{Name: "web", Labels: map[string]string{"a": "b"}})
	if sb.ID() != stock[0] {
		t.Errorf("it is %s, want the oldest of %s", sb.ID(), stock)
	}
	st := status(t, sb)
	if st.Spec.Name != "web" || st.Spec.Labels["a"] != "b" || st.Spec.TTL != 0 || !st.Expires.IsZero() || st.Created.Before(before) || st.State != atoll.StateRunning {
		t.Errorf("the status is %+v", st)
	}
	for _, f := range []atoll.Filter{{}, {Name: "web"}, {Labels: map[string]string{"a": "b"}}, {Project: "default"}} {
		if ids := list(t, p, f); !slices.Equal(ids, []string{sb.ID()}) {
			t.Errorf("List of %+v: %s", f, ids)
		}
	}
	for _, f := range []atoll.Filter{{Name: "other"}, {Labels: map[string]string{"a": "c"}}, {Project: "other"}} {
		if ids := list(t, p, f); len(ids) > 0 {
			t.Errorf("List of %+v: %s", f, ids)
		}
	}
	found, err := atoll.Resolve(t.Context(), p, "", "web")
	if err != nil || found.ID() != sb.ID() || status(t, found).Spec.Name != "web" {
		t.Errorf("Resolve: %v, %v", found, err)
	}
	if secret, err := atoll.Secret(t.Context(), p, sb.ID()); err != nil || secret == "" {
		t.Errorf("Secret: %q, %v", secret, err)
	}

	blue := status(t, mustCreate(t, p, atoll.Spec{Env: []string{"COLOUR=blue"}, TTL: hour / 2}))
	if left := time.Until(blue.Expires); left < 29*time.Minute || left > 30*time.Minute || blue.Spec.TTL != hour/2 {
		t.Errorf("it expires in %s, and its TTL is %s", left, blue.Spec.TTL)
	}
	stocked(t, p)
	for _, spec := range []atoll.Spec{
		{Env: []string{"COLOUR=red"}}, {Env: []string{"COLOUR=blue"}}, {TTL: hour}, {Project: "other"}, {ID: atoll.NewID()}, {NoStart: true},
		{Cmd: []string{"sleep", "60"}}, {Workdir: "/elsewhere"},
	} {
		made := mustCreate(t, p, spec)
		if got := status(t, made); got.Spec.TTL != spec.TTL || spec.Project != "" && got.Spec.Project != spec.Project || len(spec.Env) > 0 && !slices.Contains(got.Spec.Env, spec.Env[0]) {
			t.Errorf("asked for %+v, it is %+v", spec, got.Spec)
		}
	}
	r := report(t, p)
	if r.Unmatched != 7 || r.Total.WarmHits != 2 || r.Total.ColdMisses != 0 || r.Total.HitRate != 100 {
		t.Errorf("the report is %+v", r)
	}
	if r.Pools[0].WarmHits != 1 || r.Pools[0].Created != 3 || r.Pools[1].WarmHits != 1 || r.Pools[1].Created != 2 || r.Total.Created != 5 {
		t.Errorf("the pools are %+v", r.Pools)
	}
}

// Nobody sees what is on the shelves, or can use it by its id.
func TestStockIsHidden(t *testing.T) {
	dir := t.TempDir()
	below := openMock(t, mock.Options{})
	p := stocked(t, around(t, below, dir, plain(2)))
	defer closed(t, p)
	reader, err := pool.New(registry.New(unclosed{atoll.ProviderLayer{Provider: below}}, openStore(dir), registry.Options{}), openStore(dir), pool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, reader)
	for name, p := range map[string]atoll.Provider{"who keeps it": p, "another program": reader} {
		if ids := list(t, p, atoll.Filter{}); len(ids) > 0 {
			t.Errorf("%s lists %s", name, ids)
		}
	}
	stock := report(t, p).Pools[0].Stock
	for name, p := range map[string]atoll.Provider{"who keeps it": p, "another program": reader} {
		for _, id := range stock {
			_, err := p.Get(t.Context(), id)
			wantKind(t, name+": Get", err, atoll.ErrNotFound)
			_, err = atoll.Resolve(t.Context(), p, "", id)
			wantKind(t, name+": Resolve", err, atoll.ErrNotFound)
			_, err = atoll.Secret(t.Context(), p, id)
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
	for name, p := range map[string]atoll.Provider{"who keeps it": p, "another program": reader} {
		if ids := list(t, p, atoll.Filter{Name: "web"}); !slices.Equal(ids, []string{sb.ID()}) {
			t.Errorf("%s lists %s", name, ids)
		}
		found, err := atoll.Resolve(t.Context(), p, "", "web")
		if err != nil || found.ID() != sb.ID() || status(t, found).Spec.Name != "web" {
			t.Errorf("%s: Resolve: %v, %v", name, found, err)
		}
	}
	if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]atoll.Provider{"who keeps it": p, "another program": reader} {
		_, err := atoll.Resolve(t.Context(), p, "", "web")
		wantKind(t, name+": Resolve of what was removed", err, atoll.ErrNotFound)
	}
	mustCreate(t, p, atoll.Spec{Name: "web"}) // the name is free
}

// unclosed is a backend that others use, too.
type unclosed struct{ atoll.ProviderLayer }

func (u unclosed) Close() error { return nil }

// A sandbox begins to be there when it is claimed, and its end is told under its name.
func TestWatch(t *testing.T) {
	p := stocked(t, around(t, openMock(t, mock.Options{}), t.TempDir(), plain(1)))
	defer closed(t, p)
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
			t.Errorf("told of %+v", ev.Status)
		}
		got = append(got, string(ev.Status.State))
		if ev.Status.State == atoll.StateRemoved {
			break
		}
	}
	if all := strings.Join(got, " "); !strings.HasSuffix(all, "removed") || got[0] == "removed" {
		t.Errorf("told of %s", all)
	}
}

// One name is one sandbox's, from the pool or not.
func TestNames(t *testing.T) {
	p := stocked(t, around(t, openMock(t, mock.Options{}), t.TempDir(), plain(3)))
	defer closed(t, p)
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
	// In another project the name is free, and one of many gets it.
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
		t.Errorf("%d of 8 have it", n)
	}
	if ids := list(t, p, atoll.Filter{}); len(ids) != 3 {
		t.Errorf("there are %s", ids)
	}
}

// Ten who ask at once get ten sandboxes, and there is never more stock than there is
// to be.
func TestTenAtOnce(t *testing.T) {
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
	p := stocked(t, around(t, below, t.TempDir(), plain(10)))
	defer closed(t, p)
	if n := most.Load(); n > pool.DefaultMaxBoots {
		t.Errorf("%d were made at once", n)
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
	if r := report(t, p); len(ids) != 10 || r.Total.WarmHits != 10 || r.Total.ColdMisses > 0 {
		t.Errorf("%d have one: %+v", len(ids), r.Total)
	}
	stocked(t, p)
	if r := report(t, p); r.Pools[0].Warm != 10 || r.Total.Created != 20 {
		t.Errorf("there are %+v", r.Pools[0])
	}
}

// What does not run, or does not answer, is given to nobody, and goes.
func TestUnhealthy(t *testing.T) {
	var silent atomic.Value
	silent.Store("")
	below := openMock(t, mock.Options{})
	o := plain(3)
	o.Patience = testenv.Scale(500 * time.Millisecond) // in which those that are well answer
	quiet := &muted{Provider: below, silent: &silent}
	p := stocked(t, around(t, quiet, t.TempDir(), o))
	defer closed(t, p)
	stock := report(t, p).Pools[0].Stock
	stopped, err := below.Get(t.Context(), stock[0])
	if err == nil {
		err = stopped.Stop(t.Context(), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	if sb := mustCreate(t, p, atoll.Spec{}); sb.ID() == stock[0] {
		t.Error("somebody got one that does not run")
	}
	gone := func(id string) {
		t.Helper()
		eventually(t, func() error {
			if _, err := below.Get(t.Context(), id); atoll.KindOf(err) != atoll.ErrNotFound {
				return fmt.Errorf("%s is still there: %v", id, err)
			}
			return nil
		})
	}
	gone(stock[0])
	stocked(t, p)
	oldest := report(t, p).Pools[0].Stock[0]
	silent.Store(oldest)
	start := time.Now()
	if sb := mustCreate(t, p, atoll.Spec{}); sb.ID() == oldest {
		t.Error("somebody got one that does not answer")
	}
	if took := time.Since(start); took > testenv.Scale(10*time.Second) {
		t.Errorf("it took %s", took)
	}
	silent.Store("")
	gone(oldest)
	eventually(t, func() error {
		if r := report(t, p); r.Total.Destroyed != 2 {
			return fmt.Errorf("the report is %+v", r.Total)
		}
		return nil
	})
}

// muted is a provider one of whose sandboxes does not answer.
type muted struct {
	atoll.Provider
	silent *atomic.Value
}

func (m *muted) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	sb, err := m.Provider.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	return &mutedSandbox{atoll.SandboxLayer{Sandbox: sb}, m.silent}, nil
}

type mutedSandbox struct {
	atoll.SandboxLayer
	silent *atomic.Value
}

func (m *mutedSandbox) Status(ctx context.Context) (atoll.Status, error) {
	if m.silent.Load() == m.ID() {
		<-ctx.Done()
		return atoll.Status{}, ctx.Err()
	}
	return m.SandboxLayer.Status(ctx)
}

// Stock is looked at also when nobody asks, and what is of no use replaced.
func TestLook(t *testing.T) {
	o := plain(2)
	o.Hasten(5*time.Millisecond, time.Millisecond)
	below := openMock(t, mock.Options{})
	p := stocked(t, around(t, below, t.TempDir(), o))
	defer closed(t, p)
	stock := report(t, p).Pools[0].Stock
	for i, id := range stock {
		sb, err := below.Get(t.Context(), id)
		if err == nil && i == 0 {
			err = sb.Remove(t.Context())
		} else if err == nil { // somebody who sees it there has used it
			_, err = sb.Exec(t.Context(), &atoll.Command{Args: []string{"sleep", "60"}})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() error {
		now := report(t, p).Pools[0]
		if now.Warm != 2 || slices.ContainsFunc(now.Stock, func(id string) bool { return slices.Contains(stock, id) }) || now.Destroyed != 2 {
			return fmt.Errorf("the pool is %+v", now)
		}
		return nil
	})
}

// A pool whose sandboxes cannot be made says why, tries less and less often, and
// goes on when they can.
func TestBackOff(t *testing.T) {
	var broken atomic.Bool
	var tries atomic.Int32
	broken.Store(true)
	below := openMock(t, mock.Options{Before: func(_ context.Context, op string, _ int) error {
		if op == "create" {
			tries.Add(1)
			if broken.Load() {
				return atoll.Errorf("create", "", atoll.ErrUnavailable, "the engine is on holiday")
			}
		}
		return nil
	}})
	o := plain(2)
	o.Hasten(0, 20*time.Millisecond)
	p := around(t, below, t.TempDir(), o)
	defer closed(t, p)
	eventually(t, func() error {
		if r := report(t, p).Pools[0]; !strings.Contains(r.Problem, "on holiday") {
			return fmt.Errorf("the pool is %+v", r)
		}
		return nil
	})
	_, err := p.Create(t.Context(), &atoll.Spec{})
	wantKind(t, "Create", err, atoll.ErrUnavailable)
	if n := tries.Load(); n > 40 {
		t.Errorf("it was tried %d times", n)
	}
	broken.Store(false)
	if r := report(t, stocked(t, p)).Pools[0]; r.Problem != "" || r.Created != 2 {
		t.Errorf("the pool is %+v", r)
	}
}

// When there is no room for what somebody asks for, stock makes some.
func TestRoom(t *testing.T) {
	dir := t.TempDir()
	p, err := pool.New(registry.New(openMock(t, mock.Options{}), openStore(dir), registry.Options{Server: true, Most: 3}), openStore(dir), plain(3))
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, p)
	stocked(t, p)
	for range 3 {
		mustCreate(t, p, atoll.Spec{User: "0"})
	}
	_, err = p.Create(t.Context(), &atoll.Spec{User: "0"})
	wantKind(t, "Create of one too many", err, atoll.ErrExhausted)
	if r := report(t, p); r.Total.Destroyed != 3 || r.Pools[0].Warm != 0 {
		t.Errorf("the report is %+v", r)
	}
}

// Close leaves what was claimed, and nothing else, also of what is just being made.
func TestClose(t *testing.T) {
	for name, wait := range map[string]bool{"stocked": true, "at the first birth": false} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			below := openMock(t, mock.Options{Before: func(_ context.Context, op string, _ int) error {
				if op == "create" {
					time.Sleep(5 * time.Millisecond)
				}
				return nil
			}})
			defer closed(t, below)
			p := around(t, unclosed{atoll.ProviderLayer{Provider: below}}, dir, plain(3))
			want := []string{}
			if wait {
				stocked(t, p)
				want = append(want, mustCreate(t, p, atoll.Spec{Name: "kept"}).ID())
			}
			closed(t, p)
			if ids := list(t, below, atoll.Filter{}); !slices.Equal(ids, want) {
				t.Errorf("there are %s, want %s", ids, want)
			}
			s := openStore(dir)
			defer s.Close()
			all, err := s.Warm(t.Context(), "mock")
			if err != nil || len(all) != len(want) {
				t.Errorf("written down are %+v, %v", all, err)
			}
			again := around(t, unclosed{atoll.ProviderLayer{Provider: below}}, dir, pool.Options{Server: true})
			defer closed(t, again)
			for _, id := range want {
				if found, err := atoll.Resolve(t.Context(), again, "", "kept"); err != nil || found.ID() != id || status(t, found).Spec.Name != "kept" {
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

// What makes no sense is refused at once.
func TestRefused(t *testing.T) {
	for want, entries := range map[string][]pool.Entry{
		"use a letter":       {{Name: "a b"}},
		"must be positive":   {{Name: "a", Min: -1}},
		"cmd: cannot":        {{Name: "a", Spec: atoll.Spec{Cmd: []string{"x"}}}},
		"id: cannot":         {{Name: "a", Spec: atoll.Spec{ID: atoll.NewID()}}},
		"name and labels":    {{Name: "a", Spec: atoll.Spec{Name: "x"}}},
		"the same as pool a": {{Name: "a"}, {Name: "b"}},
		"two of this name":   {{Name: "a"}, {Name: "a", Spec: atoll.Spec{User: "0"}}},
		"there is mock":      {{Name: "a", Spec: atoll.Spec{Provider: "other"}}},
		"workdir":            {{Name: "a", Spec: atoll.Spec{Workdir: "x"}}},
	} {
		below := openMock(t, mock.Options{})
		_, err := pool.New(below, openStore(t.TempDir()), pool.Options{Entries: entries})
		if atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", entries, err, want)
		}
		closed(t, below)
	}
}
