//go:build unix

package objectstore_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// holdLock holds the lock, as another program would, until the file is closed.
func holdLock(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	return f
}

// A pipe in the place of an object blocks nobody.
func TestPipesInADir(t *testing.T) {
	dir := t.TempDir()
	b := openDir(t, dir)
	putText(t, b, "k", "x")
	for _, name := range []string{"pipe+object", "+temporary/pipe"} {
		if err := syscall.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := b.Get(t.Context(), "pipe", 0, -1); err == nil {
		t.Error("a pipe was read")
	}
	openDir(t, dir)
	putText(t, b, "pipe", "x")
	if err := b.Delete(t.Context(), "pipe", "k"); err != nil {
		t.Error(err)
	}
}
