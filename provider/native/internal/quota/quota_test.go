//go:build linux

package quota_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/provider/native/internal/quota"
	"github.com/seed46cd37a8/atoll/provider/native/internal/quota/quotatest"
)

func TestWorks(t *testing.T) {
	if quota.Works("/proc/self") || quota.Works("/dev/none") {
		t.Error("quotas work where there are none")
	}
	if dir := quotatest.Mount(t); !quota.Works(dir) || !quota.Works(filepath.Join(dir, "new", "one")) {
		t.Error("quotas do not work on a file system with them")
	}
}

func TestLimit(t *testing.T) {
	top := quotatest.Mount(t)
	if quota.Limit("/proc", 1<<20) == nil {
		t.Error("a directory without quotas got a limit")
	}
	asUser(t, func() {
		for _, name := range []string{"a", "b"} {
			dir := filepath.Join(top, name, "sub")
			if err := errors.Join(os.Mkdir(filepath.Dir(dir), 0o700), quota.Limit(filepath.Dir(dir), 8<<20), os.Mkdir(dir, 0o700)); err != nil {
				t.Error(err)
				return
			}
			check := func(size int, fits bool) {
				t.Helper()
				// ext4 says EDQUOT, and xfs ENOSPC.
				err := os.WriteFile(filepath.Join(dir, "file"), make([]byte, size), 0o600)
				if full := errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.ENOSPC); fits && err != nil || !fits && !full {
					t.Errorf("%d bytes, which fit: %t: %v", size, fits, err)
				}
			}
			check(4<<20, true)
			check(16<<20, false)
			if err := quota.Limit(filepath.Dir(dir), 32<<20); err != nil {
				t.Error(err)
			}
			check(16<<20, true)
			var st unix.Statfs_t
			if err := unix.Statfs(dir, &st); err != nil || int64(st.Blocks)*st.Bsize != 32<<20 {
				t.Errorf("size of the file system: %d, %v", int64(st.Blocks)*st.Bsize, err)
			}
		}
	})
}

// asUser calls f without the right to exceed limits.
func asUser(t *testing.T, f func()) {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if err := unix.Capget(&header, &data[0]); err != nil {
			t.Error(err)
			return
		}
		data[0].Effective &^= 1 << unix.CAP_SYS_RESOURCE
		if err := unix.Capset(&header, &data[0]); err != nil {
			t.Error(err)
			return
		}
		f()
	}()
	<-done
}
