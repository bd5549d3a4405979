package registry_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/teststore"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// With killAt and makerDir set, the test binary creates the sandbox "web", does the
// operation in killIn, and kills itself after the step in killAt.
const (
	killAt = "ATOLL_TEST_KILL_AT"
	killIn = "ATOLL_TEST_KILL_IN"
)

const killedID = "6f9619ff8b864011b42d00cf4fc964ff"

func webSpec() atoll.Spec {
	return atoll.Spec{ID: killedID, Name: "web", Image: image, Labels: map[string]string{"a": "b"}}
}

func dieAt(dir, step, in string) error {
	opts := registry.Options{Server: true}.WithStep(func(name string) {
		if name == step {
			if self, err := os.FindProcess(os.Getpid()); err == nil {
				self.Kill()
			}
			select {}
		}
	})
	e, err := newEngine(dir)
	if err != nil {
		return err
	}
	p := registry.New(e, teststore.OpenFor(dir, teststore.ShortLease), opts)
	ctx := context.Background()
	spec := webSpec()
	sb, err := p.Create(ctx, &spec)
	if err == nil {
		err = atoll.WriteFile(ctx, sb, "kept", []byte("x"), 0)
	}
	if err != nil {
		return err
	}
	switch in {
	case "remove":
		err = sb.Remove(ctx)
	case "remove with volumes":
		err = sb.Remove(ctx, atoll.RemoveVolumes())
	case "rebuild":
		if err = e.releaseImage("2"); err == nil {
			_, err = p.Reconcile(ctx, registry.ReconcileOptions{})
		}
	}
	return errors.Join(err, errors.New("the step to die at was not reached"))
}

// openKilled runs a program that dies after a step, and opens what it left.
func openKilled(t *testing.T, step, in string) *fixture {
	t.Helper()
	dir, cmd := t.TempDir(), exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), makerDir+"="+dir, killAt+"="+step, killIn+"="+in)
	out, err := cmd.CombinedOutput()
	teststore.AfterKill(teststore.ShortLease)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Exited() {
		t.Fatalf("the program was not killed: %v\n%s", err, out)
	}
	l := openFixture(t, dir, registry.Options{})
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return l
}

// Whenever a program is killed, neither a sandbox nor a name is lost.
func TestKilled(t *testing.T) {
	for _, tt := range []struct {
		step, in string
		state    store.State // left by the program
		found    string
		there    bool // afterwards
		data     bool
		secret   bool
	}{
		{"intent", "create", store.Creating, "unfinished forgotten", false, false, false},
		{"made", "create", store.Creating, "unfinished finished", true, true, true},
		{"removing", "remove", store.Removing, "unfinished finished", false, true, true},
		{"removed", "remove", store.Removing, "unfinished finished", false, true, true},
		{"removing", "remove with volumes", store.Removing, "unfinished finished", false, false, false},
		{"removed", "remove with volumes", store.Removing, "unfinished finished", false, false, false},
		{"rebuilding", "rebuild", store.Rebuilding, "unfinished finished", true, true, true},
		{"half rebuilt", "rebuild", store.Rebuilding, "unfinished rebuilt", true, true, true},
		{"remade", "rebuild", store.Rebuilding, "unfinished finished", true, true, true},
	} {
		t.Run(tt.in+" "+tt.step, func(t *testing.T) {
			l := openKilled(t, tt.step, tt.in)
			if got := l.recordState(killedID); got != tt.state {
				t.Errorf("record is %q, want %q", got, tt.state)
			}
			raw, err := l.store.Secret(t.Context(), killedID)
			if err != nil {
				t.Fatalf("Secret: %v", err)
			}
			found := map[string]string{killedID: tt.found}
			l.wantReconcile(registry.ReconcileOptions{DryRun: true}, 0, found)
			if got := l.recordState(killedID); got != tt.state {
				t.Errorf("after a dry run, record is %q", got)
			}
			l.wantReconcile(registry.ReconcileOptions{}, 0, found)
			if l.exists(killedID) != tt.there || l.hasData(killedID) != tt.data {
				t.Errorf("sandbox exists: %v, its data: %v; want %v, %v", l.exists(killedID), l.hasData(killedID), tt.there, tt.data)
			}
			if kept, _ := l.store.Secret(t.Context(), killedID); (kept == raw) != tt.secret || kept != "" && kept != raw {
				t.Errorf("secret exists: %v, want %v", kept != "", tt.secret)
			}
			if tt.there {
				l.checkRecovered(t, raw, tt.step != "made")
				return
			}
			if got := l.recordState(killedID); got != "" {
				t.Errorf("record is %q", got)
			}
			l.mustCreate(l, webSpec())
		})
	}
}

