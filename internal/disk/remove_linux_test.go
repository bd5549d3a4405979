package disk

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/internal/testenv"
)

// What is mounted in a tree is not the tree's.
func TestRemoveAllStopsAtMounts(t *testing.T) {
	testenv.Need(t, testenv.Root)
	dir := t.TempDir()
	tree, other := filepath.Join(dir, "tree"), filepath.Join(dir, "other")
	for _, path := range []string{filepath.Join(tree, "mounted"), other} {
		must(t, os.MkdirAll(path, 0o755))
		must(t, os.WriteFile(filepath.Join(path, "file"), nil, 0o644))
	}
	mounted := filepath.Join(tree, "mounted")
	must(t, unix.Mount(other, mounted, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(mounted, unix.MNT_DETACH) })
	for _, path := range []string{tree, mounted} {
		wantErr(t, "remove", RemoveAll(path), unix.EBUSY)
	}
	if !exists(filepath.Join(other, "file")) {
		t.Error("what was mounted was removed")
	}
	must(t, unix.Unmount(mounted, 0))
	must(t, RemoveAll(tree))
}
