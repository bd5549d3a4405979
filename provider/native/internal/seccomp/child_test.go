//go:build linux && (amd64 || arm64)

package seccomp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// childEnv names the function of children that this program runs instead of the tests.
const childEnv = "ATOLL_SECCOMP_TEST"

// children are programs under a filter. Each prints its results as JSON.
var children = map[string]func() (any, error){
	"all":          func() (any, error) { return callAll(markAnswers(Program(Options{}))) },
	"all nested":   func() (any, error) { return callAll(markAnswers(Program(Options{Nested: true}))) },
	"plain":        func() (any, error) { return callAll(Program(Options{})) },
	"plain nested": func() (any, error) { return callAll(Program(Options{Nested: true})) },
	"some":         func() (any, error) { return callSome(Program(Options{})) },
	"some nested":  func() (any, error) { return callSome(Program(Options{Nested: true})) },
	"program":      func() (any, error) { return nil, runOrdinaryProgram() },
	"nothing":      func() (any, error) { return nil, nil },
	"nested program": func() (any, error) {
		if err := installFilter(Program(Options{Nested: true}), unix.SECCOMP_FILTER_FLAG_TSYNC); err != nil {
			return nil, err
		}
		return nil, startNamespaces()
	},
}

func TestMain(m *testing.M) {
	name := os.Getenv(childEnv)
	if name == "" {
		os.Exit(m.Run())
	}
	result, err := children[name]()
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(result)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// runChild runs one of children and decodes its result.
func runChild(t *testing.T, name string, result any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(30*time.Second))
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"="+name)
	cmd.Dir = t.TempDir()
	cmd.WaitDelay = 5 * time.Second
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, result)
	}
	if err != nil {
		t.Fatalf("child %q: %v\n%s", name, err, stderr.String())
	}
}

// installFilter puts a filter on the calling thread or on all threads, for the rest of their lives.
func installFilter(filter []unix.SockFilter, flags uintptr) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl: %w", err)
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(filter)
	if errno != 0 || thread != 0 {
		return fmt.Errorf("seccomp: thread %d: %w", thread, errno)
	}
	return nil
}

// The errors that markAnswers puts in place of others. No kernel returns them.
const (
	markedRefused      = syscall.Errno(1000) + iota
	markedAbsent       // ENOSYS
	markedAbsentFamily // EAFNOSUPPORT
	markedAllowed      // for all other results of a call, in the table of the test
)

// markAnswers returns the filter with errors that only a filter returns, so that a test can tell them from the errors
// of the kernel.
func markAnswers(filter []unix.SockFilter) []unix.SockFilter {
	marks := map[uint32]syscall.Errno{refused: markedRefused, absent: markedAbsent, absentFamily: markedAbsentFamily}
	for i, in := range filter {
		if mark, ok := marks[in.K]; ok && in.Code == unix.BPF_RET|unix.BPF_K {
			filter[i].K = unix.SECCOMP_RET_ERRNO | uint32(mark)
		}
	}
	return filter
}

// skippedCalls are calls that callAll does not make, with the reason.
var skippedCalls = map[string]string{
	"exit":            "ends the thread",
	"exit_group":      "ends the process",
	"fork":            "makes a copy that would go on here",
	"vfork":           "makes a child in the same memory that would go on here",
	"pause":           "waits for a signal",
	"rt_sigreturn":    "takes the stack for the frame of a signal",
	"restart_syscall": "may go on with a call that the runtime made",
	"uprobe":          "raises SIGILL or SIGSEGV except in code that the kernel has put there",
	"uretprobe":       "raises SIGILL or SIGSEGV except in code that the kernel has put there",
	"kill":            "has -1 for all processes, though the signal -1 is invalid",
	"sync":            "waits for all disks",
	"msgget":          "makes a queue that would outlive the test",
	"setsid":          "takes the child out of the process group of the test",
	"set_tid_address": "has the kernel write to the address when the thread ends",
}

// callAll makes each system call from 0 to some above the newest, without those in skippedCalls, and returns their errors.
// Each argument is -1: no descriptor, no address, no process, and more flags than any call has. So that a fault of the
// filter does no harm, the process gives up all rights before.
func callAll(filter []unix.SockFilter) (map[uint32]syscall.Errno, error) {
	if os.Geteuid() == 0 {
		const nobody = 65534
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setresgid(nobody, nobody, nobody), syscall.Setresuid(nobody, nobody, nobody)); err != nil {
			return nil, fmt.Errorf("become nobody: %w", err)
		}
	}
	runtime.LockOSThread()
	if err := installFilter(filter, 0); err != nil {
		return nil, err
	}
	names, errnos := Names(), map[uint32]syscall.Errno{}
	for number := range uint32(newestCall + 30) {
		if skippedCalls[names[number]] == "" {
			_, _, errnos[number] = unix.RawSyscall6(uintptr(number), math.MaxUint, math.MaxUint, math.MaxUint, math.MaxUint, math.MaxUint, math.MaxUint)
		}
	}
	return errnos, nil
}

