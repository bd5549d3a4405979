package procgroup

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// reapProcess waits for the process. The kernel does not reuse its PID until reapProcess
// holds the lock: while another holds the lock, the PID belongs to the process if reaped is
// false.
func (h *Process) reapProcess() (*os.ProcessState, error) {
	for unix.Waitid(unix.P_PID, h.p.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == syscall.EINTR {
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reaped = true
	h.hangUp()
	return h.p.Wait()
}

// sweepLimit is the time that processes may take to end after SIGKILL.
const sweepLimit = 5 * time.Second

// sweepMarked kills every process that has the mark or belongs to the session, and their
// descendants, until none is left. It lists the processes repeatedly, because they may start
// others.
func sweepMarked(m Mark, session func() int) error {
	deadline := time.Now().Add(sweepLimit)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		all, err := listProcesses()
		if err != nil {
			return err
		}
		victims, unsure := familyOf(all, session(), m.coversEnviron)
		for _, v := range victims {
			v.killProc()
		}
		late := time.Now().After(deadline)
		switch {
		case len(victims) == 0 && (!unsure || late):
			return nil
		case late:
			return fmt.Errorf("%d processes cannot be killed, %d among them", len(victims), victims[0].pid)
		}
		time.Sleep(pause) // the kernel reports the end of a process only to its parent
	}
}

// A proc is a process of this machine that has not ended.
type proc struct {
	pid, parent, session int
	start                string // in ticks since boot: with the pid it identifies the process
	bounds               string // of its environment in memory: an exec changes them
	execs                bool   // it is in the middle of an exec, and has no environment
}

// familyOf returns the processes of a session (0 means none) and those whose environment is
// marked, with their descendants. unsure reports that a process in the middle of an exec may
// belong to them.
func familyOf(all []proc, session int, marked func(environ string) bool) (members []proc, unsure bool) {
	in, buf := map[int]bool{}, make([]byte, 64<<10)
	for _, p := range all {
		environ, known := environOf(p.pid, buf)
		in[p.pid] = session > 0 && p.session == session || marked(environ)
		unsure = unsure || !known && !in[p.pid]
	}
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if in[p.parent] && !in[p.pid] {
				in[p.pid], grown = true, true
			}
		}
	}
	return slices.DeleteFunc(all, func(p proc) bool { return !in[p.pid] }), unsure
}

// environOf returns the initial environment of a process, "" if this process may not read
// it. known is false in the middle of an exec, when the process has none. environOf overwrites buf.
func environOf(pid int, buf []byte) (environ string, known bool) {
	for bounds := ""; ; {
		b, err := readOnce("/proc/"+strconv.Itoa(pid)+"/environ", buf)
		if err != nil || len(b) > 0 {
			return string(b), true
		}
		p, ok := readStat(pid)
		switch {
		case !ok:
			return "", true
		case p.execs:
			return "", false
		case p.bounds == bounds:
			return "", true
		}
		bounds = p.bounds // the read may have been of the memory before an exec, which is empty once released
	}
}

// readOnce reads a whole file of /proc in one read, into buf if that is large enough: an exec between two
// reads would cut off an environment.
func readOnce(name string, buf []byte) ([]byte, error) {
	for {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		n, err := f.Read(buf)
		f.Close()
		if err == io.EOF {
			err = nil
		}
		if n < len(buf) {
			return buf[:n], err
		}
		buf = make([]byte, 8*len(buf))
	}
}

// listProcesses returns the processes of this machine, without zombies and kernel threads.
func listProcesses() ([]proc, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var all []proc
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if p, ok := readStat(pid); ok {
				all = append(all, p)
			}
		}
	}
	return all, nil
}

// readStat reads the kernel's record of a process; see proc_pid_stat(5).
func readStat(pid int) (proc, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return proc{}, false
	}
	stat := string(b)
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]) // the name before it may contain any byte
	if len(fields) < 49 || fields[0] == "Z" || fields[0] == "X" {
		return proc{}, false
	}
	parent, err1 := strconv.Atoi(fields[1])
	session, err2 := strconv.Atoi(fields[3])
	flags, err3 := strconv.ParseUint(fields[6], 10, 32)
	const exiting, kernel = 0x4, 0x200000            // PF_EXITING, PF_KTHREAD
	execs := flags&exiting == 0 && fields[23] == "0" // where its code begins, which an exec sets after the environment
	return proc{pid, parent, session, fields[19], fields[47] + "-" + fields[48], execs}, flags&kernel == 0 && err1 == nil && err2 == nil && err3 == nil
}

// killProc kills the process, and never another one with the same PID.
func (p proc) killProc() {
	handle, err := os.FindProcess(p.pid) // by pidfd
	if err != nil {
		return
	}
	defer handle.Release()
	if now, ok := readStat(p.pid); ok && now.start == p.start {
		_ = handle.Kill() // the next list shows whether it has ended
	}
}
