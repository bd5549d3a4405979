//go:build linux

package native_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
)

// A program inside never sees anything of the supervisor: neither in the first process nor in its children, which share its
// memory and have files of the supervisor until they execute their program.
func TestSpy(t *testing.T) {
	l := newLab(t)
	secret, old := "label-"+atoll.NewID(), "variable-"+atoll.NewID()
	sb := l.NewSandbox(atoll.Spec{Mounts: []atoll.Mount{supervisedtest.ProgramMount(t)}, Labels: map[string]string{"secret": secret}})
	l.Run(sb, &atoll.Command{Args: []string{"true"}, Env: []string{"SECRET=" + old}}) // only the supervisor and the first process remember it
	control := "control-" + atoll.NewID()
	l.StartCommand(sb, &atoll.Command{Args: []string{"sleep", "1000"}, Env: []string{"CONTROL=" + control}})

	ctx, cancel := context.WithCancel(l.Context())
	var all sync.WaitGroup
	defer func() { cancel(); all.Wait() }()
	var started atomic.Int64
	for range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				err := atoll.Run(ctx, sb, slowCommand())
				if err != nil && ctx.Err() == nil {
					t.Errorf("a command beside the spy: %v", err)
					return
				}
				started.Add(1)
			}
		})
	}
	args := []string{testenv.Scale(15 * time.Second).String()}
	for _, text := range []string{control, secret, old} {
		args = append(args, hex.EncodeToString([]byte(text))) // or it would find them in its own arguments
	}
	var report spyReport
	l.Must("report", json.Unmarshal([]byte(l.Run(sb, supervisedtest.ProgramCommand("spy", args...))), &report))
	t.Logf("%d commands; the spy looked %d times at the first process and %d times at children before they executed their program", started.Load(), report.First, report.Young)
	for _, leak := range report.Leaks {
		t.Errorf("the spy saw %s", leak)
	}
	if report.First < leastFirst || report.Young < leastYoung {
		t.Errorf("it has to look %d and %d times", leastFirst, leastYoung)
	}
	if !report.Control {
		t.Error("the spy did not find the control, so it would not find a secret")
	}
}

// slowCommand returns a command that does nothing, and takes a while to execute its program: it looks for that in many places.
func slowCommand() *atoll.Command {
	return &atoll.Command{Args: []string{"true"}, Env: []string{"PATH=" + strings.Repeat("/none:", 600) + "/usr/bin:/bin"}}
}

// A spyReport is the result of a spy.
type spyReport struct {
	First   int // looks at the first process
	Young   int // looks at children of the first process that had not executed their program
	Control bool
	Leaks   []string
}

// A spy looks for secrets in other processes.
type spy struct {
	spyReport
	control []byte
	secrets [][]byte
	name    string // of the first process
}

// leastFirst and leastYoung are the numbers of looks at the first process, and at its children, after which a spy ends.
const leastFirst, leastYoung = 10, 100

// spyProgram looks for the secrets in args[1:], of which the first is the control, for args[0] at most.
func spyProgram(args []string) error {
	runtime.LockOSThread() // ptrace is for threads
	limit, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	s := &spy{name: readText("/proc/1/comm")}
	for _, text := range args[1:] {
		secret, err := hex.DecodeString(text)
		if err != nil {
			return err
		}
		s.secrets = append(s.secrets, secret)
	}
	s.control, s.secrets = s.secrets[0], s.secrets[1:]
	newest := os.Getpid()
	for end := time.Now().Add(limit); time.Now().Before(end) && (s.First < leastFirst || s.Young < leastYoung); {
		for _, pid := range listNumbers("/proc") {
			if newest = max(newest, pid); pid != os.Getpid() {
				s.lookAt(pid)
			}
		}
		newest = awaitYoung(newest, 100*time.Millisecond, s.lookAt)
	}
	return json.NewEncoder(os.Stdout).Encode(s.spyReport)
}

