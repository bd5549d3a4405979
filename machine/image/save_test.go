//go:build linux

package image

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/seed46cd37a8/atoll"
	. "github.com/seed46cd37a8/atoll/internal/testing/testimage"
)

// Save gives the same bytes each time, in which another store finds the same files and
// settings, under the given name.
func TestSave(t *testing.T) {
	s := openStore(t, Options{})
	from := New(t, v1.Config{Env: []string{"A=b"}, Cmd: []string{"run"}, User: "me", WorkingDir: "/w", ExposedPorts: map[string]struct{}{"80/tcp": {}}},
		Layer(t, Dir("etc", 0o755), File("etc/passwd", 0o640, "me:x:1000:1000::/:/bin/sh\n"), File("gone", 0o644, "x")),
		Layer(t, File(".wh.gone", 0o644, ""), File("program", 0o4755, "text"), Link("other", "program"), Symlink("link", "etc/passwd")))
	im := mustGet(t, s, Serve(t).Push("of-a-test:1", from))
	save := func(ctx context.Context) ([]byte, error) {
		r, err := s.Save(ctx, im, "example.com/saved:2")
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		return data, errors.Join(err, r.Close())
	}
	data, err := save(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if again, err := save(t.Context()); err != nil || !bytes.Equal(data, again) {
		t.Errorf("saved twice it differs (%v)", err)
	}
	file := filepath.Join(t.TempDir(), "saved.tar")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	got := mustGet(t, openStore(t, Options{}), "docker-archive:"+file+":example.com/saved:2")
	if !slices.Equal(got.Env, im.Env) || !slices.Equal(got.Cmd, im.Cmd) || got.User != "me" || got.Workdir != "/w" || !slices.Equal(got.Ports, im.Ports) || got.Platform != im.Platform {
		t.Errorf("what was saved is %+v, want %+v", got, im)
	}
	for _, name := range []string{"etc/passwd", "program", "other", "link"} {
		want, err := os.ReadFile(filepath.Join(im.Root, name))
		has, err2 := os.ReadFile(filepath.Join(got.Root, name))
		if err != nil || err2 != nil || !bytes.Equal(has, want) {
			t.Errorf("%s is %q, want %q (%v, %v)", name, has, want, err, err2)
		}
	}
	a, err := os.Stat(filepath.Join(got.Root, "program"))
	b, err2 := os.Stat(filepath.Join(got.Root, "other"))
	if err != nil || err2 != nil || !os.SameFile(a, b) || a.Mode() != 0o755|os.ModeSetuid {
		t.Errorf("program is %v, and its link the same: %v (%v, %v)", a.Mode(), os.SameFile(a, b), err, err2)
	}
	if _, err := os.Lstat(filepath.Join(got.Root, "gone")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what a layer has removed is there: %v", err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := save(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("when ctx has ended: %v", err)
	}
	r, err := s.Save(t.Context(), im, "example.com/saved:2")
	if err != nil {
		t.Fatal(err)
	}
	wantKind(t, "Remove while it is being saved", s.Remove(t.Context(), im.Digest, nil), atoll.ErrConflict)
	if err := r.Close(); err != nil { // before its end
		t.Error(err)
	}
}
