package filesync_test

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/filesync"
)

func (p *testDir) status(r *filesync.Remote) *filesync.Status {
	p.t.Helper()
	st, err := r.Status(p.t.Context(), p.Tree)
	if err != nil {
		p.t.Fatal(err)
	}
	return st
}

func conflictPaths(st *filesync.Stats) (all []string) {
	for _, c := range st.Conflicts {
		all = append(all, c.Path)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// makeConflicts returns two directories that have changed the same files in different
// ways; a has pushed.
func makeConflicts(t *testing.T) (r *filesync.Remote, a, b *testDir) {
	t.Helper()
	r = newRemote(t, openBucket(t), filesync.Options{})
	a, b = newPlace(t), newPlace(t)
	for _, name := range []string{"both", "here", "gone", "dir/below", "file"} {
		a.writeText(name, "old")
	}
	a.push(r)
	b.pull(r, filesync.PullOptions{})
	a.writeText("both", "theirs")
	a.writeText("new", "theirs")
	a.removeFile("gone")
	a.removeFile("dir")
	a.writeText("dir", "a file")
	a.removeFile("file")
	a.writeText("file/below", "a directory")
	a.push(r)
	for _, name := range []string{"both", "here", "gone", "dir/below", "file", "new"} {
		b.writeText(name, "mine")
	}
	return r, a, b
}

// A conflict remains one, however often a pull has reported it: KeepRemote takes the
// version's files whenever it is given.
func TestConflictsRemain(t *testing.T) {
	r, a, b := makeConflicts(t)
	want := fmt.Sprint([]string{"both", "dir", "dir/below", "file", "file/below", "gone", "new"})
	for range 3 {
		if got := fmt.Sprint(conflictPaths(b.pull(r, filesync.PullOptions{}))); got != want {
			t.Errorf("a pull reports %s, want %s", got, want)
		}
		if got := b.readText("both") + b.readText("gone") + b.readText("dir/below") + b.readText("file") + b.readText("new"); got != strings.Repeat("mine", 5) {
			t.Fatalf("the files hold %s", got)
		}
		st := b.status(r)
		if got := fmt.Sprint(st.Conflicts.Paths, st.Changed.Paths, st.Behind); got != "[both dir dir/below file gone new] [here] false" {
			t.Errorf("Status: %s", got)
		}
	}
	st := b.pull(r, filesync.PullOptions{Conflicts: filesync.KeepRemote})
	for _, c := range st.Conflicts {
		if c.Kept != filesync.KeepRemote {
			t.Errorf("%s: the %s file wins", c.Path, c.Kept)
		}
	}
	if got := b.readText("here"); got != "mine" {
		t.Errorf("here is %q, although only this side has changed it", got)
	}
	b.writeText("here", "old")
	checkEqual(t, a, b)
	if st := b.status(r); st.Conflicts.Count+st.Changed.Count+st.Added.Count+st.Removed.Count+st.Pending.Count > 0 {
		t.Errorf("Status at the end: %+v", st)
	}
	if st := b.pull(r, filesync.PullOptions{}); len(st.Conflicts) > 0 {
		t.Errorf("conflicts at the end: %+v", st.Conflicts)
	}
}

// A push ends conflicts, and so does an edit that makes the file the version's.
func TestConflictsEnd(t *testing.T) {
	r, _, b := makeConflicts(t)
	b.pull(r, filesync.PullOptions{})
	b.writeText("both", "theirs")
	b.removeFile("gone")
	if got := fmt.Sprint(conflictPaths(b.pull(r, filesync.PullOptions{}))); got != "[dir dir/below file file/below new]" {
		t.Errorf("after edits, a pull reports %s", got)
	}
	b.push(r)
	if st := b.pull(r, filesync.PullOptions{}); len(st.Conflicts) > 0 {
		t.Errorf("after a push, a pull reports %+v", st.Conflicts)
	}
	if st := b.status(r); st.Conflicts.Count > 0 {
		t.Errorf("after a push, Status: %+v", st)
	}
	c := newPlace(t)
	c.pull(r, filesync.PullOptions{})
	checkEqual(t, b, c)
}

// A refusingFS refuses to write and remove one path.
type refusingFS struct {
	atoll.FS
	at string
}

func (f refusingFS) Sub(dir string) atoll.FS { return refusingFS{atoll.SubFiles(f.FS, dir), f.at} }

func (f refusingFS) Remove(ctx context.Context, name string, recursive bool) error {
	if path.Base(name) == f.at {
		return atoll.E("remove", name, atoll.ErrDenied, nil)
	}
	return f.FS.Remove(ctx, name, recursive)
}

func (f refusingFS) ReadTar(ctx context.Context, name string, r io.Reader) error {
	in, out := io.Pipe()
	refused := make(chan error, 1)
	go func() {
		err := f.copyEntries(tar.NewReader(r), tar.NewWriter(out))
		out.Close()
		refused <- err
	}()
	err := f.FS.ReadTar(ctx, name, in)
	if refusal := <-refused; refusal != nil {
		return refusal
	}
	return err
}

// copyEntries copies entries up to the refused one.
func (f refusingFS) copyEntries(r *tar.Reader, w *tar.Writer) error {
	for {
		h, err := r.Next()
		if err == io.EOF {
			return w.Close()
		}
		if err != nil {
			return err
		}
		if path.Base(h.Name) == f.at {
			w.Close()
			return atoll.E("write", h.Name, atoll.ErrDenied, nil)
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(w, r); err != nil {
			return err
		}
	}
}

// A file that a pull could not write or remove remains pending: the next pull tries
// again, and a push neither reverts nor removes the version's file.
func TestRefusedFilesRemain(t *testing.T) {
	for _, test := range []struct {
		what     string
		old, new string // content before and after; "" is no file
		edit     string // what the directory makes of it meanwhile
		pushed   string // what a push then makes of the version
	}{
		{"changed", "old", "new", "", "new"},
		{"changed, with the same size and edited here", "old", "new", "ed.", "ed."},
		{"new", "", "new", "", "new"},
		{"removed", "old", "", "", ""},
		{"removed and edited here", "old", "", "edited", "edited"},
	} {
		t.Run(test.what, func(t *testing.T) {
			r := newRemote(t, openBucket(t), filesync.Options{})
			a, b := newPlace(t), newPlace(t)
			put := func(p *testDir, text string) {
				if text == "" {
					p.removeFile("odd")
				} else {
					p.writeText("odd", text)
				}
			}
			a.writeText("other", "1")
			put(a, test.old)
			a.push(r)
			b.pull(r, filesync.PullOptions{})
			put(a, test.new)
			a.push(r)
			refusing := filesync.Tree{FS: refusingFS{b.FS, "odd"}, Dir: b.Dir}
			for range 2 {
				st, err := r.Pull(t.Context(), refusing, filesync.PullOptions{})
				if err != nil || st.Failed != 1 || !strings.HasPrefix(st.Errors[0], "odd: ") {
					t.Fatalf("Pull: %+v, %v, want an error about odd", st, err)
				}
				if st := b.status(r); fmt.Sprint(st.Pending.Paths) != "[odd]" {
					t.Errorf("Status: %+v", st)
				}
			}
			if test.edit != "" {
				put(b, test.edit)
			}
			b.writeText("mine", "1")
			b.push(r)
			c := newPlace(t)
			c.pull(r, filesync.PullOptions{})
			if got := c.readText("odd"); got != test.pushed && (test.pushed != "" || !strings.Contains(got, "no such file")) {
				t.Errorf("after a push, the version has %q, want %q", got, test.pushed)
			}
			b.pull(r, filesync.PullOptions{})
			checkEqual(t, c, b)
			if st := b.status(r); st.Pending.Count > 0 {
				t.Errorf("Status at the end: %+v", st)
			}
		})
	}
}

// Set-user-ID, set-group-ID and sticky bits that a file system does not set are no
// changes, and no push takes them from the version.
func TestSetIDBits(t *testing.T) {
	r := newRemote(t, openBucket(t), filesync.Options{})
	a, b, c := newPlaceWithSetID(t), newPlace(t), newPlaceWithSetID(t)
	a.writeText("su", "1")
	a.writeText("edited", "1")
	a.writeText("sd/f", "1")
	a.writeText("plain", "1")
	for name, mode := range map[string]os.FileMode{"su": 0o755 | os.ModeSetuid, "edited": 0o755 | os.ModeSetuid, "sd": 0o775 | os.ModeSetgid} {
		if err := os.Chmod(a.filePath(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	first := a.push(r)
	st := b.pull(r, filesync.PullOptions{})
	if got := fmt.Sprint(st.Dropped.Paths); got != "[edited sd su]" {
		t.Errorf("Pull dropped %s", got)
	}
	if got := b.mode("su"); got != 0o755 {
		t.Errorf("su has the mode %o, want 755", got)
	}
	if st := b.status(r); st.Changed.Count > 0 {
		t.Errorf("Status: %+v, want no change", st)
	}
	if st := b.push(r); st.Version != first.Version {
		t.Errorf("a push of nothing new makes version %d", st.Version)
	}
	if st := b.pull(r, filesync.PullOptions{}); st.FilesDownloaded > 0 || st.Dropped.Count > 0 {
		t.Errorf("the second Pull: %+v", st)
	}
	b.writeText("edited", "2")
	b.writeText("plain", "2")
	if err := os.Chmod(b.filePath("su"), 0o700); err != nil {
		t.Fatal(err)
	}
	b.push(r)
	c.pull(r, filesync.PullOptions{})
	for name, want := range map[string]uint32{"su": 0o4700, "sd": 0o2775, "edited": 0o755} { // as with a write by a user
		if got := c.mode(name); got != want {
			t.Errorf("%s has the mode %o, want %o", name, got, want)
		}
	}
	// Later, the user wants the bits.
	d := newPlace(t)
	d.pull(r, filesync.PullOptions{})
	trusted := placeWithSetIDAt(t, d.dir)
	if st := trusted.pull(r, filesync.PullOptions{SetID: true}); st.Dropped.Count > 0 {
		t.Errorf("Pull dropped %+v", st.Dropped)
	}
	checkEqual(t, c, trusted)
}

// A pull of bits that the directory's own file lacks takes the file for the version's
// only if nothing says that the directory has changed it.
func TestRemovedSetIDBits(t *testing.T) {
	r := newRemote(t, openBucket(t), filesync.Options{})
	a, b := newPlaceWithSetID(t), newPlaceWithSetID(t)
	a.writeText("su", "1")
	if err := os.Chmod(a.filePath("su"), 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	a.push(r)
	b.pull(r, filesync.PullOptions{})
	if err := os.Chmod(b.filePath("su"), 0o755); err != nil {
		t.Fatal(err)
	}
	if st := b.status(r); fmt.Sprint(st.Changed.Paths) != "[su]" {
		t.Errorf("Status: %+v", st)
	}
	b.push(r)
	a.pull(r, filesync.PullOptions{})
	if got := a.mode("su"); got != 0o755 {
		t.Errorf("su has the mode %o, want 755", got)
	}
}
