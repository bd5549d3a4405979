//go:build linux

package docker_test

import (
	"io"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/provider/secret"
	"github.com/seed46cd37a8/atoll/storage/store/sqlite"
)

// If the name of a sandbox's image stands for another image in the engine, a reconcile rebuilds
// the sandbox. It keeps its data volume, labels and secret.
func TestRebuild(t *testing.T) {
	p := open(t)
	reg, ctx := serveRegistry(t), t.Context()
	push := func(text string) string {
		return reg.Push("app:1", testimage.New(t, v1.Config{}, testimage.Layer(t, testimage.File("version", 0o644, text))))
	}
	l := registry.New(p, sqlite.New(filepath.Join(t.TempDir(), "atoll.db")), registry.Options{Server: true})
	defer l.Close()
	ref := push("one")
	made, err := l.Create(ctx, &atoll.Spec{Name: "web", Image: ref, Labels: map[string]string{"a": "b"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := atoll.WriteFile(ctx, made, "kept", []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	raw, err := atoll.SecretOf(ctx, l, made.ID())
	if err != nil {
		t.Fatal(err)
	}
	healthy := func() {
		t.Helper()
		sum, err := l.Reconcile(ctx, registry.ReconcileOptions{})
		if err != nil || sum.Healthy != 1 || len(sum.Findings) != 0 {
			t.Errorf("Reconcile: %+v, %v", sum, err)
		}
	}
	healthy()

	push("two")
	healthy() // the engine has not pulled it
	enginePull(t, ref)
	sum, err := l.Reconcile(ctx, registry.ReconcileOptions{})
	if err != nil || len(sum.Findings) != 1 || sum.Findings[0].Done != registry.DoneRebuilt {
		t.Fatalf("Reconcile: %+v, %v", sum, err)
	}
	healthy()
	sb, err := atoll.Resolve(ctx, l, "", "web")
	if err != nil || sb.ID() != made.ID() {
		t.Fatalf("Resolve: %v, %v", sb, err)
	}
	for name, want := range map[string]string{"/version": "two", "kept": "x"} {
		if b, err := atoll.ReadFile(ctx, sb, name); string(b) != want {
			t.Errorf("%s holds %q, %v; want %q", name, b, err, want)
		}
	}
	if st, err := sb.Status(ctx); err != nil || st.State != atoll.StateRunning || st.Spec.Labels["a"] != "b" || len(st.Spec.Env) != 0 {
		t.Errorf("Status: %+v, %v", st, err)
	}
	if got, err := atoll.SecretOf(ctx, l, sb.ID()); got != raw || err != nil || !secret.Check(secretHash(t, p, sb.ID()), raw) {
		t.Errorf("the secret has changed: %v", err)
	}
	if err := sb.Remove(ctx, atoll.RemoveVolumes()); err != nil {
		t.Error(err)
	}
}

// enginePull lets the engine pull an image.
func enginePull(t *testing.T, ref string) {
	t.Helper()
	c, err := client.New(client.WithHost(engine.Host))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	stream, err := c.ImagePull(t.Context(), ref, client.ImagePullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if _, err := io.Copy(io.Discard, stream); err != nil {
		t.Fatal(err)
	}
}

// secretHash returns the hash of the sandbox's secret, from the engine.
func secretHash(t *testing.T, p atoll.Provider, id string) string {
	t.Helper()
	sb, err := p.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	st, err := sb.Status(t.Context())
	if err != nil || len(st.Spec.System.Env) != 1 {
		t.Fatalf("Status: %+v, %v", st, err)
	}
	return st.Spec.System.Env[0][len(atoll.SecretVar)+1:]
}
