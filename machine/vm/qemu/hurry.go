//go:build linux

package qemu

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// hurryTime is how long a machine goes before all others at most, whose guest does not
// come up.
const hurryTime = 30 * time.Second

// calm has a machine wait for its turn as all others do, once its guest is up.
func (m *machine) calm() {
	select {
	case <-m.greeted:
	case <-m.ended:
		return
	case <-time.After(hurryTime):
	}
	hurry(m.qemu.PID(), false)
}

// hurry has all threads of a process, which is the first of its session, go before those
// of others, or no longer. An emulated kernel finds out how fast the timer of its CPU is in
// the tenth of a second that it looks at it; where it has to wait for the host's CPU
// meanwhile, it is wrong about that as long as it lives, or takes the timer for broken, and
// stands still. Who may not have it so, because he is not root, does not.
func hurry(pid int, on bool) {
	nice := 0
	if on {
		nice = -20
	}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid)) // none of who has ended
	for _, task := range tasks {
		if tid, err := strconv.Atoi(filepath.Base(task)); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, tid, nice)
		}
	}
	// Sessions share the CPU evenly, whatever their threads' values are, where the kernel
	// groups them, as most do.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", pid), []byte(strconv.Itoa(nice)), 0)
}