// checkRecovered checks that after a start the sandbox is the original one.
func (l *fixture) checkRecovered(t *testing.T, raw string, written bool) {
	t.Helper()
	if got := l.recordState(killedID); got != store.Present {
		t.Errorf("record is %q", got)
	}
	spec := webSpec()
	if _, err := l.Create(t.Context(), &spec); atoll.KindOf(err) != atoll.ErrAlreadyExists {
		t.Errorf("Create: %v, want ErrAlreadyExists", err)
	}
	sb, err := l.Get(t.Context(), killedID)
	if err == nil {
		err = sb.Start(t.Context())
	}
	if err == nil && !written {
		err = atoll.WriteFile(t.Context(), sb, "kept", []byte("x"), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	l.checkSame(killedID, raw, atoll.StateRunning)
}

// Without a Reconcile, too, a name that a dead program used is free if its sandbox
// does not exist.
func TestKilledName(t *testing.T) {
	for _, tt := range []struct{ step, in string }{
		{"intent", "create"}, {"removing", "remove"}, {"removed", "remove"}, {"removed", "remove with volumes"},
	} {
		t.Run(tt.in+" "+tt.step, func(t *testing.T) {
			l := openKilled(t, tt.step, tt.in)
			l.mustCreate(l, atoll.Spec{Name: "web"})
			if l.exists(killedID) || l.recordState(killedID) != "" {
				t.Errorf("old sandbox exists: %v, its record is %q", l.exists(killedID), l.recordState(killedID))
			}
		})
	}
	t.Run("before its rebuild", func(t *testing.T) {
		l := openKilled(t, "half rebuilt", "rebuild")
		if _, err := l.Create(t.Context(), &atoll.Spec{Name: "web"}); atoll.KindOf(err) != atoll.ErrAlreadyExists {
			t.Errorf("Create: %v, want ErrAlreadyExists", err)
		}
	})
}

// Calls find a sandbox whose rebuild was interrupted.
func TestLost(t *testing.T) {
	find := func(t *testing.T) (*fixture, atoll.Sandbox) {
		l := openKilled(t, "half rebuilt", "rebuild")
		sb, err := atoll.Resolve(t.Context(), l, "", "web")
		if err != nil || sb.ID() != killedID {
			t.Fatalf("Resolve: %v, %v", sb, err)
		}
		st, err := sb.Status(t.Context())
		if err != nil || st.State != atoll.StateFailed || !strings.Contains(st.Reason, "rebuild interrupted") || st.Spec.Labels["a"] != "b" {
			t.Errorf("Status: %+v, %v", st, err)
		}
		l.checkListed(t, st)
		_, err = sb.Exec(t.Context(), &atoll.Command{Args: []string{"true"}})
		if atoll.KindOf(err) != atoll.ErrStopped {
			t.Errorf("Exec: %v, want ErrStopped", err)
		}
		if err := sb.Stop(t.Context(), 0); err != nil {
			t.Errorf("Stop: %v", err)
		}
		return l, sb
	}
	t.Run("Start", func(t *testing.T) {
		l, sb := find(t)
		if err := sb.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := atoll.Run(t.Context(), sb, &atoll.Command{Args: []string{"true"}}); err != nil {
			t.Errorf("Run: %v", err)
		}
		l.checkSame(killedID, l.secretOf(killedID), atoll.StateRunning)
	})
	t.Run("Remove", func(t *testing.T) {
		l, sb := find(t)
		if err := sb.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		if l.recordState(killedID) != "" || !l.hasData(killedID) {
			t.Errorf("record is %q; its data exists: %v", l.recordState(killedID), l.hasData(killedID))
		}
		if _, err := sb.Status(t.Context()); atoll.KindOf(err) != atoll.ErrNotFound {
			t.Errorf("Status: %v, want ErrNotFound", err)
		}
		if all, err := l.List(t.Context(), atoll.Filter{}); len(all) > 0 || err != nil {
			t.Errorf("List: %+v, %v", all, err)
		}
	})
	t.Run("Remove with volumes", func(t *testing.T) {
		l, sb := find(t)
		if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
			t.Fatal(err)
		}
		if l.recordState(killedID) != "" || l.hasData(killedID) {
			t.Errorf("record is %q; its data exists: %v", l.recordState(killedID), l.hasData(killedID))
		}
	})
}

// Of many programs that want the name of a dead program's sandbox at once, one gets
// it; the others get ErrAlreadyExists.
func TestKilledNameForMany(t *testing.T) {
	for _, tt := range []struct{ step, in string }{{"intent", "create"}, {"removing", "remove"}, {"removed", "remove"}} {
		t.Run(tt.in+" "+tt.step, func(t *testing.T) {
			l := openKilled(t, tt.step, tt.in)
			var all sync.WaitGroup
			var made atomic.Int32
			for range 8 {
				s := teststore.Open(l.dir)
				t.Cleanup(func() { s.Close() })
				p := registry.New(l.engine, s, registry.Options{Server: true})
				all.Go(func() {
					switch _, err := p.Create(t.Context(), &atoll.Spec{Name: "web"}); {
					case err == nil:
						made.Add(1)
					case atoll.KindOf(err) != atoll.ErrAlreadyExists:
						t.Errorf("Create: %v, want ErrAlreadyExists", err)
					}
				})
			}
			all.Wait()
			if n := made.Load(); n != 1 {
				t.Errorf("%d programs have got the name", n)
			}
		})
	}
}

// A creatingEngine reports all its sandboxes as being created.
type creatingEngine struct{ engine }

func (h creatingEngine) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	sb, err := h.engine.Get(ctx, id)
	return creatingSandbox{atoll.SandboxLayer{Sandbox: sb}}, err
}

