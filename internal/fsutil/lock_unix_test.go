//go:build unix

package fsutil

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Release frees a lock although a child before its exec still has the descriptor.
func TestReleasedBeforeChildren(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	l, err := TryLock(path)
	must(t, err)
	child := duplicateFile(t, l.file)
	defer child.Close()
	l.Release()
	l, err = TryLock(path)
	must(t, err)
	l.Release()
}

// Flock locks can be shared, work on directories, end when all descriptors are closed,
// and fail on a file that was moved since it was opened.
func TestFlock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	must(t, os.Mkdir(dir, 0o700))
	open := func() *os.File {
		f, err := os.Open(dir)
		must(t, err)
		return f
	}
	one, two, other := open(), open(), open()
	child := duplicateFile(t, two)
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

func duplicateFile(t *testing.T, f *os.File) *os.File {
	t.Helper()
	fd, err := syscall.Dup(int(f.Fd()))
	must(t, err)
	return os.NewFile(uintptr(fd), "child")
}
