//go:build linux

package imagestore

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
	"github.com/seed46cd37a8/atoll/machine/image"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
)

// openBackend returns a Backend with a store of its own.
func openBackend(t *testing.T, opts Options) *Backend {
	t.Helper()
	dir, err := statedir.Open(t.TempDir() + "/state")
	if err != nil {
		t.Fatal(err)
	}
	b := NewBackend(opts)
	if err := b.Open(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// newRecord returns the record of a sandbox with an image and a user.
func newRecord(image, user string) *statedir.Record {
	return &statedir.Record{Status: atoll.Status{ID: atoll.NewID(), Spec: atoll.Spec{Image: image, User: user}}}
}

func wantKind(t *testing.T, what string, err error, kind atoll.Kind, texts ...string) {
	t.Helper()
	if atoll.KindOf(err) != kind {
		t.Errorf("%s: %v, want %s", what, err, kind)
		return
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %q does not contain %q", what, err, text)
		}
	}
}

// The machine's own file system has the environment that HostEnv returns at that time, and
// nothing to hold.
func TestImageOfHost(t *testing.T) {
	env := []string{"PATH=/one"}
	b := openBackend(t, Options{HostEnv: func() []string { return env }})
	for _, name := range []string{"", Host} {
		env = []string{"PATH=/of/" + name}
		rec := newRecord(name, "")
		if err := b.Image(t.Context(), rec); err != nil {
			t.Fatal(err)
		}
		if rec.Status.Image != Host || !slices.Equal(rec.Env, env) || rec.Image != "" || rec.Digest != "" {
			t.Errorf("image %q: %+v", name, rec)
		}
		if f, err := b.Hold(t.Context(), rec); f != nil || err != nil {
			t.Errorf("hold: %v, %v, want nothing", f, err)
		}
	}
}

// An image with a user needs sandboxes with users, or a spec with another user.
func TestImageWithUser(t *testing.T) {
	ref := testimage.Serve(t).Push("app:1", testimage.New(t, v1.Config{User: "app", Env: []string{"A=1"}}))
	without, with := openBackend(t, Options{}), openBackend(t, Options{Users: true})
	wantKind(t, "without users", without.Image(t.Context(), newRecord(ref, "")), atoll.ErrUnsupported, ref, `"app"`)
	for _, test := range []struct {
		b    *Backend
		user string
	}{{without, "root"}, {with, ""}, {with, "root"}} {
		rec := newRecord(ref, test.user)
		if err := test.b.Image(t.Context(), rec); err != nil {
			t.Errorf("user %q: %v", test.user, err)
			continue
		}
		if rec.Status.Image != ref+"@"+rec.Digest || rec.User != "app" || !slices.Equal(rec.Env, []string{"A=1"}) {
			t.Errorf("user %q: %+v", test.user, rec)
		}
		if info, err := os.Stat(rec.Image); err != nil || !info.IsDir() {
			t.Errorf("root file system: %v", err)
		}
	}
}

// Hold keeps an image until the file is closed. It fetches a removed one again.
func TestHold(t *testing.T) {
	registry := testimage.Serve(t)
	ref := registry.Push("app:1", testimage.Tiny(t, "one"))
	b := openBackend(t, Options{})
	rec := newRecord(ref, "")
	if err := b.Image(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{"before the removal", "after it"} {
		f, err := b.Hold(t.Context(), rec)
		if err != nil {
			t.Fatalf("hold %s: %v", when, err)
		}
		wantKind(t, "remove a held image", b.store.Remove(t.Context(), rec.Digest, nil), atoll.ErrConflict)
		f.Close()
		if err := b.store.Remove(t.Context(), rec.Digest, nil); err != nil {
			t.Fatal(err)
		}
	}
	registry.Fault(func(http.Handler) http.Handler { return http.NotFoundHandler() })
	_, err := b.Hold(t.Context(), rec)
	wantKind(t, "hold an image that is nowhere", err, atoll.ErrNotExist, "was removed, and cannot be fetched again", ref)
	registry.Fault(nil)
	rec.Status.Image = registry.Push("app:1", testimage.Tiny(t, "two"))
	_, err = b.Hold(t.Context(), rec)
	wantKind(t, "hold an image that has changed", err, atoll.ErrNotExist, "another digest", rec.Digest)
}

func TestPinnedRef(t *testing.T) {
	const sum, other = "sha256:1", "sha256:2"
	for _, test := range []struct{ ref, digest, want string }{
		{"docker.io/library/app:1", sum, "docker.io/library/app:1@" + sum},
		{"host:5000/app:1@" + other, sum, "host:5000/app:1@" + sum}, // of an index
		{"host:5000/app@" + sum, sum, "host:5000/app@" + sum},
		{sum, sum, sum},
		{"oci:/lay", sum, "oci:/lay"},
		{"dir:/tree", "", "dir:/tree"},
	} {
		if got := pinnedRef(&image.Image{Ref: test.ref, Digest: test.digest}); got != test.want {
			t.Errorf("%s, %s: %q, want %q", test.ref, test.digest, got, test.want)
		}
	}
}

func TestKeepUsed(t *testing.T) {
	keep := keepUsed("app:1", map[string]string{"sha256:1": "sandbox web"})
	wantKind(t, "with a user", keep("sha256:1"), atoll.ErrConflict, "sandbox web", "force")
	if err := keep("sha256:2"); err != nil {
		t.Errorf("without a user: %v", err)
	}
}
