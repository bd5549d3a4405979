//go:build linux

package supervisedtest

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// ProgramEnv makes a test's binary run one of its programs instead: inside a sandbox,
// where it is mounted, or on the host, as a process to be killed.
const ProgramEnv = "ATOLL_TEST_PROGRAM"

// RunProgram runs the program that the environment asks for, if any, and then exits.
func RunProgram(programs map[string]func(args []string) error) {
	name := os.Getenv(ProgramEnv)
	if name == "" {
		return
	}
	if err := programs[name](os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// programPath is the path of this binary in a sandbox with ProgramMount.
const programPath = "/shelf/program"

// ProgramMount returns the mount of this binary.
func ProgramMount(t testing.TB) atoll.Mount {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return atoll.Mount{Type: atoll.MountBind, Source: exe, Target: programPath, ReadOnly: true}
}

// ProgramCommand returns the command that runs one of the programs inside.
func ProgramCommand(name string, args ...string) *atoll.Command {
	return &atoll.Command{Args: append([]string{programPath}, args...), Env: []string{ProgramEnv + "=" + name}}
}

// HostProgram returns the command that runs one of the programs on the host.
func HostProgram(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Env = append(os.Environ(), ProgramEnv+"="+name)
	cmd.Stderr = os.Stderr
	return cmd
}

// StartOnHost starts one of the programs as a process of its own.
func StartOnHost(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := HostProgram(t, name, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// KillAndWait kills a program and waits for its end.
func KillAndWait(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// Children returns the processes of the host whose parent is pid, by argv[0].
func Children(t testing.TB, pid int) map[string]int {
	t.Helper()
	found := map[string]int{}
	for _, child := range ListProcesses(t) {
		if ParentOf(child) == pid {
			found[awaitCommandLine(child)[0]] = child
		}
	}
	return found
}

// awaitCommandLine returns the arguments of a process. A process that is just executing its program has none for a moment, although
// the call that started it has returned.
func awaitCommandLine(pid int) []string {
	for end := time.Now().Add(testenv.Scale(time.Second)); ; time.Sleep(time.Millisecond) {
		if args := CommandLine(pid); args[0] != "" || time.Now().After(end) {
			return args
		}
	}
}

// ListProcesses returns the PIDs of all processes of the host.
func ListProcesses(t testing.TB) (pids []int) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		pids = append(pids, pid)
	}
	return pids
}

// CommandLine returns the arguments of a process; one that is empty if it has ended.
func CommandLine(pid int) []string {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
}

// IsRunning reports whether there is a process pid. One that has ended, and that only its parent has not noticed, does not
// count: the machine's first process takes its time.
func IsRunning(pid int) bool {
	state := StateOf(pid)
	return state != "" && state != "Z" && state != "X"
}

// ParentOf returns the parent of a process; 0 when it has gone.
func ParentOf(pid int) int {
	fields := statOf(pid)
	if len(fields) < 2 {
		return 0
	}
	ppid, _ := strconv.Atoi(fields[1])
	return ppid
}

// StateOf returns the state of a process, such as "T" if it is stopped; "" when it has gone.
func StateOf(pid int) string {
	fields := statOf(pid)
	if len(fields) == 0 {
		return ""
	}
	return fields[0]
}

// statOf returns the fields of proc_pid_stat(5) from the state on.
func statOf(pid int) []string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
}

// AwaitGone waits until the processes have ended.
func (l *Lab) AwaitGone(pids map[string]int) {
	l.T.Helper()
	l.Poll(func() error {
		for name, pid := range pids {
			if IsRunning(pid) {
				return fmt.Errorf("%s %d is left", name, pid)
			}
		}
		return nil
	})
}

// CopyProgram copies a program.
func CopyProgram(to, from string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, r); err != nil {
		w.Close()
		return err
	}
	return w.Close()
}
