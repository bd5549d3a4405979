package filesync_test

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/storage/filesync"
)

// mountTiny mounts a file system of a few bytes over a directory.
func mountTiny(t *testing.T, dir, options string) {
	t.Helper()
	if err := syscall.Mount("none", dir, "tmpfs", 0, options); err != nil {
		t.Skipf("tmpfs cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
}

// An error names the full disk; after space was freed, the sync continues.
func TestNoRoom(t *testing.T) {
	testenv.Need(t, testenv.Root)
	r := newRemote(t, openBucket(t), filesync.Options{})
	a := newPlace(t)
	a.writeText("big", strings.Repeat("0123456789", 100<<10))
	a.writeText("small", "1")
	a.push(r)
	wants := func(what string, err error, text string) {
		t.Helper()
		if atoll.KindOf(err) != atoll.ErrExhausted || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %q", what, err, text)
		}
	}
	func() {
		dir := t.TempDir()
		mountTiny(t, dir, "size=512k")
		full := placeAt(t, dir)
		_, err := r.Pull(t.Context(), full.Tree, filesync.PullOptions{})
		wants("a pull", err, "free some and pull again")
		if _, err := os.Stat(full.filePath("big")); err == nil {
			t.Error("there is a part of what did not fit")
		}
		if err := syscall.Mount("none", dir, "tmpfs", syscall.MS_REMOUNT, "size=20m"); err != nil {
			t.Fatal(err)
		}
		full.pull(r, filesync.PullOptions{})
		checkEqual(t, a, full)
		if err := syscall.Mount("none", dir, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		for what, try := range map[string]func() error{
			"push": func() error { _, err := r.Push(t.Context(), full.Tree, filesync.PushOptions{}); return err },
			"pull": func() error { _, err := r.Pull(t.Context(), full.Tree, filesync.PullOptions{}); return err },
		} {
			if err := try(); atoll.KindOf(err) != atoll.ErrDenied || !strings.Contains(err.Error(), "the directory writable") {
				t.Errorf("%s of a directory that cannot be written: %v", what, err)
			}
		}
		if st, err := r.Status(t.Context(), full.Tree); err != nil || st.Added.Count+st.Changed.Count+st.Removed.Count > 0 {
			t.Errorf("status of a directory that cannot be written: %+v, %v", st, err)
		}
	}()
	ours := t.TempDir()
	mountTiny(t, ours, "size=512k")
	before := newRemote(t, openBucket(t), filesync.Options{Dir: ours})
	_, err := before.Push(t.Context(), a.Tree, filesync.PushOptions{})
	wants("a push without room for what is on its way", err, "set TMPDIR")
	store := t.TempDir()
	mountTiny(t, store, "size=512k")
	_, err = newRemote(t, openStore(t, store), filesync.Options{}).Push(t.Context(), a.Tree, filesync.PushOptions{})
	wants("a push without room in the store", err, store)
}

// If a part of a directory is read-only, a pull writes the rest of the version and
// reports that part.
func TestPartlyReadOnly(t *testing.T) {
	testenv.Need(t, testenv.Root)
	r := newRemote(t, openBucket(t), filesync.Options{})
	p, q := newPlace(t), newPlace(t)
	for _, name := range []string{"a", "sub/1", "sub/2", "sub/below/3", "sub/below/4", "z/5"} {
		p.writeText(name, name)
	}
	p.writeText("z/big", strings.Repeat("x", 300<<10))
	p.push(r)
	dir := q.filePath("sub")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	mountTiny(t, dir, "size=512k,ro")
	for _, written := range []int{3, 0} {
		st := q.pull(r, filesync.PullOptions{})
		if st.Failed != 5 || st.FilesDownloaded != written || !strings.Contains(strings.Join(st.Errors, "\n"), "sub/2: ") {
			t.Errorf("Pull: %+v, want errors about all that is in sub, and %d files", st, written)
		}
		if q.readText("a") != "a" || q.readText("z/5") != "z/5" || q.readText("z/big") != p.readText("z/big") {
			t.Errorf("there are %q, %q", q.readText("a"), q.readText("z/5"))
		}
	}
	if err := syscall.Mount("none", dir, "tmpfs", syscall.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	st := q.pull(r, filesync.PullOptions{})
	if st.Failed > 0 || st.FilesDownloaded != 4 || st.BytesTransferred != int64(len("sub/1sub/2sub/below/3sub/below/4")) {
		t.Errorf("Pull: %+v, want the four files that could not be written", st)
	}
	if q.readText("sub/below/4") != "sub/below/4" {
		t.Errorf("there is %q", q.readText("sub/below/4"))
	}
}
