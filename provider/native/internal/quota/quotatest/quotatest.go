//go:build linux

// Package quotatest mounts file systems with project quotas for tests.
package quotatest

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Mount returns a directory with an empty file system that has project quotas, until the test ends. It skips the test if this machine
// cannot mount one.
func Mount(t testing.TB) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a file system")
	}
	dir, disk := t.TempDir(), filepath.Join(t.TempDir(), "disk")
	if err := errors.Join(os.WriteFile(disk, nil, 0o600), os.Truncate(disk, 512<<20)); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) error {
		out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		if err != nil {
			t.Logf("%q: %v: %s", args, err, bytes.TrimSpace(out))
		}
		return err
	}
	if err := run("mkfs.ext4", "-q", "-O", "quota,project", "-E", "quotatype=prjquota", disk); err != nil {
		t.Fatal(err)
	}
	if run("mount", "-o", "loop,prjquota", disk, dir) != nil {
		t.Skip("this kernel has no project quotas of ext4 (CONFIG_QFMT_V2)")
	}
	t.Cleanup(func() {
		if err := run("umount", dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
