//go:build linux

package files

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// confine returns the world's file system confined to dirs, each below the one before.
func (w *world) confine(dirs ...string) *world {
	fs := atoll.FS(w.FS)
	for _, dir := range dirs {
		fs = atoll.SubFiles(fs, dir)
	}
	return &world{fs.(*FS), w.view, w.dir}
}

// A directory of the host is served there, and no name that leads out of it is looked up
// inside; a directory inside is confined there.
func TestSub(t *testing.T) {
	w := newWorld(t, Mount{Source: "work", Target: "/work"}, Mount{Source: "data", Target: "/data"})
	for _, dir := range []string{"work", "inside/work"} {
		must(t, os.MkdirAll(filepath.Join(w.dir, dir, "in/sub"), 0o755))
		for name, target := range map[string]string{
			"in/sub/here": "../../here", "in/abs": "/work/here", "in/self": "/work/in/sub", "in/data": "/data/here", "in/root": "/", "out": "/srv", "door": "in",
		} {
			must(t, os.Symlink(target, filepath.Join(w.dir, dir, name)))
		}
		must(t, os.WriteFile(filepath.Join(w.dir, dir, "in/f"), []byte(dir), 0o644))
	}
	must(t, os.MkdirAll(filepath.Join(w.dir, "inside/srv"), 0o755))
	must(t, os.WriteFile(filepath.Join(w.dir, "inside/srv/f"), []byte("srv"), 0o644))
	for _, c := range []struct{ dir, name, want string }{
		{"in", "f", "work"}, {"/work/in", "/work/in/f", "work"}, {"door", "f", "work"}, {"in", "self/../f", "work"}, {".", "in/abs", "work"},
		{"out", "f", "srv"}, {"/srv", "f", "srv"}, {"/work/out", "/work/out/f", "srv"}, {"/data", "here", "data"}, {"/", "srv/f", "srv"},
		{"in", "sub/here", ""}, {"in", "abs", ""}, {"in", "data", ""}, {"in", "root/here", ""}, {"in", "../here", ""}, {"in", "/here", ""},
		{"/data", "../here", ""}, {"out", "../here", ""}, {"out", "/here", ""}, {"/srv", "/work/here", ""},
	} {
		got, err := w.confine(c.dir).readFile(c.name)
		if c.want != "" && (got != c.want || err != nil) || c.want == "" && atoll.KindOf(err) != atoll.ErrDenied {
			t.Errorf("%s below %s: %q, %v; want that of %q", c.name, c.dir, got, err, c.want)
		}
	}
	if got, err := w.confine(".", "in").readFile("f"); got != "work" || err != nil {
		t.Errorf("below two: %q, %v", got, err)
	}
	if _, err := w.confine("in", "/work").readFile("here"); atoll.KindOf(err) != atoll.ErrDenied {
		t.Errorf("below one that is not below the first: %v", err)
	}
	w.stopInside()
	for dir, want := range map[string]error{"in": nil, "out": errStopped, "/srv": errStopped, "no": atoll.ErrNotExist} {
		if _, err := w.confine(dir).readFile("f"); !errors.Is(err, want) {
			t.Errorf("below %s while nobody is inside: %v, want %v", dir, err, want)
		}
	}
}

// If there are mounts below the directory, the inside knows what is where. In a stopped
// sandbox, names are on the mount that their path says.
func TestSubWithMounts(t *testing.T) {
	w := newWorld(t, nested...)
	for _, c := range []struct{ dir, name, want string }{
		{"/work", "here", "inside"}, {"deep/cache", "here", "cache"}, {"/work", "deep/cache/here", "inside"}, {"deep/cache", "../here", ""},
	} {
		got, err := w.confine(c.dir).readFile(c.name)
		if c.want != "" && (got != c.want || err != nil) || c.want == "" && atoll.KindOf(err) != atoll.ErrDenied {
			t.Errorf("%s below %s: %q, %v; want that of %q", c.name, c.dir, got, err, c.want)
		}
	}
	must(t, os.Symlink("tmp", filepath.Join(w.dir, "work/t")))
	must(t, os.Symlink("/", filepath.Join(w.dir, "cache/root")))
	w.stopInside()
	for _, c := range []struct {
		dirs []string
		name string
		want string
		kind error
	}{
		{[]string{"/work"}, "here", "work", nil},
		{[]string{"/work"}, "deep/cache/here", "cache", nil},
		{[]string{"/work", "deep"}, "cache/here", "cache", nil},
		{[]string{"deep", "cache"}, "here", "cache", nil},
		{[]string{"/"}, "work/here", "work", nil},
		{[]string{"/work"}, "tmp/here", "", errStopped},
		{[]string{"/work"}, "t/here", "", errStopped},
		{[]string{"/"}, "here", "", errStopped},
		{[]string{"/work"}, "../data/here", "", atoll.ErrDenied},
		{[]string{"/work"}, "/data/here", "", atoll.ErrDenied},
		{[]string{"/work", "/data"}, "here", "", atoll.ErrDenied},
		{[]string{"/work", "deep"}, "/work/here", "", atoll.ErrDenied},
		{[]string{"deep/cache"}, "root/here", "", atoll.ErrDenied},
	} {
		got, err := w.confine(c.dirs...).readFile(c.name)
		if got != c.want || !errors.Is(err, c.kind) {
			t.Errorf("%s below %v while nobody is inside: %q, %v; want %q, %v", c.name, c.dirs, got, err, c.want, c.kind)
		}
	}
	if err := w.confine("/work").Rename(t.Context(), "here", "deep/cache/there"); !errors.Is(err, errStopped) {
		t.Errorf("rename to another mount: %v", err)
	}
}

// A call fails if the inside cannot confine it.
func TestSubOfAnInsideWithout(t *testing.T) {
	w := newWorld(t)
	w.view.Mounts = nil
	inside, err := w.view.Inside(t.Context())
	must(t, err)
	w.view.Inside = func(context.Context) (atoll.FS, error) { return struct{ atoll.FS }{inside}, nil }
	if got, err := w.readFile("/here"); got != "inside" || err != nil {
		t.Errorf("read: %q, %v", got, err)
	}
	if got, err := w.confine("/").readFile("here"); atoll.KindOf(err) != atoll.ErrUnsupported {
		t.Errorf("read below /: %q, %v, want %s", got, err, atoll.ErrUnsupported)
	}
	if _, err := w.confine("/").Write(t.Context(), "new", strings.NewReader(""), atoll.WriteOptions{}); atoll.KindOf(err) != atoll.ErrUnsupported {
		t.Errorf("write below /: %v, want %s", err, atoll.ErrUnsupported)
	}
	if got := w.findCopies(t, "new"); got != "" {
		t.Errorf("written to %s", got)
	}
}
