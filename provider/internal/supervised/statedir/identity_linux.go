package statedir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Identify returns the identity of a running process.
func Identify(pid int) (Identity, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Identity{}, err
	}
	boot, err := readBoot()
	if err != nil {
		return Identity{}, err
	}
	// The name, in parentheses, may hold anything; field 22 is the start time.
	rest := stat[strings.LastIndexByte(string(stat), ')')+1:]
	fields := strings.Fields(string(rest))
	if len(fields) < 20 {
		return Identity{}, fmt.Errorf("process %d: cannot read its start time", pid)
	}
	return Identity{PID: pid, Start: fields[19], Boot: boot}, nil
}

// readBoot returns the id of this run of the machine.
var readBoot = sync.OnceValues(func() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
})

func (i Identity) killProcess(ctx context.Context) error {
	fd, err := unix.PidfdOpen(i.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("pidfd of %d: %w", i.PID, err)
	}
	defer unix.Close(fd)
	// The pidfd pins the process that has the number now, so check its identity only afterwards.
	if now, err := Identify(i.PID); err != nil || now != i {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill %d: %w", i.PID, err)
	}
	for ctx.Err() == nil {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, _ := unix.Poll(fds, 100); n > 0 {
			return nil
		}
	}
	return ctx.Err()
}
