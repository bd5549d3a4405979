//go:build linux

package fakewsl

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// initVerb has the program be the first process of a distribution.
const initVerb = "--fake-init"

// namespaces are those that a distribution has of its own.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// wakeDistribution is a distribution with its first process, which is started if it does not run, and
// ends if this one does before it is written down.
func (w *wsl) wakeDistribution(name string) (d Distribution, err error) {
	noted, note, err := os.Pipe()
	if err != nil {
		return d, err
	}
	defer noted.Close()
	defer note.Close()
	err = w.withDistribution(name, func(i int) error {
		defer func() { d = w.all[i] }()
		if w.isRunning(i) {
			return nil
		}
		ready, says, err := os.Pipe()
		if err != nil {
			return err
		}
		defer ready.Close()
		defer says.Close()
		cmd := &exec.Cmd{Path: "/proc/self/exe", Args: []string{os.Args[0], initVerb, w.all[i].Root()}, ExtraFiles: []*os.File{says, noted}}
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces, Setsid: true}
		if err := cmd.Start(); err != nil {
			return err
		}
		w.all[i].PID = cmd.Process.Pid
		says.Close()
		problem, err := io.ReadAll(ready)
		if len(problem) > 0 {
			err = errors.New(string(problem))
		}
		return err
	})
	if err == nil {
		_, err = note.Write([]byte{1})
	}
	return d, err
}

// runProgram is --distribution NAME --user root --cd / --exec PROGRAM...
func (w *wsl) runProgram(name string, args []string) error {
	d, err := w.wakeDistribution(name)
	if err != nil {
		return err
	}
	first, err := unix.PidfdOpen(d.PID, 0)
	if err != nil {
		return err
	}
	runtime.LockOSThread() // to the end: nobody else is to have this thread
	if err := errors.Join(unix.Unshare(unix.CLONE_FS), unix.Setns(first, namespaces)); err != nil {
		return err
	}
	cmd := &exec.Cmd{Path: args[0], Args: args, Dir: "/", Stdout: relay{os.Stdout}, Stderr: relay{os.Stderr}}
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "USER=root", "WSL_DISTRO_NAME=" + d.Name}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		fmt.Fprintf(os.Stderr, "<3>WSL (9) ERROR: CreateProcessCommon: execvpe(%s) failed: %v\n", args[0], err)
		return exitCode(1)
	}
	go func() {
		_, _ = io.Copy(in, os.Stdin) // until the program has ended
		_ = in.Close()
	}()
	err = cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exitCode(max(exit.ExitCode(), 1)) // what was terminated has none
	}
	return err
}

// A relay is one of the program's outputs, which another process does not get itself: it
// sees when the program ends, and not the other way round.
type relay struct{ io.Writer }

// runInit is the first process of a distribution. It says on its third descriptor, by closing
// it, that all is there, else what went wrong, and goes on when it gets a byte on the fourth.
func runInit(root string) int {
	says, noted := os.NewFile(3, "says"), os.NewFile(4, "noted")
	unix.CloseOnExec(3)
	unix.CloseOnExec(4)
	if err := mountRoot(root); err != nil {
		fmt.Fprint(says, err)
		return 1
	}
	says.Close()
	if n, _ := noted.Read(make([]byte, 1)); n == 0 {
		return 1
	}
	noted.Close()
	reapProcesses()
	return 0
}

// mountRoot makes root the root, with what WSL mounts there: the kernel's file systems, its
// modules, and a directory that all distributions share. There is a file "there" in these.
func mountRoot(root string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount(root, root, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	for _, m := range []struct{ kind, target string }{
		{"proc", "proc"}, {"sysfs", "sys"}, {"devtmpfs", "dev"}, {"devpts", "dev/pts"}, {"tmpfs", "run"}, {"tmpfs", modulesDir}, {"tmpfs", sharedDir},
	} {
		at := filepath.Join(root, m.target)
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, at, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	for _, dir := range []string{modulesDir, sharedDir} {
		if err := os.WriteFile(filepath.Join(root, dir, "there"), nil, 0o644); err != nil {
			return err
		}
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return err
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return err
	}
	return os.Chdir("/")
}

// What is mounted in a distribution besides.
const (
	modulesDir = "lib/modules"
	sharedDir  = "mnt/wsl"
)

// idleTime is how long a distribution stays in which nothing runs.
const idleTime = time.Second

// reapProcesses waits for processes that nobody else does, and returns when there has been none
// for a while.
func reapProcesses() {
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	for idle := time.Now(); time.Since(idle) < idleTime; {
		select {
		case <-children:
		case <-time.After(idleTime / 4):
		}
		for pid := 1; pid > 0; {
			pid, _ = unix.Wait4(-1, nil, unix.WNOHANG, nil)
		}
		if hasOthers() {
			idle = time.Now()
		}
	}
}

// hasOthers reports whether there is a process besides the first.
func hasOthers() bool {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return false // it was removed
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid != os.Getpid() {
			return true
		}
	}
	return false
}
