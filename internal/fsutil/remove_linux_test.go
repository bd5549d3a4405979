package fsutil

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// RemoveAll does not remove files that are mounted in the tree.
func TestRemoveAllStopsAtMounts(t *testing.T) {
	testenv.Need(t, testenv.Root)
	tree := filepath.Join(t.TempDir(), "tree")
	mounted := filepath.Join(tree, "mounted")
	must(t, os.MkdirAll(mounted, 0o755))
	must(t, unix.Mount("atoll-test", mounted, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(mounted, unix.MNT_DETACH) })
	file := filepath.Join(mounted, "file")
	must(t, os.WriteFile(file, nil, 0o644))
	for _, path := range []string{tree, mounted} {
		wantErr(t, "remove", RemoveAll(path), unix.EBUSY)
	}
	if !fileExists(file) {
		t.Error("what was mounted was removed")
	}
	must(t, unix.Unmount(mounted, 0))
	must(t, RemoveAll(tree))
}
