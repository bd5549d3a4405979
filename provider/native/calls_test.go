//go:build linux

package native_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
	"github.com/seed46cd37a8/atoll/provider/native/internal/seccomp"
)

// A callReport has the errors of system calls.
type callReport struct {
	Filtered map[uint32]syscall.Errno // by number: ENOSYS, unless the sandbox's filter has another error
	Absent   map[uint32]syscall.Errno // of calls that are made, and that do not exist inside
}

// The filter of a sandbox answers each system call as the package of its tables promises.
func TestSystemCalls(t *testing.T) {
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{Mounts: []atoll.Mount{supervisedtest.ProgramMount(t)}})
	groups, names := seccomp.Groups(), seccomp.Names()
	args, newest := []string{}, uint32(0)
	for n := range names {
		newest = max(newest, n)
	}
	newest += 20
	for n := range newest {
		if name := names[n]; name == "" || name == "clone3" {
			args = append(args, fmt.Sprint(n))
		}
	}
	var report callReport
	l.Must("report", json.Unmarshal([]byte(l.Run(sb, supervisedtest.ProgramCommand("calls", append([]string{fmt.Sprint(newest)}, args...)...))), &report))
	count := map[syscall.Errno]int{}
	for n := range newest {
		name := names[n]
		i := slices.IndexFunc(groups, func(g seccomp.Group) bool { return slices.Contains(g.Calls, name) })
		want := syscall.ENOSYS // of the program's own filter: the sandbox's allows it
		switch {
		case name == "", name == "clone3":
			if report.Absent[n] != syscall.ENOSYS {
				t.Errorf("call %d %s exists: %v", n, name, report.Absent[n])
			}
		case name == "uprobe", name == "uretprobe": // the kernel asks no filter, and raises a signal
			continue
		case name == "socket", name == "socketpair": // of a family that is not in the list
			want = syscall.EAFNOSUPPORT
		case groups[i].Access != seccomp.Allowed, name == "clone": // with flags for namespaces
			want = syscall.EPERM
		}
		if got := report.Filtered[n]; got != want {
			t.Errorf("call %d %s: %v, want %v", n, name, got, want)
		}
		count[want]++
	}
	t.Logf("%d calls: %v", newest, count)
}

// callsProgram makes all system calls below args[0] under a filter of its own that lets none through, and those in the rest of args
// in earnest, with senseless arguments. The kernel prefers the answer of the sandbox's filter.
func callsProgram(args []string) error {
	runtime.LockOSThread()
	var numbers []uint32
	for _, a := range args {
		n, err := strconv.ParseUint(a, 10, 32)
		if err != nil {
			return err
		}
		numbers = append(numbers, uint32(n))
	}
	const minusOne, mark = math.MaxUint, 0x41544f4c
	call := func(n uint32, last uintptr) syscall.Errno {
		_, _, errno := unix.RawSyscall6(uintptr(n), minusOne, minusOne, minusOne, minusOne, minusOne, last)
		return errno
	}
	report := callReport{map[uint32]syscall.Errno{}, map[uint32]syscall.Errno{}}
	for _, n := range numbers[1:] {
		report.Absent[n] = call(n, minusOne)
	}
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 16 + 5*8}, // the last argument
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: mark, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_TRACE}, // without a tracer the call is ENOSYS
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return errno
	}
	for n := range numbers[0] {
		if n != unix.SYS_UPROBE && n != unix.SYS_URETPROBE {
			report.Filtered[n] = call(n, mark)
		}
	}
	return json.NewEncoder(os.Stdout).Encode(report)
}
