package guest

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/procgroup"
)

// A memoryHandle is a process whose exit says if the kernel killed it for lack of memory.
type memoryHandle struct {
	*procgroup.Process
	before int64       // the number of processes that the kernel had killed when this one started
	killed atomic.Bool // by Kill
}

// newMemoryHandle returns the handle of a process that has just been started. It makes the kernel
// kill that process, and those that it starts, before the guest.
func newMemoryHandle(p *procgroup.Process, before int64) *memoryHandle {
	h := &memoryHandle{Process: p, before: before}
	if own, err := readNumber("/proc/self/oom_score_adj"); err == nil {
		score := min(own+programOOMScore, 1000)
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", p.PID()), []byte(strconv.FormatInt(score, 10)), 0) // fails if it has ended
	}
	return h
}

// programOOMScore is the difference between the oom_score_adj of programs and that of the guest, in
// thousandths of the memory: more than the guest uses.
const programOOMScore = 300

// Kill implements process.Handle.
func (h *memoryHandle) Kill() error {
	h.killed.Store(true)
	return h.Process.Kill()
}

// Wait implements process.Handle. The kernel counts the processes that it kills, and does not say
// which: if a process ends by SIGKILL, or a shell whose last command did, it takes that for one.
func (h *memoryHandle) Wait() atoll.Exit {
	exit := h.Process.Wait()
	if exit.Code == 128+int(atoll.SIGKILL) && !h.killed.Load() && countOOMKills() > h.before {
		exit.Reason = "out of memory: the sandbox used more than " + memoryLimit()
	}
	return exit
}

// isMachine reports whether this program has a kernel of its own, in a virtual machine.
func isMachine() bool {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", kernelThreads))
	return err == nil && strings.TrimSpace(string(name)) == "kthreadd"
}

// cgroupRoot is the directory in which a container sees its cgroup, of version 2 or 1.
const cgroupRoot = "/sys/fs/cgroup/"

// countOOMKills returns how many processes of the sandbox the kernel has killed for lack of memory.
func countOOMKills() int64 {
	if isMachine() {
		return readKey("/proc/vmstat", "oom_kill")
	}
	return max(readKey(cgroupRoot+"memory.events", "oom_kill"), readKey(cgroupRoot+"memory/memory.oom_control", "oom_kill"))
}

// memoryLimit returns the limit of the sandbox's memory for a message.
func memoryLimit() string {
	if !isMachine() {
		for _, file := range []string{"memory.max", "memory/memory.limit_in_bytes"} {
			if n, err := readNumber(cgroupRoot + file); err == nil {
				return atoll.Bytes(n).String()
			}
		}
	}
	return "its memory"
}

func readNumber(file string) (int64, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
}

// readKey returns the number in a "key number" line of a file; 0 if there is none.
func readKey(file, key string) int64 {
	f, err := os.Open(file)
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), key+" "); ok {
			n, _ := strconv.ParseInt(rest, 10, 64)
			return n
		}
	}
	return 0
}
