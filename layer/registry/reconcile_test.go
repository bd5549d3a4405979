package registry_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/teststore"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/layer/trace"
	"github.com/seed46cd37a8/atoll/provider/secret"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// none is what Reconcile finds when all is well.
var none = map[string]string{}

func TestMissing(t *testing.T) {
	l := newLab(t, registry.Options{})
	web, other := l.create(l, atoll.Spec{Name: "web"}), l.create(l, atoll.Spec{})
	gone, err := l.engine.Get(t.Context(), web.ID())
	if err == nil {
		err = gone.Remove(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := atoll.Secret(t.Context(), l, web.ID()); atoll.KindOf(err) != atoll.ErrNotFound {
		t.Errorf("Secret: %v, want ErrNotFound", err)
	}
	want := map[string]string{web.ID(): "missing forgotten"}
	l.reconcile(registry.ReconcileOptions{DryRun: true}, 1, want)
	l.reconcile(registry.ReconcileOptions{}, 1, want)
	l.reconcile(registry.ReconcileOptions{}, 1, none)
	if !l.has(other.ID()) {
		t.Error("another sandbox has been removed")
	}
	again := l.create(l, atoll.Spec{Name: "web"})
	if again.ID() == web.ID() {
		t.Error("two have the same id")
	}
}

// A name whose sandbox has gone is free at once, without a Reconcile.
func TestNameOfTheMissing(t *testing.T) {
	l := newLab(t, registry.Options{})
	web := l.create(l, atoll.Spec{Name: "web"})
	gone, err := l.engine.Get(t.Context(), web.ID())
	if err == nil {
		err = gone.Remove(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	l.create(l, atoll.Spec{Name: "web"})
	l.create(l, atoll.Spec{ID: web.ID()})
	if _, err := l.Create(t.Context(), &atoll.Spec{Name: "web"}); atoll.KindOf(err) != atoll.ErrAlreadyExists {
		t.Errorf("Create: %v, want ErrAlreadyExists", err)
	}
}

func TestFailed(t *testing.T) {
	for policy, want := range map[registry.Policy]string{
		"": "failed nothing", registry.Keep: "failed nothing", registry.Restart: "failed restarted", registry.Rebuild: "failed rebuilt",
	} {
		t.Run(string(policy), func(t *testing.T) {
			l := newLab(t, registry.Options{Failed: policy})
			sb := l.failedOnce(atoll.Spec{Name: "web", Labels: map[string]string{"a": "b"}})
			raw := l.secretOf(sb.ID())
			if err := atoll.WriteFile(t.Context(), sb, "kept", []byte("x"), 0); err != nil {
				t.Fatal(err)
			}
			l.reconcile(registry.ReconcileOptions{DryRun: true}, 0, map[string]string{sb.ID(): want})
			if state := l.state(sb); state != atoll.StateFailed {
				t.Errorf("after a dry run the sandbox is %s", state)
			}
			l.reconcile(registry.ReconcileOptions{}, 0, map[string]string{sb.ID(): want})
			if policy == "" || policy == registry.Keep {
				return
			}
			l.reconcile(registry.ReconcileOptions{}, 1, none)
			l.sameAs(sb.ID(), raw, atoll.StateRunning)
		})
	}
}

// failedOnce makes a sandbox of which the main process has failed.
func (l *lab) failedOnce(spec atoll.Spec) atoll.Sandbox {
	l.t.Helper()
	spec.Cmd, spec.OpenStdin = []string{"cat"}, true
	sb := l.create(l, spec)
	main, err := sb.Process(l.t.Context(), atoll.MainProcess)
	if err == nil {
		err = main.Signal(l.t.Context(), atoll.SIGINT)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	for end := time.Now().Add(testenv.Scale(10 * time.Second)); l.state(sb) != atoll.StateFailed; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			l.t.Fatalf("the sandbox is %s", l.state(sb))
		}
	}
	return sb
}

func (l *lab) state(sb atoll.Sandbox) atoll.State {
	l.t.Helper()
	st, err := sb.Status(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	return st.State
}

// One whose time is limited gets no more of it by failing: made again, it would
// begin anew.
func TestFailedWithLimitedTime(t *testing.T) {
	l := newLab(t, registry.Options{Failed: registry.Rebuild})
	sb := l.failedOnce(atoll.Spec{TTL: atoll.Duration(time.Hour)})
	before, err := sb.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{sb.ID(): "failed nothing"}
	l.reconcile(registry.ReconcileOptions{DryRun: true}, 0, want)
	l.reconcile(registry.ReconcileOptions{Force: true}, 0, want)
	if after, err := sb.Status(t.Context()); err != nil || before.Expires.IsZero() || !after.Expires.Equal(before.Expires) {
		t.Errorf("it expires at %v, %v; want %v", after.Expires, err, before.Expires)
	}
}

// sameAs checks that the sandbox "web" is there, with its secret and its data.
func (l *lab) sameAs(id, raw string, state atoll.State) {
	l.t.Helper()
	sb, err := atoll.Resolve(l.t.Context(), l, "", "web")
	if err != nil || sb.ID() != id {
		l.t.Fatalf("Resolve: %v, %v", sb, err)
	}
	st, err := sb.Status(l.t.Context())
	if err != nil || st.State != state || st.Spec.Labels["a"] != "b" || len(st.Spec.Env) != 0 {
		l.t.Errorf("the status is %+v, %v", st, err)
	}
	if l.secretOf(id) != raw {
		l.t.Error("the secret is another one")
	}
	if state == atoll.StateRunning && !secret.Check(l.inside(sb), raw) {
		l.t.Error("the hash inside is that of another secret")
	}
	if b, err := atoll.ReadFile(l.t.Context(), sb, "kept"); string(b) != "x" {
		l.t.Errorf("on the data volume: %q, %v", b, err)
	}
}

func TestOutdated(t *testing.T) {
	l := newLab(t, registry.Options{})
	idle := l.create(l, atoll.Spec{Name: "web", Image: image, Labels: map[string]string{"a": "b"}})
	busy := l.create(l, atoll.Spec{Image: image})
	stopped := l.create(l, atoll.Spec{Image: image})
	brief := l.create(l, atoll.Spec{Image: image, TTL: atoll.Duration(time.Hour)})
	plain := l.create(l, atoll.Spec{})
	if err := atoll.WriteFile(t.Context(), idle, "kept", []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	if err := stopped.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	proc, err := busy.Exec(t.Context(), &atoll.Command{Args: []string{"cat"}, OpenStdin: true})
	if err != nil {
		t.Fatal(err)
	}
	raw, hash := l.secretOf(idle.ID()), l.inside(idle)
	l.reconcile(registry.ReconcileOptions{}, 5, none)

	l.release("2")
	want := map[string]string{idle.ID(): "outdated rebuilt", busy.ID(): "outdated nothing", stopped.ID(): "outdated rebuilt"}
	l.reconcile(registry.ReconcileOptions{DryRun: true}, 2, want)
	if l.inside(idle) != hash {
		t.Error("a dry run has changed something")
	}
	l.reconcile(registry.ReconcileOptions{}, 2, want)
	l.sameAs(idle.ID(), raw, atoll.StateRunning)
	made, err := l.Get(t.Context(), stopped.ID())
	if err != nil {
		t.Fatal(err)
	}
	if st, err := made.Status(t.Context()); err != nil || st.State != atoll.StateCreated {
		t.Errorf("the one that was stopped: %+v, %v", st, err)
	}
	if err := proc.Signal(t.Context(), atoll.SIGCONT); err != nil {
		t.Errorf("the command has been ended: %v", err)
	}
	l.reconcile(registry.ReconcileOptions{}, 4, map[string]string{busy.ID(): "outdated nothing"})
	l.reconcile(registry.ReconcileOptions{Force: true}, 4, map[string]string{busy.ID(): "outdated rebuilt"})
	l.reconcile(registry.ReconcileOptions{}, 5, none)
	for _, sb := range []atoll.Sandbox{brief, plain} {
		if !l.has(sb.ID()) {
			t.Error("one that was none of this is gone")
		}
	}
}

// A command that is started while its sandbox is rebuilt waits, and runs.
func TestExecWhileRebuilt(t *testing.T) {
	var during sync.WaitGroup
	var sb atoll.Sandbox
	l := newLab(t, registry.Options{}.WithStep(func(name string) {
		if name != "half rebuilt" {
			return
		}
		for range 4 {
			during.Go(func() {
				if err := atoll.Run(t.Context(), sb, &atoll.Command{Args: []string{"true"}}); err != nil {
					t.Errorf("Run: %v", err)
				}
			})
		}
	}))
	sb = l.create(l, atoll.Spec{Image: image})
	l.release("2")
	l.reconcile(registry.ReconcileOptions{}, 0, map[string]string{sb.ID(): "outdated rebuilt"})
	during.Wait()
}

// Of what is not written down, only what was made with this store is removed.
func TestOrphans(t *testing.T) {
	for policy, want := range map[registry.Policy]string{"": "orphan removed", registry.Keep: "orphan adopted"} {
		t.Run(string(policy), func(t *testing.T) {
			l := newLab(t, registry.Options{Orphans: policy})
			before := l.create(l.engine, atoll.Spec{Name: "before"}) // by a program without a store
			if _, err := l.store.Identity(t.Context()); err != nil { // which is born now
				t.Fatal(err)
			}
			time.Sleep(2 * time.Millisecond) // its birth is known to the millisecond
			after := l.create(l.engine, atoll.Spec{Name: "after"})
			there := openOther(t, l)
			theirs := l.create(there, atoll.Spec{Name: "theirs"}) // by another server
			healthy, orphan := l.create(l, atoll.Spec{}), l.create(l, atoll.Spec{Name: "orphan"})
			if err := atoll.WriteFile(t.Context(), orphan, "kept", []byte("x"), 0); err != nil {
				t.Fatal(err)
			}
			l.lose(orphan.ID())

			found := map[string]string{before.ID(): "unknown adopted", orphan.ID(): want}
			l.reconcile(registry.ReconcileOptions{DryRun: true}, 1, found)
			if l.written(before.ID()) != "" || !l.has(orphan.ID()) {
				t.Error("a dry run has changed something")
			}
			l.reconcile(registry.ReconcileOptions{}, 1, found)
			for _, sb := range []atoll.Sandbox{before, after, theirs, healthy} {
				if !l.has(sb.ID()) {
					t.Errorf("%s, which is no orphan, was removed", sb.ID())
				}
			}
			if l.has(orphan.ID()) != (policy == registry.Keep) || !l.hasData(orphan.ID()) {
				t.Errorf("the orphan is there: %v, its data: %v", l.has(orphan.ID()), l.hasData(orphan.ID()))
			}
			if l.written(before.ID()) != store.Present || l.written(after.ID()) != "" || l.written(theirs.ID()) != "" {
				t.Error("not what was there before the store, and that alone, was written down")
			}
			if _, err := atoll.Secret(t.Context(), l, before.ID()); atoll.KindOf(err) != atoll.ErrNotExist {
				t.Errorf("Secret of one that has none: %v, want ErrNotExist", err)
			}
			l.reconcile(registry.ReconcileOptions{}, map[registry.Policy]int{"": 2, registry.Keep: 3}[policy], none)
			if _, err := there.Reconcile(t.Context(), registry.ReconcileOptions{}); err != nil {
				t.Error(err)
			}
			if !l.has(healthy.ID()) || !l.has(theirs.ID()) {
				t.Error("another server that shares the engine has removed a sandbox")
			}
		})
	}
}

// A program that asks another backend, as one with another address of an engine,
// has none of the sandboxes. Those who ask the right one have all of them.
func TestAnotherBackend(t *testing.T) {
	l := newLab(t, registry.Options{})
	sb := l.create(l, atoll.Spec{Name: "web", Labels: map[string]string{"a": "b"}})
	if err := atoll.WriteFile(t.Context(), sb, "kept", []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	raw := l.secretOf(sb.ID())
	s := teststore.Open(l.dir)
	defer s.Close()
	wrong := registry.New(openEngine(t, t.TempDir()), s, registry.Options{Server: true})
	for range 2 {
		if _, err := wrong.Reconcile(t.Context(), registry.ReconcileOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]string{sb.ID(): "orphan adopted"}
	l.reconcile(registry.ReconcileOptions{DryRun: true}, 0, want)
	l.reconcile(registry.ReconcileOptions{}, 0, want)
	l.reconcile(registry.ReconcileOptions{}, 1, none)
	l.sameAs(sb.ID(), raw, atoll.StateRunning)
}

// Of what goes by itself, as it was meant to, nothing is remembered.
func TestNothingOfTheExpired(t *testing.T) {
	l := newLab(t, registry.Options{})
	ids := []string{
		l.create(l, atoll.Spec{TTL: atoll.Duration(time.Millisecond)}).ID(),
		l.create(l, atoll.Spec{Cmd: []string{"true"}, AutoRemove: true}).ID(),
	}
	for _, id := range ids {
		if sb, err := l.engine.Get(t.Context(), id); err == nil { // before its time
			if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
				t.Fatal(err)
			}
		}
	}
	l.reconcile(registry.ReconcileOptions{}, 0, none)
	for _, id := range ids {
		if is, err := l.store.Forgotten(t.Context(), id); is || err != nil || l.written(id) != "" {
			t.Errorf("it is written down as %q; its end is remembered: %v, %v", l.written(id), is, err)
		}
		if _, err := l.store.Secret(t.Context(), id); atoll.KindOf(err) != atoll.ErrNotExist {
			t.Errorf("Secret: %v, want ErrNotExist", err)
		}
	}
}

// openOther is the ledger of another server on the engine of l.
func openOther(t *testing.T, l *lab) *registry.Provider {
	t.Helper()
	s := teststore.Open(t.TempDir())
	t.Cleanup(func() { s.Close() })
	return registry.New(l.engine, s, registry.Options{Server: true})
}

// lose deletes what is written down of a sandbox.
func (l *lab) lose(id string) {
	l.t.Helper()
	r, err := l.store.Find(l.t.Context(), id)
	if err == nil {
		err = l.store.Delete(l.t.Context(), r, false)
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

// A store that is new or was lost removes nothing.
func TestLostStore(t *testing.T) {
	dir := t.TempDir()
	l := openLab(t, dir, registry.Options{})
	sb := l.create(l, atoll.Spec{Name: "web"})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Millisecond)
	s, e := teststore.Open(t.TempDir()), openEngine(t, dir)
	p := registry.New(e, s, registry.Options{Server: true})
	defer p.Close()
	sum, err := p.Reconcile(t.Context(), registry.ReconcileOptions{})
	if err != nil || len(sum.Findings) != 1 || sum.Findings[0].Done != registry.DoneAdopted || sum.Findings[0].Name != "web" {
		t.Errorf("Reconcile: %+v, %v", sum, err)
	}
	if _, err := p.Get(t.Context(), sb.ID()); err != nil {
		t.Errorf("Get: %v", err)
	}
	if _, err := p.Create(t.Context(), &atoll.Spec{Name: "web"}); atoll.KindOf(err) != atoll.ErrAlreadyExists {
		t.Errorf("Create of its name: %v, want ErrAlreadyExists", err)
	}
}

func TestSecretsAreForgotten(t *testing.T) {
	l := newLab(t, registry.Options{})
	kept, dropped := l.create(l, atoll.Spec{}), l.create(l, atoll.Spec{})
	for _, sb := range []atoll.Sandbox{kept, dropped} {
		if err := sb.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := atoll.RemoveVolume(t.Context(), l, atoll.DefaultProject, "data-"+dropped.ID()); err != nil {
		t.Fatal(err)
	}
	l.reconcile(registry.ReconcileOptions{}, 0, none)
	if _, err := l.store.Secret(t.Context(), kept.ID()); err != nil {
		t.Errorf("the secret of a data volume that is kept: %v", err)
	}
	if _, err := l.store.Secret(t.Context(), dropped.ID()); atoll.KindOf(err) != atoll.ErrNotExist {
		t.Errorf("the secret of what has gone altogether: %v", err)
	}
}

// The secret is in no log and no trace, whatever is done and however much is
// logged.
func TestSecretIsNotLogged(t *testing.T) {
	var log bytes.Buffer
	logger := slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug - 4, AddSource: true}))
	l := newLab(t, registry.Options{Log: logger})
	p := trace.New(l, trace.Options{Log: logger})
	sb := l.create(p, atoll.Spec{Name: "web", Image: image})
	raw := l.secretOf(sb.ID())
	if got, err := atoll.Secret(t.Context(), p, sb.ID()); got != raw || err != nil {
		t.Errorf("Secret: %v", err)
	}
	hash := l.inside(sb)
	l.release("2")
	sum, err := registry.Reconcile(t.Context(), p, registry.ReconcileOptions{})
	if err != nil {
		t.Error(err)
	}
	all, err := p.List(t.Context(), atoll.Filter{})
	if err != nil {
		t.Error(err)
	}
	if _, err := p.Create(t.Context(), &atoll.Spec{Name: "web"}); err == nil {
		t.Error("a name was given twice")
	}
	if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Error(err)
	}
	told := log.String() + asJSON(t, sum) + asJSON(t, all)
	for _, word := range []string{raw, hash} {
		if strings.Contains(told, word) {
			t.Errorf("%s is told:\n%s", word, told)
		}
	}
	if !strings.Contains(told, `"op":"secret"`) {
		t.Error("that a secret was read is not logged")
	}
}

func TestFifty(t *testing.T) {
	l := newLab(t, registry.Options{})
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() { l.create(l, atoll.Spec{Image: image}) })
	}
	all.Wait()
	begun := time.Now()
	l.reconcile(registry.ReconcileOptions{}, 50, none)
	t.Logf("50 healthy ones: %v", time.Since(begun))
	l.release("2")
	begun = time.Now()
	sum, err := l.Reconcile(t.Context(), registry.ReconcileOptions{})
	if err != nil || len(sum.Findings) != 50 {
		t.Errorf("Reconcile: %+v, %v", sum, err)
	}
	t.Logf("50 rebuilt: %v", time.Since(begun))
	l.reconcile(registry.ReconcileOptions{}, 50, none)
}

// Two servers with one state directory do not do things twice.
func TestTwoReconcile(t *testing.T) {
	a := newLab(t, registry.Options{})
	s := teststore.Open(a.dir)
	defer s.Close()
	b := registry.New(a.engine, s, registry.Options{Server: true})
	var ids []string
	for range 10 {
		ids = append(ids, a.create(a, atoll.Spec{Image: image}).ID())
	}
	a.release("2")
	rebuilt := map[string]int{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, p := range []*registry.Provider{a.Provider, b} {
		all.Go(func() {
			sum, err := p.Reconcile(t.Context(), registry.ReconcileOptions{})
			if err != nil {
				t.Errorf("Reconcile: %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, f := range sum.Findings {
				if f.Done == registry.DoneRebuilt {
					rebuilt[f.ID]++
				}
			}
		})
	}
	all.Wait()
	for _, id := range ids {
		if rebuilt[id] != 1 || !a.has(id) {
			t.Errorf("%s was rebuilt %d times; it is there: %v", id, rebuilt[id], a.has(id))
		}
	}
	a.reconcile(registry.ReconcileOptions{}, 10, none)
}
