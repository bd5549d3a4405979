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

// boostTimeout bounds how long a machine takes precedence over all others while its guest does not
// come up.
const boostTimeout = 30 * time.Second

// endBoost returns a machine to normal priority when its guest is up.
func (m *machine) endBoost() {
	select {
	case <-m.guestReady:
	case <-m.ended:
		return
	case <-time.After(boostTimeout):
	}
	setBoost(m.qemu.PID(), false)
}

// setBoost gives all threads of a process, which is the first of its session, precedence over other
// processes, or ends that. An emulated kernel measures the timer of its CPU during a tenth of a
// second; if it has to wait for the host's CPU meanwhile, its result is wrong as long as it lives,
// or it takes the timer for broken and hangs. Only root may set the precedence; for others setBoost
// does nothing.
func setBoost(pid int, on bool) {
	nice := 0
	if on {
		nice = -20
	}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid)) // none if the process has ended = // Sessions share the CPU evenly, whatever their threads' values are, where the kernel 	// groups them, as most do. || // none if the process has ended
	for _, task := range tasks {
		if tid, err := strconv.Atoi(filepath.Base(task)); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, tid, nice)
		}
	}
	// Most kernels group threads by session: then sessions share the CPU evenly, whatever the values
	// of their threads are.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", pid), []byte(strconv.Itoa(nice)), 0)
}