// The kernel answers each call as the table promises.
func TestEachCall(t *testing.T) {
	groups, names := Groups(), Names()
	minusOne := [6]uint64{math.MaxUint64, math.MaxUint64, math.MaxUint64, math.MaxUint64, math.MaxUint64, math.MaxUint64}
	for child, o := range map[string]Options{"": {}, " nested": {Nested: true}} {
		marked, plain := map[uint32]syscall.Errno{}, map[uint32]syscall.Errno{}
		runChild(t, "all"+child, &marked)
		runChild(t, "plain"+child, &plain)
		count := map[syscall.Errno]int{}
		for number := range uint32(newestCall + 30) {
			name := names[number]
			if _, made := marked[number]; made == (skippedCalls[name] != "") {
				t.Errorf("call %d %s: made: %v", number, name, made)
			}
			if skippedCalls[name] != "" {
				continue
			}
			answer := judgeCall(groups, name, o, minusOne)
			if name == "" {
				answer = absent
			}
			want := map[uint32]syscall.Errno{refused: markedRefused, absent: markedAbsent, absentFamily: markedAbsentFamily, unix.SECCOMP_RET_ALLOW: markedAllowed}[answer]
			got := marked[number]
			if got < markedRefused {
				got = markedAllowed
			}
			if got != want {
				t.Errorf("%+v: call %d %s: got %d (the kernel says %v), want %d", o, number, name, got, marked[number], want)
			}
			if errno := syscall.Errno(answer & unix.SECCOMP_RET_DATA); want != markedAllowed && plain[number] != errno {
				t.Errorf("%+v: call %d %s: %v, want %v", o, number, name, plain[number], errno)
			}
			count[want]++
		}
		t.Logf("%+v: %d calls allowed, %d refused, %d absent", o, count[markedAllowed], count[markedRefused], count[markedAbsent])
	}
}