// awaitYoung calls f for the processes after newest that have not executed their program, for that time. It returns the newest process.
func awaitYoung(newest int, limit time.Duration, f func(pid int)) int {
	first := readText("/proc/1/comm") // its children have that name, too, until they execute their program
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(100 * time.Microsecond) {
		for pid := newest + 1; pid < newest+4; pid++ {
			if readText(fmt.Sprintf("/proc/%d/comm", pid)) == first {
				f(pid)
				newest = pid
			}
		}
	}
	return newest
}

// listNumbers returns the names in a directory that are numbers.
func listNumbers(dir string) (list []int) {
	entries, _ := os.ReadDir(dir) // processes end meanwhile
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			list = append(list, n)
		}
	}
	return list
}

func readText(name string) string {
	data, _ := os.ReadFile(name) // empty if the process has ended
	return string(data)
}

// The addresses of the program of the first process, and of the memory that it shares with the supervisor. No other program of the
// test has something there.
var firstAddresses = []uintptr{0x400000, 0x600000}

// lookAt tries all ways to look into a process.
func (s *spy) lookAt(pid int) {
	dir := fmt.Sprintf("/proc/%d/", pid)
	young := pid != 1 && readText(dir+"comm") == s.name
	switch {
	case young:
		s.Young++
	case pid == 1:
		s.First++
	}
	if young || pid == 1 {
		s.traceProcess(pid)
		buf := make([]byte, 4096)
		for _, at := range firstAddresses {
			local, remote := []unix.Iovec{{Base: &buf[0], Len: uint64(len(buf))}}, []unix.RemoteIovec{{Base: at, Len: len(buf)}}
			if n, err := unix.ProcessVMReadv(pid, local, remote, 0); err == nil {
				s.addLeak(pid, "process_vm_readv of %#x: %d bytes", at, n)
			}
			if _, err := unix.ProcessVMWritev(pid, local, remote, 0); err == nil {
				s.addLeak(pid, "process_vm_writev to %#x", at)
			}
		}
	}
	s.searchMemory(pid)
	for _, name := range []string{"environ", "cmdline", "auxv", "maps", "smaps", "stack", "syscall", "status", "mountinfo", "cgroup"} {
		text := readText(dir + name)
		s.search(pid, name, []byte(text))
		if name == "maps" && strings.Contains(text, "memfd:") {
			s.addLeak(pid, "the memory of the first process: %s", text)
		}
	}
	fds, _ := os.ReadDir(dir + "fd")
	for _, fd := range fds {
		name := dir + "fd/" + fd.Name()
		to, err := os.Readlink(name)
		if err != nil {
			continue
		}
		if strings.HasPrefix(to, "socket:") || strings.HasPrefix(to, "anon_inode:") || strings.Contains(to, "memfd:") {
			s.addLeak(pid, "descriptor %s: %s", fd.Name(), to)
		}
		if f, err := unix.Open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err == nil { // also if it is a pipe
			data := make([]byte, 1<<16)
			n, _ := unix.Read(f, data)
			s.search(pid, "fd "+fd.Name(), data[:max(n, 0)])
			unix.Close(f)
		}
	}
}

// traceProcess attaches to a process as a debugger.
func (s *spy) traceProcess(pid int) {
	if unix.PtraceAttach(pid) != nil {
		return
	}
	_, _ = unix.Wait4(pid, nil, unix.WALL, nil)
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if pid == 1 || err == nil && strings.Contains(exe, "memfd:") { // else it has executed its program meanwhile
		s.addLeak(pid, "ptrace of %s", exe)
	}
	_ = unix.PtraceDetach(pid)
	_ = unix.Kill(pid, unix.SIGCONT) // the SIGSTOP may come after another stop
}

