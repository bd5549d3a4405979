package filesync_test

import (
	"crypto/rand"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll/internal/dirfs"
	"github.com/seed46cd37a8/atoll/storage/filesync"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

// openBucket opens a bucket that is a directory.
func openBucket(t testing.TB) objectstore.Bucket {
	t.Helper()
	return openStore(t, t.TempDir())
}

// prefix is the place of versions in test buckets.
const prefix = "agents/a"

func newRemote(t testing.TB, b objectstore.Bucket, o filesync.Options) *filesync.Remote {
	t.Helper()
	r, err := filesync.New(b, prefix, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A testDir is a directory of this machine.
type testDir struct {
	t   testing.TB
	dir string
	filesync.Tree
}

func newPlace(t testing.TB) *testDir {
	t.Helper()
	return placeAt(t, t.TempDir())
}

func placeAt(t testing.TB, dir string) *testDir {
	t.Helper()
	f, err := dirfs.New("/work", dir, dirfs.Options{UID: -1, GID: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &testDir{t, dir, filesync.Tree{FS: f, Dir: "/work"}}
}

func (p *testDir) filePath(name string) string { return filepath.Join(p.dir, filepath.FromSlash(name)) }

func (p *testDir) writeText(name, text string) {
	p.t.Helper()
	if err := os.MkdirAll(filepath.Dir(p.filePath(name)), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(p.filePath(name), []byte(text), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

func (p *testDir) readText(name string) string {
	b, err := os.ReadFile(p.filePath(name))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func (p *testDir) removeFile(name string) {
	p.t.Helper()
	if err := os.RemoveAll(p.filePath(name)); err != nil {
		p.t.Fatal(err)
	}
}

// content lists a directory as text; equal texts mean equal directories, byte for byte.
func (p *testDir) content() string {
	p.t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(p.dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == p.dir {
			return err
		}
		rel, _ := filepath.Rel(p.dir, name)
		if rel == filesync.StateName {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			fmt.Fprintf(&all, "%q %v\n", rel, info.Mode())
		case info.Mode().IsRegular():
			b, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			fmt.Fprintf(&all, "%q %v %d %x\n", rel, info.Mode(), len(b), b)
		default:
			target, _ := os.Readlink(name)
			fmt.Fprintf(&all, "%q %v %q\n", rel, info.Mode().Type(), target)
		}
		return nil
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return all.String()
}

func (p *testDir) push(r *filesync.Remote) *filesync.Stats {
	p.t.Helper()
	st, err := r.Push(p.t.Context(), p.Tree, filesync.PushOptions{})
	if err != nil {
		p.t.Fatalf("Push: %v", err)
	}
	return st
}

func (p *testDir) pull(r *filesync.Remote, o filesync.PullOptions) *filesync.Stats {
	p.t.Helper()
	st, err := r.Pull(p.t.Context(), p.Tree, o)
	if err != nil {
		p.t.Fatalf("Pull: %v", err)
	}
	return st
}

// checkEqual compares two directories.
func checkEqual(t testing.TB, a, b *testDir) {
	t.Helper()
	if x, y := a.content(), b.content(); x != y {
		t.Errorf("the directories differ:\n%s", firstDifference(x, y))
	}
}

func firstDifference(x, y string) string {
	in := map[string]int{}
	for line := range strings.Lines(x) {
		in[line]++
	}
	for line := range strings.Lines(y) {
		in[line]--
	}
	var out strings.Builder
	for line, n := range in {
		if n != 0 {
			fmt.Fprintf(&out, "%+d %.200s", n, line)
		}
	}
	return out.String()
}

func TestPushAndPull(t *testing.T) { testPushAndPull(t, openBucket(t)) }

func testPushAndPull(t *testing.T, store objectstore.Bucket) {
	r := newRemote(t, store, filesync.Options{})
	a, b := newPlace(t), newPlace(t)
	if st := a.pull(r, filesync.PullOptions{}); st.Version != 0 {
		t.Errorf("a pull of nothing: %+v", st)
	}
	a.writeText("src/main.py", "print(1)\n")
	a.writeText("src/empty", "")
	a.writeText("-odd name 'with' \"quotes\"\nand a line", "odd")
	a.writeText("\xff\xfe", "no text")
	big := make([]byte, 3<<20)
	rand.Read(big)
	a.writeText("big", string(big))
	for _, dir := range []string{"empty dir", "a", "a-b", "a/b"} {
		if err := os.MkdirAll(a.filePath(dir), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	a.writeText("a/b/c", "c")
	if err := os.Chmod(a.filePath("src/main.py"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"link": "src/main.py", "out": "/etc/passwd", "dangling": "nowhere"} {
		if err := os.Symlink(target, a.filePath(name)); err != nil {
			t.Fatal(err)
		}
	}
	first := a.push(r)
	if first.Version == 0 || first.FilesUploaded != 5 || first.Failed > 0 {
		t.Errorf("Push: %+v", first)
	}
	if st := b.pull(r, filesync.PullOptions{}); st.FilesDownloaded != 6 || st.Failed > 0 || len(st.Conflicts) > 0 {
		t.Errorf("Pull: %+v", st)
	}
	checkEqual(t, a, b)
	for range 2 {
		if st := a.push(r); st.Version != first.Version || st.FilesUploaded > 0 {
			t.Errorf("a push of nothing new: %+v", st)
		}
		if st := b.pull(r, filesync.PullOptions{}); st.FilesDownloaded > 0 || st.FilesDeleted > 0 {
			t.Errorf("a pull of nothing new: %+v", st)
		}
	}
	b.writeText("src/main.py", "print(2)\n")
	b.removeFile("a/b")
	b.writeText("moved", string(big))
	b.removeFile("big")
	second := b.push(r)
	if second.Version <= first.Version || second.FilesUploaded != 1 {
		t.Errorf("Push of a change: %+v", second)
	}
	if st := a.pull(r, filesync.PullOptions{}); st.FilesDeleted != 3 || len(st.Conflicts) > 0 {
		t.Errorf("Pull of a change: %+v", st)
	}
	checkEqual(t, a, b)
	c := newPlace(t)
	c.pull(r, filesync.PullOptions{Version: first.Version})
	a.pull(r, filesync.PullOptions{Version: first.Version})
	checkEqual(t, a, c)
	if a.readText("src/main.py") != "print(1)\n" {
		t.Errorf("the first version has %q", a.readText("src/main.py"))
	}
	var versions []filesync.Info
	for v, err := range r.Versions(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		versions = append(versions, v)
	}
	if len(versions) != 2 || versions[0].Version != first.Version || versions[0].Latest || versions[1].Version != second.Version || !versions[1].Latest {
		t.Errorf("Versions: %+v", versions)
	}
}

// Changed files are kept, unless the caller wants otherwise.
func TestConflicts(t *testing.T) {
	for _, policy := range []filesync.Policy{filesync.KeepLocal, filesync.KeepRemote} {
		t.Run(string(policy), func(t *testing.T) {
			r := newRemote(t, openBucket(t), filesync.Options{})
			a, b := newPlace(t), newPlace(t)
			for _, name := range []string{"both", "here", "there", "gone", "removed here", "same"} {
				a.writeText(name, "old")
			}
			a.push(r)
			b.pull(r, filesync.PullOptions{})
			a.writeText("both", "theirs")
			a.writeText("there", "theirs")
			a.writeText("same", "new")
			a.writeText("new", "theirs")
			a.removeFile("gone")
			a.push(r)
			b.writeText("both", "mine")
			b.writeText("here", "mine")
			b.writeText("same", "new")
			b.writeText("new", "mine")
			b.writeText("gone", "mine")
			b.writeText("untracked", "mine")
			b.removeFile("removed here")
			st := b.pull(r, filesync.PullOptions{Conflicts: policy})
			want := map[string]string{"both": "mine", "here": "mine", "there": "theirs", "same": "new", "new": "mine", "gone": "mine", "untracked": "mine", "removed here": "old"}
			if policy == filesync.KeepRemote {
				want["both"], want["new"] = "theirs", "theirs"
				delete(want, "gone")
				if _, err := os.Stat(b.filePath("gone")); err == nil {
					t.Error("gone is there")
				}
			}
			for name, text := range want {
				if got := b.readText(name); got != text {
					t.Errorf("%s is %q, want %q", name, got, text)
				}
			}
			if len(st.Conflicts) != 3 {
				t.Errorf("conflicts: %+v, want both, gone and new", st.Conflicts)
			}
			// A push contains the kept files.
			b.push(r)
			c := newPlace(t)
			c.pull(r, filesync.PullOptions{})
			checkEqual(t, b, c)
		})
	}
}

// A push reports the version that it replaces without having seen it.
func TestPushOverOthers(t *testing.T) {
	r := newRemote(t, openBucket(t), filesync.Options{})
	p, q := newPlace(t), newPlace(t)
	p.writeText("file", "1")
	if st := p.push(r); st.Replaced != 0 {
		t.Errorf("the first Push: %+v", st)
	}
	q.pull(r, filesync.PullOptions{})
	p.writeText("theirs", "22")
	unseen := p.push(r)
	if unseen.Replaced != 0 {
		t.Errorf("Push after seeing the latest version: %+v", unseen)
	}
	q.writeText("mine", "22")
	if st := q.push(r); st.Replaced != unseen.Version {
		t.Errorf("Push: %+v, want that it replaces %d", st, unseen.Version)
	}
	q.writeText("mine", "333")
	if st := q.push(r); st.Replaced != 0 {
		t.Errorf("the next Push: %+v", st)
	}
}

// Files replace directories, and directories files.
func TestKindsChange(t *testing.T) {
	r := newRemote(t, openBucket(t), filesync.Options{})
	a, b := newPlace(t), newPlace(t)
	a.writeText("dir/file", "1")
	a.writeText("full/file", "1")
	a.writeText("file", "1")
	a.writeText("kept", "1")
	a.push(r)
	b.pull(r, filesync.PullOptions{})
	a.removeFile("dir")
	a.writeText("dir", "a file")
	a.removeFile("full")
	a.writeText("full", "a file")
	a.removeFile("file")
	a.writeText("file/below", "2")
	a.removeFile("kept")
	a.writeText("kept/below", "2")
	a.push(r)
	b.writeText("full/mine", "mine")
	b.writeText("kept", "mine")
	st := b.pull(r, filesync.PullOptions{})
	for name, want := range map[string]string{"dir": "a file", "full/mine": "mine", "file/below": "2", "kept": "mine"} {
		if got := b.readText(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if len(st.Conflicts) < 2 || st.Failed > 0 {
		t.Errorf("Pull: %+v, want conflicts about full and kept", st)
	}
	c := newPlace(t)
	c.writeText("dir/mine", "untracked")
	c.writeText("file", "untracked")
	c.pull(r, filesync.PullOptions{})
	if c.readText("dir/mine") != "untracked" || c.readText("file") != "untracked" {
		t.Error("what was never pushed has gone")
	}
}

// textLog returns a log that writes text.
func textLog(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }
