//go:build linux

package gvisor_test

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/gvisor"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
)

// The kernel has the same filters and rights for the processes of the engine program, whose filters are compiled before,
// as for those of a program that lets gVisor compile them.
func TestFilters(t *testing.T) {
	testenv.Need(t, testenv.Root)
	if err := gvisor.Static("/proc/self/exe"); err != nil {
		t.Skipf("this test program cannot be an engine: %v", err)
	}
	engine := installedFilters(newLab(t))
	plain := installedFilters(newLab(t, func(o *gvisor.Options) { o.Helper = "/proc/self/exe" }))
	for name, want := range plain {
		if got := engine[name]; !bytes.Equal(got.filter, want.filter) {
			t.Errorf("%s: the filter of the engine program differs: %d and %d instructions", name, len(got.filter)/8, len(want.filter)/8)
		} else if got.rights != want.rights {
			t.Errorf("%s: the engine program has the rights\n%swant\n%s", name, got.rights, want.rights)
		}
	}
}

// walls confine a process.
type walls struct {
	filter []byte // seccomp program of the kernel
	rights string // lines of /proc/PID/status
}

// installedFilters returns the walls of the sentry and the gofer of a sandbox.
func installedFilters(l *lab) map[string]walls {
	l.T.Helper()
	all := map[string]walls{}
	for name, pid := range supervisedtest.Children(l.T, l.SupervisorOf(l.NewSandbox(atoll.Spec{}))) {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		l.Must("status", err)
		var rights strings.Builder
		for line := range strings.Lines(string(status)) {
			if strings.HasPrefix(line, "Cap") || strings.HasPrefix(line, "Seccomp") || strings.HasPrefix(line, "NoNewPrivs") {
				rights.WriteString(line)
			}
		}
		all[name] = walls{readFilter(l.T, pid), rights.String()}
	}
	if len(all["runsc-sandbox"].filter) == 0 || len(all["runsc-gofer"].filter) == 0 {
		l.T.Fatalf("processes without a filter: %v", all)
	}
	return all
}

// readFilter returns the only seccomp program of a process.
func readFilter(t testing.TB, pid int) []byte {
	t.Helper()
	runtime.LockOSThread() // ptrace is a relation of threads
	defer runtime.UnlockOSThread()
	if err := unix.PtraceSeize(pid); err != nil {
		t.Fatalf("trace %d: %v", pid, err)
	}
	defer unix.PtraceDetach(pid)
	if err := unix.PtraceInterrupt(pid); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Wait4(pid, nil, unix.WALL, nil); err != nil {
		t.Fatal(err)
	}
	get := func(index int, to unsafe.Pointer) (int, syscall.Errno) {
		n, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SECCOMP_GET_FILTER, uintptr(pid), uintptr(index), uintptr(to), 0, 0)
		return int(n), errno
	}
	n, errno := get(0, nil)
	switch {
	case errno == unix.EIO:
		t.Skip("this kernel is built without CHECKPOINT_RESTORE, and does not show filters")
	case errno != 0:
		t.Fatalf("filter of %d: %v", pid, errno)
	}
	filter := make([]unix.SockFilter, n)
	if _, errno := get(0, unsafe.Pointer(&filter[0])); errno != 0 {
		t.Fatalf("filter of %d: %v", pid, errno)
	}
	if _, errno := get(1, nil); errno != unix.ENOENT {
		t.Errorf("process %d has another filter: %v", pid, errno)
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&filter[0])), 8*n)
}
