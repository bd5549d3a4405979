package pool_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/teststore"
	"github.com/seed46cd37a8/atoll/layer/pool"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/provider/mock"
)

// With leaverDir set, the test binary is a program with a pool in that directory.
// It prints what it has, and waits to be killed; with leaverStep, at that step.
const (
	leaverDir  = "ATOLL_TEST_LEAVER_DIR"
	leaverStep = "ATOLL_TEST_LEAVER_STEP"
)

// backend is a provider whose sandboxes are files, which outlive all programs.
type backend struct {
	atoll.ProviderLayer
	dir string
}

func openBackend(dir string) (backend, error) {
	p, err := mock.New(mock.Options{Dir: fmt.Sprintf("%s-of-%d", dir, os.Getpid())})
	return backend{atoll.ProviderLayer{Provider: p}, dir}, errors.Join(err, os.MkdirAll(dir, 0o700))
}

func (b backend) Info() atoll.Info {
	info := b.Provider.Info()
	info.Caps.Survives = true
	return info
}

func (b backend) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	sb, err := b.Provider.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	return fileSandbox{id: sb.ID(), b: b, Sandbox: sb}, os.WriteFile(filepath.Join(b.dir, sb.ID()), []byte(spec.Name), 0o600)
}

func (b backend) Get(_ context.Context, id string) (atoll.Sandbox, error) {
	if _, err := os.Stat(filepath.Join(b.dir, id)); err != nil {
		return nil, atoll.E("get", id, atoll.ErrNotFound, nil)
	}
	return fileSandbox{id: id, b: b}, nil
}

func (b backend) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	names, err := os.ReadDir(b.dir)
	var all []atoll.Status
	for _, n := range names {
		st, _ := fileSandbox{id: n.Name(), b: b}.Status(ctx)
		all = append(all, st)
	}
	return all, err
}

func (b backend) Resolve(ctx context.Context, project, name string) (string, error) {
	all, err := b.List(ctx, atoll.Filter{})
	for _, st := range all {
		if st.Spec.Name == name {
			return st.ID, nil
		}
	}
	return "", errors.Join(err, atoll.E("get", name, atoll.ErrNotFound, nil))
}

// A fileSandbox is a sandbox that exists as a file.
type fileSandbox struct {
	atoll.Sandbox // nil if another program created it
	id            string
	b             backend
}

func (s fileSandbox) ID() string { return s.id }
func (s fileSandbox) Status(context.Context) (atoll.Status, error) {
	name, err := os.ReadFile(filepath.Join(s.b.dir, s.id))
	if err != nil {
		return atoll.Status{}, atoll.E("status", s.id, atoll.ErrNotFound, nil)
	}
	return atoll.Status{ID: s.id, Provider: "mock", State: atoll.StateRunning, Ready: true, Spec: atoll.Spec{ID: s.id, Name: string(name), Project: "default"}, Caps: s.b.Info().Caps}, nil
}
func (s fileSandbox) Remove(context.Context, ...atoll.RemoveOption) error {
	err := os.Remove(filepath.Join(s.b.dir, s.id))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// listFiles returns the IDs of the sandboxes that exist.
func listFiles(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "backend"))
	if err != nil {
		t.Fatal(err)
	}
	ids := []string{}
	for _, e := range entries {
		ids = append(ids, e.Name())
	}
	return ids
}

func openFilePool(dir string, o pool.Options) (*pool.Provider, error) {
	b, err := openBackend(filepath.Join(dir, "backend"))
	if err != nil {
		return nil, err
	}
	return pool.New(registry.New(b, openStore(dir), registry.Options{Server: true}), openStore(dir), o)
}

