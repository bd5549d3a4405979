package procgroup

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// reap waits for the process. Its PID stays its own until the lock is held, so
// that who holds the lock knows whose it is.
func (h *Process) reap() (*os.ProcessState, error) {
	for unix.Waitid(unix.P_PID, h.p.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == syscall.EINTR {
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reaped = true
	h.hangUp()
	return h.p.Wait()
}

// sweepLimit is how long processes may take to be gone after SIGKILL.
const sweepLimit = 5 * time.Second

// sweep kills every process that bears the mark or is of the session, and what
// descends from one, until none is left. It looks again and again, because
// they may be starting others.
func sweep(m Mark, session func() int) error {
	deadline := time.Now().Add(sweepLimit)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		all, err := processes()
		if err != nil {
			return err
		}
		victims, unsure := family(all, session(), m.covers)
		for _, v := range victims {
			v.kill()
		}
		late := time.Now().After(deadline)
		switch {
		case len(victims) == 0 && (!unsure || late):
			return nil
		case late:
			return fmt.Errorf("%d processes cannot be killed, %d among them", len(victims), victims[0].pid)
		}
		time.Sleep(pause) // the kernel tells nobody but a parent that one has gone
	}
}

// A proc is a process of this machine that has not ended.
type proc struct {
	pid, parent, session int
	start                string // in ticks since boot: with the pid it names the process
	execs                bool   // it is in the middle of an exec, and has no environment
}

// family returns the processes of a session (0 is none) and those whose
// environment is marked, with their descendants. It is unsure of who is just
// being given an environment.
func family(all []proc, session int, marked func(environ string) bool) (members []proc, unsure bool) {
	in := map[int]bool{}
	for _, p := range all {
		environ, known := environOf(p.pid)
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

// environOf is the environment that a process was given, "" when it is not for
// this one to see. In the middle of an exec there is none to be known.
func environOf(pid int) (environ string, known bool) {
	for range 2 {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
		if err != nil || len(b) > 0 {
			return string(b), true
		}
		if p, ok := look(pid); ok && p.execs {
			return "", false
		}
	} // the first time it can have been the one before an exec, which is empty when that goes
	return "", true
}

// processes lists those of this machine, without zombies and the kernel's own.
func processes() ([]proc, error) {
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
			if p, ok := look(pid); ok {
				all = append(all, p)
			}
		}
	}
	return all, nil
}

// look reads what the kernel tells of a process; see proc_pid_stat(5).
func look(pid int) (proc, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return proc{}, false
	}
	stat := string(b)
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]) // the name before may hold anything
	if len(fields) < 49 || fields[0] == "Z" || fields[0] == "X" {
		return proc{}, false
	}
	parent, err1 := strconv.Atoi(fields[1])
	session, err2 := strconv.Atoi(fields[3])
	flags, err3 := strconv.ParseUint(fields[6], 10, 32)
	const exiting, kernel = 0x4, 0x200000 // PF_EXITING, PF_KTHREAD
	execs := flags&exiting == 0 && fields[48] == "0"
	return proc{pid, parent, session, fields[19], execs}, flags&kernel == 0 && err1 == nil && err2 == nil && err3 == nil
}

// kill ends the process, and never another that got its PID meanwhile.
func (p proc) kill() {
	handle, err := os.FindProcess(p.pid) // by descriptor
	if err != nil {
		return
	}
	defer handle.Release()
	if now, ok := look(p.pid); ok && now.start == p.start {
		_ = handle.Kill() // the next look tells whether it helped
	}
}
