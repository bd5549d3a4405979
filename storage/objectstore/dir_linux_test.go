package objectstore_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

// Errors report a full disk and a read-only one, and failed writes leave nothing.
func TestDisksThatRefuse(t *testing.T) {
	testenv.Need(t, testenv.Root)
	dir := t.TempDir()
	if err := unix.Mount("atoll-test", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	write := func(b objectstore.Bucket, size int) error {
		_, err := b.Put(t.Context(), "k", strings.NewReader(strings.Repeat("x", size)), int64(size), objectstore.Condition{})
		return err
	}
	b := openDir(t, dir)
	wantKind(t, "Put on a full disk", write(b, 2<<20), atoll.ErrExhausted)
	if got := fileNames(t, filepath.Join(dir, "+temporary")); len(got) > 0 {
		t.Errorf("left: %q", got)
	}
	if err := write(b, 1000); err != nil {
		t.Errorf("Put: %v", err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	b = openDir(t, dir)
	wantKind(t, "Put on one that may only be read", write(b, 1), atoll.ErrDenied)
	wantKind(t, "Delete", b.Delete(t.Context(), "k"), atoll.ErrDenied)
	if o, err := b.Stat(t.Context(), "k"); err != nil || o.Size != 1000 {
		t.Errorf("Stat: %+v, %v", o, err)
	}
	for o, err := range b.List(t.Context(), "") {
		if err != nil || o.Key != "k" {
			t.Errorf("List: %+v, %v", o, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "k+object")); err != nil {
		t.Error(err)
	}
}