// callSome makes calls whose arguments a rule reads, on descriptors and processes that do not exist, and returns their
// errors.
func callSome(filter []unix.SockFilter) (map[string]string, error) {
	runtime.LockOSThread()
	if err := installFilter(filter, 0); err != nil {
		return nil, err
	}
	out := map[string]string{}
	try := func(name string, number uintptr, args ...uintptr) {
		var a [6]uintptr
		copy(a[:], args)
		r, _, errno := unix.RawSyscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
		out[name] = "done"
		if errno != 0 {
			out[name] = unix.ErrnoName(errno)
		} else if strings.HasPrefix(name, "socket ") {
			unix.Close(int(r))
		}
	}
	const minusOne, high = ^uintptr(0), uintptr(1) << 32
	try("TCGETS", unix.SYS_IOCTL, minusOne, unix.TCGETS)
	try("TIOCSTI", unix.SYS_IOCTL, minusOne, unix.TIOCSTI)
	try("TIOCSTI with high bits", unix.SYS_IOCTL, minusOne, unix.TIOCSTI|high)
	try("TIOCLINUX", unix.SYS_IOCTL, minusOne, unix.TIOCLINUX)
	try("clone into a user namespace", unix.SYS_CLONE, unix.CLONE_NEWUSER|unix.CLONE_FS|high) // the kernel refuses both flags together
	try("clone into a network namespace", unix.SYS_CLONE, unix.CLONE_NEWNET|unix.CLONE_SIGHAND)
	try("clone of a thread", unix.SYS_CLONE, unix.CLONE_THREAD) // the kernel wants CLONE_SIGHAND with it
	try("clone3", unix.SYS_CLONE3, 0, 0)
	try("unshare", unix.SYS_UNSHARE, 0)
	try("setns", unix.SYS_SETNS, minusOne, 0)
	try("personality", unix.SYS_PERSONALITY, 0xffffffff)
	try("personality without random addresses", unix.SYS_PERSONALITY, 0x40000)
	try("socket unix", unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM, 0)
	try("socket inet", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 0)
	try("socket inet with high bits", unix.SYS_SOCKET, unix.AF_INET|high, unix.SOCK_STREAM, 0)
	try("socket inet6", unix.SYS_SOCKET, unix.AF_INET6, 999, 0) // an invalid type: the machine may have no IPv6
	try("socket netlink", unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
	try("socket packet", unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW, 0)
	try("socket vsock", unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM, 0)
	try("socket alg", unix.SYS_SOCKET, unix.AF_ALG, unix.SOCK_SEQPACKET, 0)
	try("socketpair of tipc", unix.SYS_SOCKETPAIR, unix.AF_TIPC, unix.SOCK_SEQPACKET, 0, 0)
	try("getpid of x32", unix.SYS_GETPID|0x40000000)
	try("a future call", newestCall+1)
	try("keyctl", unix.SYS_KEYCTL, unix.KEYCTL_GET_KEYRING_ID, minusOne, 0)
	return out, nil
}

func TestSomeCalls(t *testing.T) {
	var got, nested map[string]string
	runChild(t, "some", &got)
	runChild(t, "some nested", &nested)
	for name, want := range map[string][2]string{ // without and with Options.Nested
		"TCGETS":                               {"EBADF", "EBADF"},
		"TIOCSTI":                              {"EPERM", "EPERM"},
		"TIOCSTI with high bits":               {"EPERM", "EPERM"},
		"TIOCLINUX":                            {"EPERM", "EPERM"},
		"clone into a user namespace":          {"EPERM", "EINVAL"},
		"clone into a network namespace":       {"EPERM", "EINVAL"},
		"clone of a thread":                    {"EINVAL", "EINVAL"},
		"clone3":                               {"ENOSYS", "EINVAL"},
		"unshare":                              {"EPERM", "done"},
		"setns":                                {"EPERM", "EBADF"},
		"personality":                          {"done", "done"},
		"personality without random addresses": {"EPERM", "EPERM"},
		"socket unix":                          {"done", "done"},
		"socket inet":                          {"done", "done"},
		"socket inet with high bits":           {"done", "done"},
		"socket netlink":                       {"done", "done"},
		"socket packet":                        {"EAFNOSUPPORT", "EAFNOSUPPORT"},
		"socket vsock":                         {"EAFNOSUPPORT", "EAFNOSUPPORT"},
		"socket alg":                           {"EAFNOSUPPORT", "EAFNOSUPPORT"},
		"socketpair of tipc":                   {"EAFNOSUPPORT", "EAFNOSUPPORT"},
		"getpid of x32":                        {"ENOSYS", "ENOSYS"},
		"a future call":                        {"ENOSYS", "ENOSYS"},
		"keyctl":                               {"EPERM", "EPERM"},
	} {
		if got[name] != want[0] || nested[name] != want[1] {
			t.Errorf("%s: %q, and %q with Nested; want %q", name, got[name], nested[name], want)
		}
	}
}

// runOrdinaryProgram does what many programs do, under the filter. A call of the runtime or of a program that the filter
// refuses makes it fail or hang.
func runOrdinaryProgram() error {
	if err := installFilter(Program(Options{}), unix.SECCOMP_FILTER_FLAG_TSYNC); err != nil {
		return err
	}
	if out, err := exec.Command("/bin/sh", "-c", "echo one > a; ln -s a b; mkdir c; ls | wc -l; trap 'exit 0' TERM; kill $$").CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "3" {
		return fmt.Errorf("a shell: %w: %q", err, out)
	}
	inside := exec.Command("/proc/self/exe")
	inside.Env = append(os.Environ(), childEnv+"=nothing") // a Go program that starts under the filter
	if out, err := inside.CombinedOutput(); err != nil {
		return fmt.Errorf("a program inside: %w: %q", err, out)
	}
	if err := startNamespaces(); !errors.Is(err, syscall.EPERM) {
		return fmt.Errorf("a program in a user namespace: %w, want EPERM", err)
	}
	if python, err := exec.LookPath("python3"); err == nil { // its libc starts threads with clone3, if it can
		script := "import threading\nfor t in [threading.Thread(target=print, args=(1,)) for _ in range(3)]: t.start(); t.join()"
		if out, err := exec.Command(python, "-I", "-S", "-c", script).CombinedOutput(); err != nil || strings.Count(string(out), "1") != 3 {
			return fmt.Errorf("threads of Python: %w: %q", err, out)
		}
	}
	return errors.Join(serveEcho(), useFiles(), useGoroutines())
}

// serveEcho sends bytes over a TCP connection to itself.
func serveEcho() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_, err = io.Copy(conn, conn)
			conn.Close()
		}
		served <- err
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return err
	}
	defer conn.Close()
	got := make([]byte, 5)
	if _, err := conn.Write([]byte("hello")); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hello" {
		return fmt.Errorf("echo: %w: %q", err, got)
	}
	return errors.Join(conn.(*net.TCPConn).CloseWrite(), <-served)
}

// useFiles makes, renames, reads and removes files in the working directory.
func useFiles() error {
	dir, err := os.MkdirTemp(".", "files")
	if err != nil {
		return err
	}
	name, moved := filepath.Join(dir, "name"), filepath.Join(dir, "moved")
	if err := errors.Join(os.WriteFile(name, []byte("x"), 0o600), os.Chmod(name, 0o640), os.Chtimes(name, time.Now(), time.Now()), os.Rename(name, moved)); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// useGoroutines has the runtime start threads, collect garbage, and interrupt a loop.
func useGoroutines() error {
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			time.Sleep(time.Millisecond)
			_ = make([]byte, 1<<16)
		})
	}
	wg.Go(func() {
		for range 3 {
			runtime.GC()
		}
	})
	wg.Wait()
	return nil
}

func TestOrdinaryProgram(t *testing.T) {
	runChild(t, "program", new(any))
}

// startNamespaces starts a program in namespaces of its own.
func startNamespaces() error {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"=nothing")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS}
	return cmd.Run()
}

// A program gets namespaces with Options.Nested, where the kernel allows them.
func TestNestedNamespaces(t *testing.T) {
	if err := startNamespaces(); err != nil {
		t.Skipf("needs user namespaces: %v", err)
	}
	runChild(t, "nested program", new(any))
}