func runLeaver(dir, step string) error {
	o := plainOptions(3)
	o.SetStep(func(name string) {
		if name == step {
			fmt.Println("at", name)
			select {}
		}
	})
	p, err := openFilePool(dir, o)
	if err != nil {
		return err
	}
	ctx := context.Background()
	for {
		r, err := pool.ReportOf(ctx, p)
		if err != nil {
			return err
		}
		if r.Pools[0].Warm == 3 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if step == "reserved" {
		id, err := p.Reserve(ctx, &atoll.Spec{Name: "mine"})
		fmt.Println("has", id)
		<-make(chan error)
		return err
	}
	sb, err := p.Create(ctx, &atoll.Spec{Name: "mine", Labels: map[string]string{"a": "b"}})
	if err != nil {
		return err
	}
	fmt.Println("has", sb.ID())
	select {}
}

// startLeaver starts a program that is to be killed. It returns the first line of
// its output, and a function that kills it.
func startLeaver(t *testing.T, dir, step string) (line string, kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), leaverDir+"="+dir, leaverStep+"="+step)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	killed := false
	kill = func() {
		if !killed {
			killed = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			teststore.AfterKill(teststore.Lease)
		}
	}
	t.Cleanup(kill)
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatalf("the program printed nothing: %v", lines.Err())
	}
	return lines.Text(), kill
}

// However a program ends, the next one removes its stock, and no claimed sandbox.
// While the program runs, nobody removes its stock.
func TestKilled(t *testing.T) {
	for step, claimed := range map[string]bool{"": true, "intent": false, "made": false, "healthy": false, "reserved": false, "claimed": true} {
		t.Run("at "+step, func(t *testing.T) {
			t.Parallel() // the test mostly waits
			dir := t.TempDir()
			line, kill := startLeaver(t, dir, step)
			id, _ := strings.CutPrefix(line, "has ")
			next, err := openFilePool(dir, pool.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer closeProvider(t, next)
			before := listFiles(t, dir)
			if err := pool.Sweep(next, t.Context()); err != nil {
				t.Error(err)
			}
			after := listFiles(t, dir)
			for _, id := range before {
				if !slices.Contains(after, id) {
					t.Errorf("%s of a running program is gone", id)
				}
			}
			if ids := listIDs(t, next, atoll.Filter{}); len(ids) > 1 || len(ids) == 1 && !claimed {
				t.Errorf("listed are %s", ids)
			}
			kill()
			if err := pool.Sweep(next, t.Context()); err != nil {
				t.Error(err)
			}
			left, shown := listFiles(t, dir), listIDs(t, next, atoll.Filter{Name: "mine", Labels: map[string]string{"a": "b"}})
			if !claimed && len(left)+len(shown) > 0 {
				t.Errorf("existing are %s, listed are %s", left, shown)
			}
			if claimed && (len(left) != 1 || !slices.Equal(left, shown) || step == "" && left[0] != id) {
				t.Errorf("there are %s, and shown are %s, want %s", left, shown, id)
			}
			s := openStore(dir)
			defer s.Close()
			if all, err := s.Warm(t.Context(), "mock"); err != nil || len(all) != len(left) {
				t.Errorf("recorded are %+v, %v", all, err)
			}
			if step == "reserved" { // a caller that has recorded the ID can create it
				mustCreate(t, next, atoll.Spec{ID: id, Name: "mine"})
			}
			if len(shown) == 0 {
				return
			}
			sb, err := next.Get(t.Context(), shown[0])
			if err == nil {
				err = sb.Remove(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			if all, err := s.Warm(t.Context(), "mock"); err != nil || len(all) > 0 {
				t.Errorf("after its removal, recorded are %+v, %v", all, err)
			}
		})
	}
}

// The pool deletes a claim if its sandbox is gone, unless the registry may create
// it again.
func TestSettle(t *testing.T) {
	dir := t.TempDir()
	p, err := openFilePool(dir, plainOptions(1))
	if err != nil {
		t.Fatal(err)
	}
	defer closeProvider(t, p)
	waitStocked(t, p)
	sb := mustCreate(t, p, atoll.Spec{Name: "web"})
	if err := os.Remove(filepath.Join(dir, "backend", sb.ID())); err != nil {
		t.Fatal(err)
	}
	s := openStore(dir)
	defer s.Close()
	if err := pool.Sweep(p, t.Context()); err != nil {
		t.Fatal(err)
	}
	if w, err := s.FindWarm(t.Context(), sb.ID()); err != nil || w.Name != "web" {
		t.Errorf("while the registry has its record: %+v, %v", w, err)
	}
	if _, err := registry.Reconcile(t.Context(), p, registry.ReconcileOptions{}); err != nil { // the registry deletes its record
		t.Fatal(err)
	}
	if err := pool.Sweep(p, t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = s.FindWarm(t.Context(), sb.ID())
	wantKind(t, "FindWarm after that", err, atoll.ErrNotExist)
}
