package stack

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// A server whose state directory is full is not ready, and leaves nothing there.
func TestFullDiskIsNotReady(t *testing.T) {
	testenv.Need(t, testenv.Root)
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("tmpfs cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	if err := checkWritable(dir); err != nil {
		t.Errorf("with room: %v", err)
	}
	fill := filepath.Join(dir, "fill")
	if err := os.WriteFile(fill, make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	if err := checkWritable(dir); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("without room: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left %v, %v", left, err)
	}
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	if err := checkWritable(dir); err != nil {
		t.Errorf("with room again: %v", err)
	}
}