// searchMemory searches the memory that a process can write.
func (s *spy) searchMemory(pid int) {
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return
	}
	defer mem.Close()
	for line := range strings.Lines(readText(fmt.Sprintf("/proc/%d/maps", pid))) {
		var first, last int64
		var access string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &first, &last, &access); err != nil || !strings.HasPrefix(access, "rw") {
			continue
		}
		data := make([]byte, min(last-first, 4<<20))
		n, _ := mem.ReadAt(data, first)
		s.search(pid, "memory", data[:n])
	}
}

// search looks for the secrets in data.
func (s *spy) search(pid int, where string, data []byte) {
	if where == "memory" && bytes.Contains(data, s.control) {
		s.Control = true
	}
	for i, secret := range s.secrets {
		if bytes.Contains(data, secret) {
			s.addLeak(pid, "secret %d in its %s", i, where)
		}
	}
}

func (s *spy) addLeak(pid int, format string, args ...any) {
	if len(s.Leaks) < 20 {
		s.Leaks = append(s.Leaks, fmt.Sprintf("process %d (%s): ", pid, strings.TrimSpace(readText(fmt.Sprintf("/proc/%d/comm", pid))))+fmt.Sprintf(format, args...))
	}
}

// A program inside that stops children of the first process before they execute their program, for which that waits, delays commands
// only as long as it runs: the supervisor lets them go on.
func TestStoppedBeforeExecution(t *testing.T) {
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{Mounts: []atoll.Mount{supervisedtest.ProgramMount(t)}})
	for _, signal := range []unix.Signal{unix.SIGSTOP, unix.SIGKILL} {
		var out supervisedtest.Screen
		stopper := supervisedtest.ProgramCommand("stopper", fmt.Sprint(int(signal)), testenv.Scale(15*time.Second).String())
		stopper.Stdout = &out
		p := l.StartCommand(sb, stopper)
		for !strings.Contains(out.String(), "done") {
			begin := time.Now()
			err := atoll.Run(l.Context(), sb, slowCommand())
			if exit, ok := errors.AsType[*atoll.ExitError](err); ok && signal == unix.SIGKILL && exit.Exit.Signal == atoll.SIGKILL {
				err = nil
			}
			if took := time.Since(begin); err != nil || took > patience {
				t.Errorf("beside a program that sends %s, a command took %s: %v", signal, took, err)
			}
		}
		if exit, err := p.Wait(l.Context()); err != nil || exit.Code != 0 {
			t.Errorf("the program: %v, %v", exit, err)
		}
		begin := time.Now()
		if got := l.Sh(sb, "echo works; grep -l '^State:.T' /proc/[0-9]*/status"+" || true"); got != "works" {
			t.Errorf("after %s: %s", signal, got)
		}
		t.Logf("%s: %s; then a command took %s", signal, strings.TrimSpace(out.String()), time.Since(begin))
	}
}

// patience is the time within which a stopped child of the first process goes on, or ends.
var patience = testenv.Scale(15 * time.Second)

// stopperProgram sends the signal args[0] to children of the first process that have not executed their program, to three of them
// or for args[1] at most.
func stopperProgram(args []string) error {
	signal, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	limit, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	sent := 0
	for newest, end := os.Getpid(), time.Now().Add(limit); sent < 3 && time.Now().Before(end); {
		newest = slices.Max(append(listNumbers("/proc"), newest))
		newest = awaitYoung(newest, 10*time.Millisecond, func(pid int) {
			if sent == 3 || unix.Kill(pid, unix.Signal(signal)) != nil {
				return
			}
			for signal == int(unix.SIGSTOP) && supervisedtest.IsRunning(pid) && supervisedtest.StateOf(pid) != "T" {
				time.Sleep(time.Millisecond)
			}
			if signal == int(unix.SIGSTOP) && readText(fmt.Sprintf("/proc/%d/comm", pid)) != readText("/proc/1/comm") {
				_ = unix.Kill(pid, unix.SIGCONT) // it has executed its program meanwhile
			} else {
				sent++
			}
		})
	}
	fmt.Printf("done: %d signals\n", sent)
	if sent < 3 {
		return errors.New("there were too few children to signal")
	}
	return nil
}
