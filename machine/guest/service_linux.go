package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/process"
	"github.com/seed46cd37a8/atoll/internal/procgroup"
	"github.com/seed46cd37a8/atoll/machine/vm"
)

// mountInit mounts what services need: their disks, with all that file systems can hold,
// and the kernel's control groups.
func mountInit(init *vm.Init) error {
	group := systemMount{"cgroup2", "/sys/fs/cgroup", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""}
	if err := group.make(newRoot); err != nil {
		return err
	}
	for _, d := range init.Disks {
		at, err := place(newRoot, d.Mount, false)
		if err != nil {
			return err
		}
		err = mountDisk(d.ID, fmt.Sprintf("/proc/self/fd/%d", at), 0)
		unix.Close(at)
		if err != nil {
			return fmt.Errorf("mount disk %s on %s: %w", d.ID, d.Mount, err)
		}
		if err := grow(newRoot + d.Mount); err != nil {
			return fmt.Errorf("make the file system of disk %s as large as it is: %w", d.ID, err)
		}
	}
	return nil
}

// grow makes the ext4 that is mounted on dir as large as its device.
func grow(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := errors.Join(unix.Fstat(int(f.Fd()), &st), unix.Fstatfs(int(f.Fd()), &fs)); err != nil {
		return err
	}
	var sectors uint64
	text, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/size", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err == nil {
		_, err = fmt.Sscan(string(text), &sectors)
	}
	if err != nil {
		return err
	}
	return resizeExt4(int(f.Fd()), sectors*512/uint64(fs.Bsize))
}

// serviceAgain is how long after the end of a service it is started again.
const serviceAgain = time.Second

// serveOn keeps a service running until the machine is powered off. What it prints is on
// the console.
func (c *Computer) serveOn(m *Machine, p vm.InitProcess) {
	for c.ctx.Err() == nil {
		err := c.runService(m, p)
		if c.ctx.Err() != nil {
			return
		}
		c.say(fmt.Sprintf("%s has ended, and is started again: %v", p.Args[0], err))
		select {
		case <-c.ctx.Done():
		case <-time.After(serviceAgain):
		}
	}
}

// runService starts a service and waits for its end, for which it asks when the machine
// is powered off.
func (c *Computer) runService(m *Machine, p vm.InitProcess) error {
	console, err := c.world.console()
	if err != nil {
		return err
	}
	defer console.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	h, err := m.spawn.StartFree(&procgroup.Program{
		Mark: procgroup.NewMark("service", m.config.ID), Args: p.Args, Dir: "/", Env: process.Environ([]string{"PATH=" + defaultPath, "HOME=/root"}, p.Env),
	}, process.Stdio{Stdin: null, Stdout: console, Stderr: console})
	if err != nil {
		return err
	}
	m.noteService(h.PID(), true)
	defer m.noteService(h.PID(), false)
	ended := make(chan atoll.Exit, 1)
	go func() { ended <- h.Wait() }()
	select {
	case exit := <-ended:
		return errors.New(exit.String())
	case <-c.ctx.Done():
	}
	_ = h.Signal(atoll.SIGTERM) // fails if it has ended
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	select {
	case <-ended:
	case <-ctx.Done(): // the machine ends in any case
	}
	return nil
}

func (m *Machine) noteService(pid int, runs bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if runs {
		m.services[pid] = true
	} else {
		delete(m.services, pid)
	}
}
