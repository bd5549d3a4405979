package fsutil_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

func TestUsedBelow(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, size int) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, make([]byte, size), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, least, most int64) {
		t.Helper()
		if used, err := fsutil.UsedBelow(dir); err != nil || used < least || used > most {
			t.Errorf("%s: %d bytes, %v; want between %d and %d", what, used, err, least, most)
		}
	}
	const mib = 1 << 20
	check("an empty directory", 0, 0)
	write(filepath.Join(dir, "a"), mib)
	write(filepath.Join(dir, "sub", "b"), mib)
	check("two files", 2*mib, 2*mib+64<<10)
	if err := errors.Join(os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "sub", "a2")), os.Symlink("/usr", filepath.Join(dir, "usr")),
		os.Truncate(filepath.Join(dir, "sub", "b"), 1<<40)); err != nil {
		t.Fatal(err)
	}
	check("a second name, a link and a hole", 2*mib, 2*mib+64<<10)
	if _, err := fsutil.UsedBelow(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing directory: %v", err)
	}
}

// A file that is deeper than any path, and than there are descriptors, counts.
func TestUsedBelowDeep(t *testing.T) {
	dir := t.TempDir()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	for range 3000 {
		if err == nil {
			err = unix.Mkdirat(fd, "d", 0o700)
		}
		if err == nil {
			var below int
			below, err = unix.Openat(fd, "d", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			_ = unix.Close(fd)
			fd = below
		}
	}
	var file int
	if err == nil {
		file, err = unix.Openat(fd, "file", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	}
	if err == nil {
		_, err = unix.Write(file, make([]byte, 1<<20))
	}
	if err != nil {
		t.Fatal(err)
	}
	_, _ = unix.Close(file), unix.Close(fd)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	used, err := fsutil.UsedBelow(dir)
	if err != nil || used < 1<<20 || used > 1<<20+3001*8<<10 {
		t.Errorf("%d bytes, %v", used, err)
	}
}
