package registry_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/teststore"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// An engine is a provider whose sandboxes outlive its programs, as far as the
// registry can tell, and whose image can change. It keeps the image versions in its
// directory.
type engine struct {
	atoll.ProviderLayer
	dir string
}

const image = "docker.io/library/app:1"

func newEngine(dir string) (engine, error) {
	p, err := mock.New(mock.Options{Dir: filepath.Join(dir, "mock")})
	return engine{atoll.ProviderLayer{Provider: p}, dir}, err
}

func openEngine(t *testing.T, dir string) engine {
	t.Helper()
	e, err := newEngine(dir)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func (e engine) Info() atoll.Info {
	info := e.Provider.Info()
	info.Caps.Survives = true
	return info
}

// releaseImage makes the image reference resolve to another image.
func (e engine) releaseImage(version string) error {
	return os.WriteFile(filepath.Join(e.dir, "digest"), []byte("sha256:"+version), 0o600)
}

func (e engine) ResolveImage(ctx context.Context, ref string) (string, error) {
	if ref != image {
		return atoll.ResolveImage(ctx, e.Provider, ref)
	}
	b, err := os.ReadFile(filepath.Join(e.dir, "digest"))
	if errors.Is(err, fs.ErrNotExist) {
		return "sha256:1", nil
	}
	return string(b), err
}

func (e engine) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	sb, err := e.Provider.Create(ctx, spec)
	if err != nil || spec.Image != image {
		return sb, err
	}
	digest, err := e.ResolveImage(ctx, image)
	if err == nil {
		err = os.WriteFile(filepath.Join(e.dir, "image-"+sb.ID()), []byte(image+"@"+digest), 0o600)
	}
	return sb, err
}

func (e engine) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	all, err := e.Provider.List(ctx, f)
	for i := range all {
		all[i].Caps.Survives = true
		if b, err := os.ReadFile(filepath.Join(e.dir, "image-"+all[i].ID)); err == nil {
			all[i].Image = string(b)
		}
	}
	return all, err
}

// A fixture is a registry over an engine.
type fixture struct {
	*registry.Provider
	t      *testing.T
	dir    string
	engine engine
	store  teststore.Store
}

func newFixture(t *testing.T, opts registry.Options) *fixture {
	t.Helper()
	l := openFixture(t, t.TempDir(), opts)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return l
}

func openFixture(t *testing.T, dir string, opts registry.Options) *fixture {
	t.Helper()
	opts.Server = true
	s, e := teststore.Open(dir), openEngine(t, dir)
	return &fixture{registry.New(e, s, opts), t, dir, e, s}
}

func (l *fixture) mustCreate(p atoll.Provider, spec atoll.Spec) atoll.Sandbox {
	l.t.Helper()
	sb, err := p.Create(l.t.Context(), &spec)
	if err != nil {
		l.t.Fatalf("Create: %v", err)
	}
	return sb
}

func (l *fixture) secretOf(id string) string {
	l.t.Helper()
	raw, err := atoll.SecretOf(l.t.Context(), l, id)
	if err != nil {
		l.t.Errorf("Secret: %v", err)
	}
	return raw
}

// hashInside returns the hash of the secret in the sandbox's environment.
func (l *fixture) hashInside(sb atoll.Sandbox) string {
	l.t.Helper()
	out, err := atoll.Output(l.t.Context(), sb, &atoll.Command{Args: []string{"sh", "-c", "echo $" + atoll.SecretVar}})
	if err != nil {
		l.t.Errorf("Output: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// exists reports whether the engine has the sandbox.
func (l *fixture) exists(id string) bool {
	l.t.Helper()
	_, err := l.engine.Get(l.t.Context(), id)
	if err != nil && atoll.KindOf(err) != atoll.ErrNotFound {
		l.t.Errorf("Get: %v", err)
	}
	return err == nil
}

// hasData reports whether the engine has the data volume of the sandbox.
func (l *fixture) hasData(id string) bool {
	l.t.Helper()
	all, err := atoll.Volumes(l.t.Context(), l.engine, "")
	if err != nil {
		l.t.Errorf("Volumes: %v", err)
	}
	return slices.ContainsFunc(all, func(v atoll.Volume) bool { return v.Sandbox == id })
}

// recordState returns the state in the sandbox's record, "" if there is none.
func (l *fixture) recordState(id string) store.State {
	l.t.Helper()
	r, err := l.store.Find(l.t.Context(), id)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return ""
	}
	if err != nil {
		l.t.Fatalf("Find: %v", err)
	}
	return r.State
}

// wantReconcile checks the findings and actions of Reconcile, as "found done" by
// ID.
func (l *fixture) wantReconcile(opts registry.ReconcileOptions, healthy int, want map[string]string) {
	l.t.Helper()
	sum, err := registry.Reconcile(l.t.Context(), l, opts)
	if err != nil {
		l.t.Fatalf("Reconcile: %v", err)
	}
	got := map[string]string{}
	for _, f := range sum.Findings {
		got[f.ID] = string(f.Found) + " " + string(f.Done)
		if f.Failed {
			got[f.ID] += " failed: " + f.Reason
		}
		if f.Reason == "" {
			l.t.Errorf("finding without a reason: %+v", f)
		}
	}
	if sum.Healthy != healthy || fmt.Sprint(got) != fmt.Sprint(want) {
		l.t.Errorf("Reconcile(%+v): %d healthy, %v; want %d, %v", opts, sum.Healthy, got, healthy, want)
	}
}

// releaseImage makes the image reference resolve to another image.
func (l *fixture) releaseImage(version string) {
	l.t.Helper()
	if err := l.engine.releaseImage(version); err != nil {
		l.t.Fatal(err)
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
