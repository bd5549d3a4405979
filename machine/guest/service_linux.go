package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/inroot"
	"github.com/seed46cd37a8/atoll/internal/process"
	"github.com/seed46cd37a8/atoll/internal/procgroup"
	"github.com/seed46cd37a8/atoll/machine/vm"
)

// mountInit provides for services: it mounts their disks, with all features of file systems, and
// the kernel's control groups.
func mountInit(init *vm.Init) error {
	group := systemMount{"cgroup2", "/sys/fs/cgroup", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""}
	if err := group.mountBelow(newRoot); err != nil {
		return err
	}
	for _, d := range init.Disks {
		at, err := inroot.Open(newRoot, d.Mount, false)
		if err != nil {
			return err
		}
		err = mountDisk(d.ID, fmt.Sprintf("/proc/self/fd/%d", at), 0)
		unix.Close(at)
		if err != nil {
			return fmt.Errorf("mount disk %s on %s: %w", d.ID, d.Mount, err)
		}
		if err := growFileSystem(newRoot + d.Mount); err != nil {
			return fmt.Errorf("grow the file system of disk %s: %w", d.ID, err)
		}
	}
	return nil
}

// growFileSystem grows the ext4 that is mounted on dir to the size of its device.
func growFileSystem(dir string) error {
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

// restartDelay is the time between the end of a service and its restart.
const restartDelay = time.Second

// superviseService restarts a service whenever it ends, until the machine is powered off. Its
// output goes to the console.
func (c *Computer) superviseService(m *Machine, p vm.InitProcess) {
	for c.ctx.Err() == nil {
		err := c.runService(m, p)
		if c.ctx.Err() != nil {
			return
		}
		c.logMessage(fmt.Sprintf("%s has ended and will be restarted: %v", p.Args[0], err))
		select {
		case <-c.ctx.Done():
		case <-time.After(restartDelay):
		}
	}
}

// runService starts a service and waits for its end. When the machine is powered off, it asks the
// service to end.
func (c *Computer) runService(m *Machine, p vm.InitProcess) error {
	console, err := c.platform.openConsole()
	if err != nil {
		return err
	}
	defer console.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	h, err := m.starter.StartFree(&procgroup.Program{
		Mark: procgroup.NewMark("service", m.config.ID), Args: p.Args, Dir: "/", Env: process.Environ([]string{"PATH=" + defaultPath, "HOME=/root"}, p.Env),
	}, process.Stdio{Stdin: null, Stdout: console, Stderr: console})
	if err != nil {
		return err
	}
	m.recordService(h.PID(), true)
	defer m.recordService(h.PID(), false)
	ended := make(chan atoll.Exit, 1)
	go func() { ended <- h.Wait() }()
	select {
	case exit := <-ended:
		return errors.New(exit.String())
	case <-c.ctx.Done():
	}
	_ = h.Signal(atoll.SIGTERM) // fails if it has ended
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	select {
	case <-ended:
	case <-ctx.Done(): // the machine ends in any case
	}
	return nil
}

func (m *Machine) recordService(pid int, runs bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if runs {
		m.services[pid] = true
	} else {
		delete(m.services, pid)
	}
}