func (h creatingEngine) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	all, err := h.engine.List(ctx, f)
	for i := range all {
		all[i].State = atoll.StateCreating
	}
	return all, err
}

type creatingSandbox struct{ atoll.SandboxLayer }

func (s creatingSandbox) Status(ctx context.Context) (atoll.Status, error) {
	st, err := s.SandboxLayer.Status(ctx)
	st.State = atoll.StateCreating
	return st, err
}

// Reconcile leaves an abandoned creation to the provider for a while, and then
// removes it, even if the clock was set back.
func TestAbandonedCreation(t *testing.T) {
	for _, tt := range []struct {
		name    string
		created time.Duration // from now
		removed bool
	}{{"just made", 0, false}, {"old", -time.Hour, true}, {"in the future", 24 * time.Hour, true}} {
		t.Run(tt.name, func(t *testing.T) {
			l := newFixture(t, registry.Options{})
			p := registry.New(creatingEngine{l.engine}, l.store, registry.Options{Server: true})
			sb := l.mustCreate(l.engine, atoll.Spec{})
			r := &store.Record{ID: sb.ID(), Scope: p.Info().Name, Spec: atoll.Spec{ID: sb.ID()}, State: store.Creating, Created: time.Now().Add(tt.created)}
			if _, err := l.store.Insert(t.Context(), r, "", store.Limits{}); err != nil {
				t.Fatal(err)
			}
			sum, err := p.Reconcile(t.Context(), registry.ReconcileOptions{})
			if removed := len(sum.Findings) == 1 && sum.Findings[0].Done == registry.DoneRemoved; err != nil || removed != tt.removed || l.exists(sb.ID()) == tt.removed {
				t.Errorf("Reconcile: %+v, %v; sandbox exists: %v", sum, err, l.exists(sb.ID()))
			}
		})
	}
}
