package testenv

import (
	"os"
	"testing"
)

// diskVar passes the check's folder on disk. It is not set if temporary files are on disk anyway.
const diskVar = "CHECK_DISK"

// DiskDir returns a new directory on disk, which is removed when the test ends. The directories of
// t.TempDir may be in memory.
func DiskDir(t testing.TB) string {
	t.Helper()
	disk := os.Getenv(diskVar)
	if disk == "" {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp(disk, "t")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
