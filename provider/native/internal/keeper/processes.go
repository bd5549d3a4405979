//go:build linux

package keeper

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// processEnv marks the processes that one Exec started, and their descendants, so that they are found when their parents have gone.
const processEnv = "ATOLL_PROCESS"

// A processInfo describes a process inside.
type processInfo struct {
	pid, ppid, session int
	start              string // in ticks: with the pid it identifies the process
}

// listProcesses returns the processes inside, without the first one and without zombies.
func (e *engine) listProcesses() ([]processInfo, error) {
	names, err := e.readProc()
	if err != nil {
		return nil, err
	}
	var list []processInfo
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == 1 {
			continue
		}
		if p, ok := parseStat(pid, e.readProcFile(pid, "stat")); ok {
			list = append(list, p)
		}
	}
	return list, nil
}

// readProc returns the names in /proc as the inside sees it.
func (e *engine) readProc() ([]string, error) {
	dir, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", e.proc.Fd()))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.Readdirnames(-1)
}

// readProcFile returns a file of a process inside; nil if it has ended.
func (e *engine) readProcFile(pid int, name string) []byte {
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d/%d/%s", e.proc.Fd(), pid, name))
	if err != nil {
		return nil
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil {
		return nil
	}
	return data
}

// parseStat parses the kernel's record of a process; see proc_pid_stat(5).
func parseStat(pid int, stat []byte) (p processInfo, ok bool) {
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // the name before it may contain any byte
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return p, false
	}
	ppid, err1 := strconv.Atoi(fields[1])
	session, err2 := strconv.Atoi(fields[3])
	return processInfo{pid, ppid, session, fields[19]}, err1 == nil && err2 == nil
}

// countProcesses returns the number of processes inside, without the first one and without zombies.
func (e *engine) countProcesses() (int, error) {
	list, err := e.listProcesses()
	return len(list), err
}

// findFamily returns the PIDs of the process with that PID and mark and of all that it started: by parentage, by session, and by the
// mark in the environment. The process itself comes first: it must not see its children die.
func (e *engine) findFamily(all []processInfo, pid int, mark string) []int {
	want := []byte(processEnv + "=" + mark)
	ours := map[int]bool{}
	for _, p := range all {
		ours[p.pid] = p.pid == pid || p.session == pid || slices.ContainsFunc(bytes.Split(e.readProcFile(p.pid, "environ"), []byte{0}), func(kv []byte) bool { return bytes.Equal(kv, want) })
	}
	for grew := true; grew; {
		grew = false
		for _, p := range all {
			if !ours[p.pid] && ours[p.ppid] {
				ours[p.pid], grew = true, true
			}
		}
	}
	var pids []int
	for _, p := range all {
		switch {
		case p.pid == pid:
			pids = slices.Insert(pids, 0, pid)
		case ours[p.pid]:
			pids = append(pids, p.pid)
		}
	}
	return pids
}

// killTimeout is the time for which killTree chases processes that start others.
const killTimeout = 5 * time.Second

// killTree kills the process with that PID and all that it started. It repeats until nothing is left, because the processes can start
// more meanwhile.
func (e *engine) killTree(pid int, mark string) error {
	for deadline := time.Now().Add(killTimeout); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		all, err := e.listProcesses()
		if err != nil {
			return err
		}
		pids := e.findFamily(all, pid, mark)
		if len(pids) == 0 {
			return nil
		}
		if err := e.init.SignalAll(pids, unix.SIGKILL); err != nil {
			return err
		}
	}
	return fmt.Errorf("processes of %s keep coming back", mark)
}

// hostPIDs returns the PIDs of all processes inside, in this process's namespace: the first process and its descendants.
func (e *engine) hostPIDs() []int {
	pids := []int{e.pid}
	for i := 0; i < len(pids); i++ {
		pid := strconv.Itoa(pids[i])
		tasks, err := os.ReadDir("/proc/" + pid + "/task")
		if err != nil {
			continue
		}
		for _, task := range tasks {
			data, err := os.ReadFile("/proc/" + pid + "/task/" + task.Name() + "/children")
			if err != nil {
				continue
			}
			for _, child := range strings.Fields(string(data)) {
				if n, err := strconv.Atoi(child); err == nil {
					pids = append(pids, n)
				}
			}
		}
	}
	return pids
}

// measureProcess returns the memory of a process, in bytes, and its CPU time.
func measureProcess(pid int) (memory int64, cpu time.Duration) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err == nil {
		if fields := strings.Fields(string(data)); len(fields) > 2 {
			pages, _ := strconv.ParseInt(fields[1], 10, 64)
			memory = pages * int64(os.Getpagesize())
		}
	}
	const wholeProcess = 2 // CPUCLOCK_SCHED of the kernel, which has no name for it in its API
	var ts unix.Timespec
	if unix.ClockGettime(int32(^pid)<<3|wholeProcess, &ts) == nil {
		cpu = time.Duration(ts.Nano())
	}
	return memory, cpu
}

// patience is the number of seconds after which a child that the first process waits for is ended.
const patience = 10

// resumeInit lets the first process continue, which has not answered for a number of seconds: root inside may have stopped a child
// that has not executed its program yet, and for which the first process waits.
func (e *engine) resumeInit(seconds int) {
	sig := unix.SIGCONT
	if seconds >= patience {
		sig = unix.SIGKILL
	}
	program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", e.pid))
	if err != nil {
		return
	}
	for _, pid := range e.hostPIDs()[1:] {
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && exe == program {
			_ = unix.Kill(pid, sig) // it may have ended
		}
	}
}
