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
	"github.com/seed46cd37a8/atoll/layer/system"
	"github.com/seed46cd37a8/atoll/layer/trace"
	"github.com/seed46cd37a8/atoll/provider/secret"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// noFindings are the findings when nothing is wrong.
var noFindings = map[string]string{}

func TestMissing(t *testing.T) {
	l := newFixture(t, registry.Options{})
	web, other := l.mustCreate(l, atoll.Spec{Name: "web"}), l.mustCreate(l, atoll.Spec{})
	gone, err := l.engine.Get(t.Context(), web.ID())
	if err == nil {
		err = gone.Remove(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := atoll.SecretOf(t.Context(), l, web.ID()); atoll.KindOf(err) != atoll.ErrNotFound {
		t.Errorf("Secret: %v, want ErrNotFound", err)
	}
	want := map[string]string{web.ID(): "missing forgotten"}
	l.wantReconcile(registry.ReconcileOptions{DryRun: true}, 1, want)
	l.wantReconcile(registry.ReconcileOptions{}, 1, want)
	l.wantReconcile(registry.ReconcileOptions{}, 1, noFindings)
	if !l.exists(other.ID()) {
		t.Error("another sandbox has been removed")
	}
	again := l.mustCreate(l, atoll.Spec{Name: "web"})
	if again.ID() == web.ID() {
		t.Error("two sandboxes have the same id")
	}
}

// Without a Reconcile, the name of a sandbox that is gone is free at once.
func TestMissingName(t *testing.T) {
	l := newFixture(t, registry.Options{})
	web := l.mustCreate(l, atoll.Spec{Name: "web"})
	gone, err := l.engine.Get(t.Context(), web.ID())
	if err == nil {
		err = gone.Remove(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	l.mustCreate(l, atoll.Spec{Name: "web"})
	l.mustCreate(l, atoll.Spec{ID: web.ID()})
	if _, err := l.Create(t.Context(), &atoll.Spec{Name: "web"}); atoll.KindOf(err) != atoll.ErrAlreadyExists {
		t.Errorf("Create: %v, want ErrAlreadyExists", err)
	}
}

func TestFailed(t *testing.T) {
	for policy, want := range map[registry.Policy]string{
		"": "failed nothing", registry.Keep: "failed nothing", registry.Restart: "failed restarted", registry.Rebuild: "failed rebuilt",
	} {
		t.Run(string(policy), func(t *testing.T) {
			l := newFixture(t, registry.Options{Failed: policy})
			sb := l.createFailed(atoll.Spec{Name: "web", Labels: map[string]string{"a": "b"}})
			raw := l.secretOf(sb.ID())
			if err := atoll.WriteFile(t.Context(), sb, "kept", []byte("x"), 0); err != nil {
				t.Fatal(err)
			}
			l.wantReconcile(registry.ReconcileOptions{DryRun: true}, 0, map[string]string{sb.ID(): want})
			if state := l.state(sb); state != atoll.StateFailed {
				t.Errorf("after a dry run the sandbox is %s", state)
			}
			l.wantReconcile(registry.ReconcileOptions{}, 0, map[string]string{sb.ID(): want})
			if policy == "" || policy == registry.Keep {
				return
			}
			l.wantReconcile(registry.ReconcileOptions{}, 1, noFindings)
			l.checkSame(sb.ID(), raw, atoll.StateRunning)
		})
	}
}

// createFailed creates a sandbox whose main process has failed.
func (l *fixture) createFailed(spec atoll.Spec) atoll.Sandbox {
	l.t.Helper()
	spec.Cmd, spec.OpenStdin = []string{"cat"}, true
	sb := l.mustCreate(l, spec)
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

func (l *fixture) state(sb atoll.Sandbox) atoll.State {
	l.t.Helper()
	st, err := sb.Status(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	return st.State
}

// A sandbox with a TTL is not rebuilt after a failure, because that would restart
// its TTL.
func TestFailedWithLimitedTime(t *testing.T) {
	l := newFixture(t, registry.Options{Failed: registry.Rebuild})
	sb := l.createFailed(atoll.Spec{TTL: atoll.Duration(time.Hour)})
	before, err := sb.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{sb.ID(): "failed nothing"}
	l.wantReconcile(registry.ReconcileOptions{DryRun: true}, 0, want)
	l.wantReconcile(registry.ReconcileOptions{Force: true}, 0, want)
	if after, err := sb.Status(t.Context()); err != nil || before.Expires.IsZero() || !after.Expires.Equal(before.Expires) {
		t.Errorf("sandbox expires at %v, %v; want %v", after.Expires, err, before.Expires)
	}
}

// checkSame checks that the sandbox "web" exists in a state, with its secret and
// its data.
func (l *fixture) checkSame(id, raw string, state atoll.State) {
	l.t.Helper()
	sb, err := atoll.Resolve(l.t.Context(), l, "", "web")
	if err != nil || sb.ID() != id {
		l.t.Fatalf("Resolve: %v, %v", sb, err)
	}
	st, err := sb.Status(l.t.Context())
	if err != nil || st.State != state || st.Spec.Labels["a"] != "b" || len(st.Spec.Env) != 0 {
		l.t.Errorf("got status %+v, %v", st, err)
	}
	if l.secretOf(id) != raw {
		l.t.Error("the secret has changed")
	}
	if state == atoll.StateRunning && !secret.Check(l.hashInside(sb), raw) {
		l.t.Error("the sandbox has the hash of another secret")
	}
	if b, err := atoll.ReadFile(l.t.Context(), sb, "kept"); string(b) != "x" {
		l.t.Errorf("on the data volume: %q, %v", b, err)
	}
}

func TestOutdated(t *testing.T) {
	l := newFixture(t, registry.Options{})
	idle := l.mustCreate(l, atoll.Spec{Name: "web", Image: image, Labels: map[string]string{"a": "b"}})
	busy := l.mustCreate(l, atoll.Spec{Image: image})
	stopped := l.mustCreate(l, atoll.Spec{Image: image})
	brief := l.mustCreate(l, atoll.Spec{Image: image, TTL: atoll.Duration(time.Hour)})
	plain := l.mustCreate(l, atoll.Spec{})
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
	raw, hash := l.secretOf(idle.ID()), l.hashInside(idle)
	l.wantReconcile(registry.ReconcileOptions{}, 5, noFindings)

	l.releaseImage("2")
	want := map[string]string{idle.ID(): "outdated rebuilt", busy.ID(): "outdated nothing", stopped.ID(): "outdated rebuilt"}
	l.wantReconcile(registry.ReconcileOptions{DryRun: true}, 2, want)
	if l.hashInside(idle) != hash {
		t.Error("a dry run changed a sandbox")
	}
	l.wantReconcile(registry.ReconcileOptions{}, 2, want)
	l.checkSame(idle.ID(), raw, atoll.StateRunning)
	made, err := l.Get(t.Context(), stopped.ID())
	if err != nil {
		t.Fatal(err)
	}
	if st, err := made.Status(t.Context()); err != nil || st.State != atoll.StateCreated {
		t.Errorf("the stopped sandbox: %+v, %v", st, err)
	}
	if err := proc.Signal(t.Context(), atoll.SIGCONT); err != nil {
		t.Errorf("the command has ended: %v", err)
	}
	l.wantReconcile(registry.ReconcileOptions{}, 4, map[string]string{busy.ID(): "outdated nothing"})
	l.wantReconcile(registry.ReconcileOptions{Force: true}, 4, map[string]string{busy.ID(): "outdated rebuilt"})
	l.wantReconcile(registry.ReconcileOptions{}, 5, noFindings)
	for _, sb := range []atoll.Sandbox{brief, plain} {
		if !l.exists(sb.ID()) {
			t.Error("Reconcile removed an unrelated sandbox")
		}
	}
}

// Exec waits during a rebuild, then runs the command.
func TestExecWhileRebuilt(t *testing.T) {
	var during sync.WaitGroup
	var sb atoll.Sandbox
	l := newFixture(t, registry.Options{}.WithStep(func(name string) {
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
	sb = l.mustCreate(l, atoll.Spec{Image: image})
	l.releaseImage("2")
	l.wantReconcile(registry.ReconcileOptions{}, 0, map[string]string{sb.ID(): "outdated rebuilt"})
	during.Wait()
}

// Of sandboxes without a record, Reconcile removes only those made with this store.
func TestOrphans(t *testing.T) {
	for policy, want := range map[registry.Policy]string{"": "orphan removed", registry.Keep: "orphan adopted"} {
		t.Run(string(policy), func(t *testing.T) {
			l := newFixture(t, registry.Options{Orphans: policy})
			before := l.mustCreate(l.engine, atoll.Spec{Name: "before"}) // by a program without a store
			if _, err := l.store.Identity(t.Context()); err != nil {     // creates the identity
				t.Fatal(err)
			}
			time.Sleep(2 * time.Millisecond) // the identity's time is in milliseconds
			after := l.mustCreate(l.engine, atoll.Spec{Name: "after"})
			there := openOther(t, l)
			theirs := l.mustCreate(there, atoll.Spec{Name: "theirs"}) // by another server
			healthy, orphan := l.mustCreate(l, atoll.Spec{}), l.mustCreate(l, atoll.Spec{Name: "orphan"})
			if err := atoll.WriteFile(t.Context(), orphan, "kept", []byte("x"), 0); err != nil {
				t.Fatal(err)
			}
			l.deleteRecord(orphan.ID())

			found := map[string]string{before.ID(): "unknown adopted", orphan.ID(): want}
			l.wantReconcile(registry.ReconcileOptions{DryRun: true}, 1, found)
			if l.recordState(before.ID()) != "" || !l.exists(orphan.ID()) {
				t.Error("a dry run changed a sandbox")
			}
			l.wantReconcile(registry.ReconcileOptions{}, 1, found)
			for _, sb := range []atoll.Sandbox{before, after, theirs, healthy} {
				if !l.exists(sb.ID()) {
					t.Errorf("%s, which is no orphan, was removed", sb.ID())
				}
			}
			if l.exists(orphan.ID()) != (policy == registry.Keep) || !l.hasData(orphan.ID()) {
				t.Errorf("the orphan exists: %v, its data: %v", l.exists(orphan.ID()), l.hasData(orphan.ID()))
			}
			if l.recordState(before.ID()) != store.Present || l.recordState(after.ID()) != "" || l.recordState(theirs.ID()) != "" {
				t.Error("Reconcile did not adopt exactly the sandbox older than the store")
			}
			if _, err := atoll.SecretOf(t.Context(), l, before.ID()); atoll.KindOf(err) != atoll.ErrNotExist {
				t.Errorf("Secret of an adopted sandbox: %v, want ErrNotExist", err)
			}
			l.wantReconcile(registry.ReconcileOptions{}, map[registry.Policy]int{"": 2, registry.Keep: 3}[policy], noFindings)
			if _, err := there.Reconcile(t.Context(), registry.ReconcileOptions{}); err != nil {
				t.Error(err)
			}
			if !l.exists(healthy.ID()) || !l.exists(theirs.ID()) {
				t.Error("another server that shares the engine has removed a sandbox")
			}
		})
	}
}

// A program with another backend, such as another address of an engine, finds none
// of the sandboxes. A program with the right one finds all of them.
func TestAnotherBackend(t *testing.T) {
	l := newFixture(t, registry.Options{})
	sb := l.mustCreate(l, atoll.Spec{Name: "web", Labels: map[string]string{"a": "b"}})
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
	l.wantReconcile(registry.ReconcileOptions{DryRun: true}, 0, want)
	l.wantReconcile(registry.ReconcileOptions{}, 0, want)
	l.wantReconcile(registry.ReconcileOptions{}, 1, noFindings)
	l.checkSame(sb.ID(), raw, atoll.StateRunning)
}

// The registry remembers nothing of sandboxes that ended as their spec says.
func TestExpiredIsForgotten(t *testing.T) {
	l := newFixture(t, registry.Options{})
	ids := []string{
		l.mustCreate(l, atoll.Spec{TTL: atoll.Duration(time.Millisecond)}).ID(),
		l.mustCreate(l, atoll.Spec{Cmd: []string{"true"}, AutoRemove: true}).ID(),
	}
	for _, id := range ids {
		if sb, err := l.engine.Get(t.Context(), id); err == nil { // not expired yet
			if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
				t.Fatal(err)
			}
		}
	}
	l.wantReconcile(registry.ReconcileOptions{}, 0, noFindings)
	for _, id := range ids {
		if is, err := l.store.Forgotten(t.Context(), id); is || err != nil || l.recordState(id) != "" {
			t.Errorf("record is %q; its end is remembered: %v, %v", l.recordState(id), is, err)
		}
		if _, err := l.store.Secret(t.Context(), id); atoll.KindOf(err) != atoll.ErrNotExist {
			t.Errorf("Secret: %v, want ErrNotExist", err)
		}
	}
}

// openOther returns the registry of another server on the engine of l.
func openOther(t *testing.T, l *fixture) *registry.Provider {
	t.Helper()
	s := teststore.Open(t.TempDir())
	t.Cleanup(func() { s.Close() })
	return registry.New(l.engine, s, registry.Options{Server: true})
}

// deleteRecord deletes the record of a sandbox.
func (l *fixture) deleteRecord(id string) {
	l.t.Helper()
	r, err := l.store.Find(l.t.Context(), id)
	if err == nil {
		err = l.store.Delete(l.t.Context(), r, false)
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

// With a new store, Reconcile removes nothing.
func TestLostStore(t *testing.T) {
	dir := t.TempDir()
	l := openFixture(t, dir, registry.Options{})
	sb := l.mustCreate(l, atoll.Spec{Name: "web"})
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
	l := newFixture(t, registry.Options{})
	kept, dropped := l.mustCreate(l, atoll.Spec{}), l.mustCreate(l, atoll.Spec{})
	for _, sb := range []atoll.Sandbox{kept, dropped} {
		if err := sb.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := atoll.RemoveVolume(t.Context(), l, atoll.DefaultProject, "data-"+dropped.ID()); err != nil {
		t.Fatal(err)
	}
	l.wantReconcile(registry.ReconcileOptions{}, 0, noFindings)
	if _, err := l.store.Secret(t.Context(), kept.ID()); err != nil {
		t.Errorf("the secret of an existing data volume: %v", err)
	}
	if _, err := l.store.Secret(t.Context(), dropped.ID()); atoll.KindOf(err) != atoll.ErrNotExist {
		t.Errorf("the secret of a removed data volume: %v", err)
	}
}

// No log and no trace contains the secret, at any level.
func TestSecretIsNotLogged(t *testing.T) {
	var log bytes.Buffer
	logger := slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug - 4, AddSource: true}))
	l := newFixture(t, registry.Options{Log: logger})
	p := system.New(trace.New(l, trace.Options{Log: logger}), system.Options{})
	sb := l.mustCreate(p, atoll.Spec{Name: "web", Image: image})
	raw := l.secretOf(sb.ID())
	if got, err := atoll.SecretOf(t.Context(), p, sb.ID()); got != raw || err != nil {
		t.Errorf("Secret: %v", err)
	}
	hash := l.hashInside(sb)
	l.releaseImage("2")
	sum, err := registry.Reconcile(t.Context(), p, registry.ReconcileOptions{})
	if err != nil {
		t.Error(err)
	}
	all, err := p.List(t.Context(), atoll.Filter{})
	if err != nil {
		t.Error(err)
	}
	if _, err := p.Create(t.Context(), &atoll.Spec{Name: "web"}); err == nil {
		t.Error("two sandboxes have the same name")
	}
	if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Error(err)
	}
	output := log.String() + asJSON(t, sum) + asJSON(t, all)
	for _, word := range []string{raw, hash} {
		if strings.Contains(output, word) {
			t.Errorf("the output contains %s:\n%s", word, output)
		}
	}
	if !strings.Contains(output, `"op":"secret"`) {
		t.Error("the log does not show that a secret was read")
	}
}

func TestFifty(t *testing.T) {
	l := newFixture(t, registry.Options{})
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() { l.mustCreate(l, atoll.Spec{Image: image}) })
	}
	all.Wait()
	begun := time.Now()
	l.wantReconcile(registry.ReconcileOptions{}, 50, noFindings)
	t.Logf("50 healthy sandboxes: %v", time.Since(begun))
	l.releaseImage("2")
	begun = time.Now()
	sum, err := l.Reconcile(t.Context(), registry.ReconcileOptions{})
	if err != nil || len(sum.Findings) != 50 {
		t.Errorf("Reconcile: %+v, %v", sum, err)
	}
	t.Logf("50 rebuilt: %v", time.Since(begun))
	l.wantReconcile(registry.ReconcileOptions{}, 50, noFindings)
}

// Two servers with one state directory rebuild each sandbox once.
func TestTwoReconcile(t *testing.T) {
	a := newFixture(t, registry.Options{})
	s := teststore.Open(a.dir)
	defer s.Close()
	b := registry.New(a.engine, s, registry.Options{Server: true})
	var ids []string
	for range 10 {
		ids = append(ids, a.mustCreate(a, atoll.Spec{Image: image}).ID())
	}
	a.releaseImage("2")
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
		if rebuilt[id] != 1 || !a.exists(id) {
			t.Errorf("%s was rebuilt %d times; it exists: %v", id, rebuilt[id], a.exists(id))
		}
	}
	a.wantReconcile(registry.ReconcileOptions{}, 10, noFindings)
}
