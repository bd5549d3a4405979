package guest

import (
	"bytes"
	"context"
	"maps"
	"os"
	"strconv"
	"time"

	"github.com/seed46cd37a8/atoll/internal/idletracker"
)

// Idle returns when nobody has used the machine for that long: it had no process and no call.
func (m *Machine) Idle(ctx context.Context, limit time.Duration) error {
	for used := time.Now(); time.Since(used) < limit; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(idletracker.Step(limit)):
		}
		if t := m.use.Latest(); t.After(used) {
			used = t
		}
		if m.isBusy() {
			used = time.Now()
		}
	}
	return nil
}

// isBusy reports whether any process runs, besides this one, the one that serves the files, and
// those that the engine executes to connect to this one.
func (m *Machine) isBusy() bool { return m.processes.Running() > 0 || m.countProcesses() > 0 }

// kernelThreads is the parent of the kernel's own threads, which show in a virtual machine.
const kernelThreads = 2

// countProcesses counts the running processes, without this one, the one that serves the files,
// those that the engine executes to connect to this one, the kernel's threads, and services with
// their descendants. Containers count: a shim leaves the engine that starts it. An unknown number
// counts as one.
func (m *Machine) countProcesses() (n int) {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return 1 // an unknown number
	}
	m.mu.Lock()
	clerk := m.fileServerPID
	services := maps.Clone(m.services)
	m.mu.Unlock()
	parents := map[int]int{}
	for _, name := range names {
		pid, err := strconv.Atoi(name.Name())
		if err != nil || pid == os.Getpid() || pid == clerk {
			continue
		}
		parent, state, err := lookUp(pid)
		if err == nil && parent != 0 && state != "Z" && !(parent == kernelThreads && !hasMemory(pid)) {
			parents[pid] = parent
		}
	}
	for pid := range parents {
		if !isService(pid, services, parents) {
			n++
		}
	}
	return n
}

// isService reports whether a process is one of services, or descends from one.
func isService(pid int, services map[int]bool, parents map[int]int) bool {
	for range len(parents) + 1 {
		if services[pid] {
			return true
		}
		pid = parents[pid]
	}
	return false
}

// hasMemory reports whether a process has memory of its own; the kernel's threads have none.
func hasMemory(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	return err == nil && !bytes.HasPrefix(text, []byte("0 "))
}

// lookUp returns the parent of a process in this PID namespace, 0 for one that was put into it from
// outside, and its state; see proc_pid_stat(5).
func lookUp(pid int) (parent int, state string, err error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, "", err
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // a name may hold anything
	if len(fields) < 2 {
		return 0, "", os.ErrInvalid
	}
	parent, err = strconv.Atoi(string(fields[1]))
	return parent, string(fields[0]), err
}
