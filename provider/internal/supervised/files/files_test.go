//go:build linux

package files

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/dirfs"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// A world is a sandbox's files, on the host and inside. Each directory has a file "here"
// that names the directory.
type world struct {
	*FS
	view View
	dir  string // holds all directories, of the host and of the inside
}

// newWorld makes a world with these mounts, whose sources are names in its dir. The inside
// has all names, below "inside".
func newWorld(t *testing.T, mounts ...Mount) *world {
	t.Helper()
	w := &world{dir: t.TempDir(), view: View{Workdir: "/work", UID: -1, GID: -1}}
	w.FS = New(func() (View, error) { return w.view, nil })
	for _, m := range append(mounts, Mount{Source: "inside", Target: "/"}) {
		inside := filepath.Join(w.dir, "inside", m.Target)
		must(t, os.MkdirAll(inside, 0o755))
		must(t, os.WriteFile(filepath.Join(inside, "here"), []byte("inside"), 0o644))
		if m.Source == "" || m.Target == "/" {
			continue
		}
		source := filepath.Join(w.dir, m.Source)
		must(t, os.MkdirAll(source, 0o755))
		must(t, os.WriteFile(filepath.Join(source, "here"), []byte(m.Source), 0o644))
	}
	for _, m := range mounts {
		if m.Source != "" {
			m.Source = filepath.Join(w.dir, m.Source)
		}
		w.view.Mounts = append(w.view.Mounts, m)
	}
	inside, err := dirfs.New("/", filepath.Join(w.dir, "inside"), dirfs.Options{Workdir: "/work", UID: -1, GID: -1})
	must(t, err)
	t.Cleanup(func() { inside.Close() })
	w.view.Inside = func(context.Context) (atoll.FS, error) { return inside, nil }
	return w
}

var errStopped = errors.New("nobody is inside")

