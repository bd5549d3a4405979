//go:build unix

package fsutil

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// A lock is free when it is released, though a descriptor is left to a child on
// its way to its own program.
func TestReleasedBeforeChildren(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	l, err := TryLock(path)
	must(t, err)
	child := dup(t, l.file)
	defer child.Close()
	l.Release()
	l, err = TryLock(path)
	must(t, err)
	l.Release()
}

// A lock on what was opened before can be shared, lies on directories too, ends
// when all have closed it, and is refused on what is elsewhere by now.
func TestFlock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	must(t, os.Mkdir(dir, 0o700))
	open := func() *os.File {
		f, err := os.Open(dir)
		must(t, err)
		return f
	}
	one, two, other := open(), open(), open()
	child := dup(t, two)
	must(t, Flock(one, syscall.LOCK_SH|syscall.LOCK_NB))
	must(t, Flock(two, syscall.LOCK_SH|syscall.LOCK_NB))
	for _, f := range []*os.File{one, two, child} {
		wantErr(t, "try a lock that is shared", Flock(other, syscall.LOCK_EX|syscall.LOCK_NB), ErrLocked)
		f.Close()
	}
	must(t, Flock(other, syscall.LOCK_EX|syscall.LOCK_NB))
	other.Close()
	for _, replace := range []bool{false, true} {
		f := open()
		must(t, os.Rename(dir, dir+" elsewhere"))
		if replace {
			must(t, os.Mkdir(dir, 0o700))
		}
		wantErr(t, "lock what is elsewhere", Flock(f, syscall.LOCK_EX), fs.ErrNotExist)
		f.Close()
		must(t, os.RemoveAll(dir))
		must(t, os.Rename(dir+" elsewhere", dir))
	}
}

func dup(t *testing.T, f *os.File) *os.File {
	t.Helper()
	fd, err := syscall.Dup(int(f.Fd()))
	must(t, err)
	return os.NewFile(uintptr(fd), "child")
}
