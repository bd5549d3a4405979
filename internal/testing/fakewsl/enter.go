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

// initFlag is the argument that makes the program the first process of a distribution.
const initFlag = "--fake-init"

// namespaces are the clone flags of the namespaces of a distribution.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// startDistribution starts the first process of a distribution, unless it runs. If this program ends
// before it has recorded the process, the process ends as well.
func (w *wsl) startDistribution(name string) (d Distribution, err error) {
	noted, note, err := os.Pipe()
	if err != nil {
		return d, err
	}
	defer noted.Close()
	defer note.Close()
	err = w.withDistribution(name, func(i int) error {
		defer func() { d = w.distributions[i] }()
		if w.isRunning(i) {
			return nil
		}
		ready, says, err := os.Pipe()
		if err != nil {
			return err
		}
		defer ready.Close()
		defer says.Close()
		cmd := &exec.Cmd{Path: "/proc/self/exe", Args: []string{os.Args[0], initFlag, w.distributions[i].Root()}, ExtraFiles: []*os.File{says, noted}}
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces, Setsid: true}
		if err := cmd.Start(); err != nil {
			return err
		}
		w.distributions[i].PID = cmd.Process.Pid
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

// runProgram implements --distribution NAME --user root --cd / --exec PROGRAM...
func (w *wsl) runProgram(name string, args []string) error {
	d, err := w.startDistribution(name)
	if err != nil {
		return err
	}
	first, err := unix.PidfdOpen(d.PID, 0)
	if err != nil {
		return err
	}
	runtime.LockOSThread() // never unlocked: the thread ends with its goroutine
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
		_, _ = io.Copy(in, os.Stdin) // ends with the program
		_ = in.Close()
	}()
	err = cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exitCode(max(exit.ExitCode(), 1)) // a killed program has exit code -1
	}
	return err
}

// A relay is an output of the program. The other process gets a pipe instead of the file itself, so
// that it sees the end of this program, and not the other way round.
type relay struct{ io.Writer }

// runInit is the first process of a distribution. It closes descriptor 3 when the root file system is
// mounted, or writes an error to it. It continues when it reads a byte from descriptor 4.
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

// mountRoot makes root the root directory and mounts the same things as WSL: the kernel's file
// systems, the kernel modules, and a directory that all distributions share. The latter two contain a
// file "there".
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

// Directories that WSL mounts in a distribution besides the kernel's file systems.
const (
	modulesDir = "lib/modules"
	sharedDir  = "mnt/wsl"
)

// idleTime is the time after which a distribution without other processes ends.
const idleTime = time.Second

// reapProcesses waits for orphaned processes. It returns after idleTime without other processes.
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

// hasOthers reports whether there is a process other than the first.
func hasOthers() bool {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return false // the root directory was removed
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid != os.Getpid() {
			return true
		}
	}
	return false
}
