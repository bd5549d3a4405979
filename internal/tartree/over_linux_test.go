package tartree_test

import (
	"archive/tar"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/seed46cd37a8/atoll/internal/tartree"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
)

func makeTree(t *testing.T, dir, script string) {
	t.Helper()
	for _, line := range strings.Split(script, ";") {
		f := strings.Fields(line)
		path := func(i int) string { return filepath.Join(dir, f[i]) }
		var err error
		switch f[0] {
		case "mkdir":
			err = os.Mkdir(path(1), 0o700)
		case "write":
			err = os.WriteFile(path(1), []byte(f[2]), 0o600)
		case "link":
			err = os.Link(path(1), path(2))
		case "symlink":
			err = os.Symlink(f[1], path(2))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Overwrite writes all files of the stream, also through links to directories, and retains
// all others. A running program retains the file that it was started from.
func TestOver(t *testing.T) {
	testenv.Need(t, testenv.Root)
	dir := t.TempDir()
	makeTree(t, dir, "mkdir usr; mkdir usr/bin; symlink usr/bin bin; write usr/bin/tool old; write usr/bin/mine mine; write now-a-link text; symlink gone stale; mkdir data; write data/kept kept")
	open, err := os.Open(filepath.Join(dir, "usr/bin/tool"))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	owned := testimage.File("bin/tool", 0o4755, "new")
	owned.Uid, owned.Gid = 12, 34
	owned.Format, owned.PAXRecords = tar.FormatPAX, map[string]string{"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "SCHILY.xattr.user.odd": "x"}
	stream := testimage.Tar(t, testimage.Dir("./", 0o755), testimage.Dir("bin/", 0o755), owned, testimage.Link("./usr/bin/alias", "bin/tool"),
		testimage.Symlink("now-a-link", "usr"), testimage.File("stale", 0o640, "fresh"), testimage.Dir("data/", 0o711), testimage.File("new/below", 0o600, "below"))
	for range 2 { // the second time over itself
		if err := tartree.Overwrite(dir, bytes.NewReader(stream)); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{"usr/bin/tool": "new", "usr/bin/alias": "new", "usr/bin/mine": "mine", "now-a-link/bin/mine": "mine", "stale": "fresh", "data/kept": "kept", "new/below": "below"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s has %q, %v, want %q", name, got, err, want)
		}
	}
	for name, want := range map[string]fs.FileMode{"usr/bin/tool": 0o755 | fs.ModeSetuid, "bin": 0o777 | fs.ModeSymlink, "stale": 0o640, "data": 0o711 | fs.ModeDir} {
		if info, err := os.Lstat(filepath.Join(dir, name)); err != nil || info.Mode() != want {
			t.Errorf("%s is %v, %v, want %v", name, info.Mode(), err, want)
		}
	}
	info, err := os.Stat(filepath.Join(dir, "usr/bin/tool"))
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); st.Uid != 12 || st.Gid != 34 || st.Nlink != 2 {
		t.Errorf("its owner is %d:%d, and it has %d names", st.Uid, st.Gid, st.Nlink)
	}
	if n, err := syscall.Getxattr(filepath.Join(dir, "usr/bin/tool"), "security.capability", make([]byte, 64)); n != 20 || err != nil {
		t.Errorf("its capabilities: %d bytes, %v", n, err)
	}
	was := make([]byte, 9)
	if n, _ := open.Read(was); string(was[:n]) != "old" {
		t.Errorf("the open file reads %q", was[:n])
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*/*/.atoll-new")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// An incomplete entry changes nothing of the file it would replace, and the error names it.
func TestOverCutShort(t *testing.T) {
	testenv.Need(t, testenv.Root)
	dir := t.TempDir()
	makeTree(t, dir, "write tool old; mkdir data; write data/kept kept")
	stream := testimage.Tar(t, testimage.File("tool", 0o755, strings.Repeat("new", 1000)))
	if err := tartree.Overwrite(dir, bytes.NewReader(stream[:1024])); err == nil || !strings.Contains(err.Error(), "tool: ") {
		t.Errorf("half a stream: %v", err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "tool")); err != nil || string(got) != "old" {
		t.Errorf("it has %.20q, %v", got, err)
	}
	for _, entry := range []testimage.Entry{testimage.File("data", 0o600, "in the way"), testimage.Dir("tool/", 0o755)} {
		if err := tartree.Overwrite(dir, bytes.NewReader(testimage.Tar(t, entry))); err == nil {
			t.Errorf("%s was replaced by what is of another kind", entry.Header.Name)
		}
	}
	if got, err := os.ReadFile(filepath.Join(dir, "data/kept")); err != nil || string(got) != "kept" {
		t.Errorf("data has %q, %v", got, err)
	}
}