func (w *world) stopInside() {
	w.view.Inside = func(context.Context) (atoll.FS, error) { return nil, errStopped }
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) readFile(name string) (string, error) {
	r, _, err := w.Read(context.Background(), name, 0)
	if err != nil {
		return "", err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	return string(data), err
}

// findCopies returns the directories in which the file exists.
func (w *world) findCopies(t *testing.T, name string) string {
	t.Helper()
	var all []string
	must(t, filepath.WalkDir(w.dir, func(path string, _ fs.DirEntry, err error) error {
		if filepath.Base(path) == name {
			rel, _ := filepath.Rel(w.dir, path)
			all = append(all, rel)
		}
		return err
	}))
	slices.Sort(all)
	return strings.Join(all, " ")
}

var nested = []Mount{
	{Source: "work", Target: "/work"},
	{Source: "cache", Target: "/work/deep/cache"},
	{Source: "", Target: "/work/tmp"},
	{Source: "data", Target: "/data", ReadOnly: true},
}

// A name is on the nearest mount above it.
func TestNestedMounts(t *testing.T) {
	w := newWorld(t, nested...)
	for name, want := range map[string]string{
		"here": "work", "/work/here": "work", "/work/./deep/../here": "work", "../work/here": "work",
		"deep/cache/here": "cache", "/work/deep/cache/../../here": "work",
		"tmp/here": "inside", "/data/here": "data", "/here": "inside", "/work/../here": "inside", "../../../../here": "inside",
	} {
		if got, err := w.readFile(name); got != want || err != nil {
			t.Errorf("read %s: %q, %v, want that of %s", name, got, err, want)
		}
	}
	for name, want := range map[string]string{
		"a": "work/a", "deep/b": "work/deep/b", "deep/cache/c": "cache/c", "tmp/d": "inside/work/tmp/d", "/datae/e": "inside/datae/e",
		"/worker/f": "inside/worker/f",
	} {
		info, err := w.Write(t.Context(), name, strings.NewReader("x"), atoll.WriteOptions{})
		if err != nil || !strings.HasSuffix(info.Path, name) {
			t.Errorf("write %s: %+v, %v", name, info, err)
		}
		if got := w.findCopies(t, filepath.Base(name)); got != want {
			t.Errorf("%s was written to %s, want %s", name, got, want)
		}
		must(t, w.Mkdir(t.Context(), name+"dir", 0))
		if got := w.findCopies(t, filepath.Base(name)+"dir"); got != want+"dir" {
			t.Errorf("%sdir was made as %s, want %sdir", name, got, want)
		}
	}
}

// A call that concerns a whole tree works inside if there is another mount in the tree.
func TestTrees(t *testing.T) {
	w := newWorld(t, nested...)
	for dir, want := range map[string]string{"/work": "inside", "/work/deep": "inside", "/work/deep/cache": "cache", "/work/tmp": "inside", "/": "inside", "/data": "data"} {
		list, err := w.List(t.Context(), dir, true)
		must(t, err)
		size := int64(0)
		for _, info := range list {
			if info.Path == filepath.Join(dir, "here") {
				size = info.Size
			}
		}
		if want == "inside" && dir == "/work/deep" { // it has no file of its own
			size = int64(len(want))
		}
		if size != int64(len(want)) {
			t.Errorf("list of %s: %+v, want that of %s", dir, list, want)
		}
		var packed bytes.Buffer
		must(t, w.WriteTar(t.Context(), dir, &packed))
		if dir != "/data" { // read-only
			must(t, w.ReadTar(t.Context(), dir+"/copy", &packed))
		}
	}
	if got, err := w.readFile("deep/cache/copy/here"); got != "cache" || err != nil {
		t.Errorf("unpacked on a mount: %q, %v", got, err)
	}
	must(t, os.MkdirAll(filepath.Join(w.dir, "work/deep/only"), 0o755))
	must(t, w.Remove(t.Context(), "deep", true))
	for path, want := range map[string]bool{"inside/work/deep": false, "work/deep/only": true, "cache/here": true} {
		if _, err := os.Lstat(filepath.Join(w.dir, path)); (err == nil) != want {
			t.Errorf("after a tree with a mount in it was removed: %s: %v, want it there: %v", path, err, want)
		}
	}
}

// A link that leads out of a directory of the host, or to a mount in it, has a meaning
// inside only.
func TestLinks(t *testing.T) {
	w := newWorld(t, nested...)
	links := map[string]string{ // the same on the host and inside
		"up": "../here", "abs": "/here", "dir": "..", "mnt": "tmp", "vol": "/work/deep/cache", "near": "here", "absnear": "/work/here",
	}
	for name, target := range links {
		must(t, os.Symlink(target, filepath.Join(w.dir, "work", name)))
		must(t, os.Symlink(target, filepath.Join(w.dir, "inside/work", name)))
	}
	for _, name := range []string{"up", "abs", "dir/here", "mnt/here", "vol/here", "near", "absnear"} {
		if got, err := w.readFile(name); got != "inside" || err != nil {
			t.Errorf("read %s: %q, %v, want that of the inside", name, got, err)
		}
	}
	if info, err := w.Stat(t.Context(), "up"); info.Type != atoll.TypeSymlink || info.Target != "../here" || err != nil {
		t.Errorf("stat of a link: %+v, %v", info, err)
	}
	if _, err := w.Write(t.Context(), "up", strings.NewReader("written"), atoll.WriteOptions{}); err != nil {
		t.Errorf("write: %v", err)
	}
	if got, err := os.ReadFile(filepath.Join(w.dir, "here")); err == nil {
		t.Errorf("written outside of all mounts: %q", got)
	}
	if got, err := w.readFile("/here"); got != "written" || err != nil {
		t.Errorf("written through a link: %q, %v", got, err)
	}

	w.stopInside()
	for _, name := range []string{"abs", "dir/here", "mnt/here", "/here", "tmp/here"} {
		if _, err := w.readFile(name); !errors.Is(err, errStopped) {
			t.Errorf("read %s while nobody is inside: %v", name, err)
		}
	}
	if got, err := w.readFile("here"); got != "work" || err != nil {
		t.Errorf("read on the host while nobody is inside: %q, %v", got, err)
	}
	must(t, w.Rename(t.Context(), "up", "upper")) // the link itself is on the host
	must(t, w.Remove(t.Context(), "upper", false))
	if got := w.findCopies(t, "up"); got != "inside/work/up" {
		t.Errorf("the link was removed, and is left in %s", got)
	}
}

// Without another mount below, links within a directory of the host are followed there.
func TestLinksWithinADirectory(t *testing.T) {
	w := newWorld(t, Mount{Source: "work", Target: "/work"})
	w.stopInside()
	must(t, os.Symlink("here", filepath.Join(w.dir, "work/rel")))
	must(t, os.Symlink("/work/here", filepath.Join(w.dir, "work/abs")))
	for _, name := range []string{"rel", "abs"} {
		if got, err := w.readFile(name); got != "work" || err != nil {
			t.Errorf("read %s: %q, %v", name, got, err)
		}
	}
}

// A mount may be a file, or have gone: both are the inside's business, and hide the name in
// the directory of the host.
func TestMountsThatAreNoDirectory(t *testing.T) {
	w := newWorld(t, Mount{Source: "work", Target: "/work"}, Mount{Source: "gone", Target: "/work/gone"})
	must(t, os.RemoveAll(filepath.Join(w.dir, "gone")))
	must(t, os.WriteFile(filepath.Join(w.dir, "conf"), []byte("on the host"), 0o644))
	must(t, os.WriteFile(filepath.Join(w.dir, "work/conf"), []byte("hidden"), 0o644))
	must(t, os.WriteFile(filepath.Join(w.dir, "inside/work/conf"), []byte("inside"), 0o644))
	w.view.Mounts = append(w.view.Mounts, Mount{Source: filepath.Join(w.dir, "conf"), Target: "/work/conf"})
	for _, name := range []string{"conf", "gone/here"} {
		if got, err := w.readFile(name); got != "inside" || err != nil {
			t.Errorf("read %s: %q, %v", name, got, err)
		}
	}
}

// Files of the user who runs the rootless sandbox belong to root inside.
func TestOwners(t *testing.T) {
	w := newWorld(t, Mount{Source: "work", Target: "/work"})
	uid := os.Geteuid()
	for _, tt := range []struct{ root, want int }{{0, uid}, {uid, 0}, {uid + 1, uid}} {
		w.view.Root = tt.root
		check := func(op string, info atoll.FileInfo, err error) {
			t.Helper()
			if info.UID != tt.want || err != nil {
				t.Errorf("root is %d: %s: owner %d, %v, want %d", tt.root, op, info.UID, err, tt.want)
			}
		}
		info, err := w.Stat(t.Context(), "here")
		check("stat", info, err)
		info, err = w.Write(t.Context(), "new", strings.NewReader(""), atoll.WriteOptions{})
		check("write", info, err)
		r, info, err := w.Read(t.Context(), "here", 0)
		must(t, err)
		r.Close()
		check("read", info, err)
		list, err := w.List(t.Context(), ".", false)
		check("list", list[0], err)
	}
}

// New files belong to the default user, if that is not root.
func TestOwnerOfWhatIsMade(t *testing.T) {
	testenv.Need(t, testenv.Root)
	w := newWorld(t, Mount{Source: "work", Target: "/work"})
	w.view.UID, w.view.GID = 1234, 4321
	info, err := w.Write(t.Context(), "dir/file", strings.NewReader(""), atoll.WriteOptions{})
	if info.UID != 1234 || info.GID != 4321 || err != nil {
		t.Errorf("written: %+v, %v", info, err)
	}
	if info, err = w.Stat(t.Context(), "dir"); info.UID != 1234 || err != nil {
		t.Errorf("the directory made for it: %+v, %v", info, err)
	}
}

func TestReadOnly(t *testing.T) {
	w := newWorld(t, nested...)
	_, err := w.Write(t.Context(), "/data/new", strings.NewReader(""), atoll.WriteOptions{})
	for op, err := range map[string]error{
		"write": err, "mkdir": w.Mkdir(t.Context(), "/data/dir", 0), "remove": w.Remove(t.Context(), "/data/here", false),
		"rename": w.Rename(t.Context(), "/data/here", "/data/there"), "untar": w.ReadTar(t.Context(), "/data", strings.NewReader("")),
	} {
		if atoll.KindOf(err) != atoll.ErrDenied {
			t.Errorf("%s: %v, want %s", op, err, atoll.ErrDenied)
		}
	}
	if got := w.findCopies(t, "here"); !strings.Contains(got, "data/here") {
		t.Errorf("left: %s", got)
	}
}

// Within a directory of the host a file is moved there. From one mount to another the
// inside moves it, or rather refuses to.
func TestRename(t *testing.T) {
	w := newWorld(t, Mount{Source: "work", Target: "/work"}, Mount{Source: "cache", Target: "/cache"})
	must(t, w.Rename(t.Context(), "here", "sub/../there"))
	if got := w.findCopies(t, "there"); got != "work/there" {
		t.Errorf("moved to %s", got)
	}
	var asked []string
	w.view.Inside = func(context.Context) (atoll.FS, error) { return renamer{nil, &asked}, nil }
	for _, names := range [][2]string{{"there", "/cache/there"}, {"/cache/here", "/tmp/here"}, {"/etc/x", "x"}, {"/a", "/b"}} {
		must(t, w.Rename(t.Context(), names[0], names[1]))
	}
	if got, want := strings.Join(asked, " "), "/work/there>/cache/there /cache/here>/tmp/here /etc/x>/work/x /a>/b"; got != want {
		t.Errorf("the inside was asked %s, want %s", got, want)
	}
	for _, names := range [][2]string{{"/work", "/work/x"}, {"there", "/work"}} {
		if err := w.Rename(t.Context(), names[0], names[1]); atoll.KindOf(err) != atoll.ErrInvalid {
			t.Errorf("rename %v: %v, want %s", names, err, atoll.ErrInvalid)
		}
	}
	if err := w.Remove(t.Context(), "/work", true); atoll.KindOf(err) != atoll.ErrInvalid {
		t.Errorf("remove a mount: %v, want %s", err, atoll.ErrInvalid)
	}
	if got := w.findCopies(t, "there"); got != "work/there" {
		t.Errorf("afterwards it is in %s", got)
	}
}

type renamer struct {
	atoll.FS
	asked *[]string
}

func (r renamer) Rename(_ context.Context, from, to string) error {
	*r.asked = append(*r.asked, from+">"+to)
	return nil
}

// A watch works where the tree is, and follows a link that leads out.
func TestWatch(t *testing.T) {
	w := newWorld(t, nested...)
	must(t, os.Symlink("/", filepath.Join(w.dir, "data", "out")))
	must(t, os.Symlink("/", filepath.Join(w.dir, "inside/data/out")))
	for dir, file := range map[string]string{
		"/work": "inside/work/new", "/work/deep/cache": "cache/new", "/data": "data/new", "/tmp": "", "/data/out": "inside/new",
	} {
		var got []string
		for event, err := range w.Watch(t.Context(), dir, false) {
			if err != nil {
				got = append(got, string(atoll.KindOf(err)))
				break
			}
			if event.Type == atoll.FileSynced {
				must(t, os.WriteFile(filepath.Join(w.dir, file), nil, 0o644))
				continue
			}
			got = append(got, string(event.Type)+" "+event.Path)
			break
		}
		want := "created " + dir + "/new"
		if file == "" {
			want = string(atoll.ErrNotExist)
		}
		if len(got) != 1 || got[0] != want {
			t.Errorf("watch of %s: %v, want %s", dir, got, want)
		}
	}
	for range w.Watch(t.Context(), "/data", true) {
		break // at once
	}
	w.stopInside()
	for _, err := range w.Watch(t.Context(), "/work", true) {
		if !errors.Is(err, errStopped) {
			t.Errorf("watch while nobody is inside: %v", err)
		}
	}
}

// The error of view is the error of every call.
func TestNoView(t *testing.T) {
	gone := atoll.E("files", "x", atoll.ErrNotFound, nil)
	f := New(func() (View, error) { return View{}, gone })
	_, _, read := f.Read(t.Context(), "x", 0)
	_, write := f.Write(t.Context(), "x", strings.NewReader(""), atoll.WriteOptions{})
	_, stat := f.Stat(t.Context(), "x")
	_, list := f.List(t.Context(), "x", false)
	var watch error
	for _, watch = range f.Watch(t.Context(), "x", false) {
	}
	for op, err := range map[string]error{
		"read": read, "write": write, "stat": stat, "list": list, "watch": watch,
		"mkdir": f.Mkdir(t.Context(), "x", 0), "rename": f.Rename(t.Context(), "x", "y"), "remove": f.Remove(t.Context(), "x", true),
		"tar": f.WriteTar(t.Context(), "x", io.Discard), "untar": f.ReadTar(t.Context(), "x", strings.NewReader("")),
	} {
		if !errors.Is(err, gone) {
			t.Errorf("%s: %v, want %v", op, err, gone)
		}
	}
}

// No call leaves a descriptor open, except the file that Read returns.
func TestNothingStaysOpen(t *testing.T) {
	w := newWorld(t, nested...)
	must(t, os.Symlink("..", filepath.Join(w.dir, "work/out")))
	open := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(list)
	}
	before := open()
	for _, name := range []string{"here", "/here", "deep/cache/here", "out/here", "nothing", "/data/here"} {
		_, _ = w.readFile(name)
		_, _ = w.Stat(t.Context(), name)
		_, _ = w.List(t.Context(), name, true)
		_ = w.Rename(t.Context(), name, "/data/x")
		for range w.Watch(t.Context(), name, true) {
			break
		}
	}
	if after := open(); after != before {
		t.Errorf("%d descriptors are open, before there were %d", after, before)
	}
}
