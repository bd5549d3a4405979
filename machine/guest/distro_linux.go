package guest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/inroot"
	"github.com/seed46cd37a8/atoll/internal/mux"
	"github.com/seed46cd37a8/atoll/internal/tartree"
)

// A wslPlatform is the platform of a Computer in a distribution of WSL. All distributions share the
// kernel, clock and network, and WSL's mounts lead to Windows and to other distributions: so the
// Computer has its own namespaces, and of the file systems only its root. Its one host is at the
// other ends of stdin and stdout.
type wslPlatform struct{}

// Unpack writes the root archive on stdin over the root file system, of which programs may be
// running. WSL runs it for a machine with a lasting root file system when that gets the programs of
// another archive.
func Unpack() error {
	err := tartree.Overwrite("/", os.Stdin)
	unix.Sync()
	return err
}

// RunDistro runs the program that WSL executes in a distribution to make it a Computer: it starts
// itself again as the first process of new namespaces, where RunDistro runs the Computer. It
// returns the exit code of that process, and an error if it did not start.
func RunDistro() (code int, err error) {
	if os.Getpid() == 1 {
		runComputer(wslPlatform{})
	}
	signal.Notify(make(chan os.Signal, 1), append(fatalSignals, unix.SIGINT, unix.SIGTERM)...) // it ends with stdin only
	runtime.LockOSThread()                                                                     // the first process ends with this thread
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: os.Args, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, SysProcAttr: &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNET,
		Pdeathsig:  unix.SIGKILL,
	}}
	if err := cmd.Run(); err != nil {
		exit := (*exec.ExitError)(nil)
		if !errors.As(err, &exit) {
			return 0, err
		}
		return max(exit.ExitCode(), 1), nil // it may have been killed
	}
	return 0, nil
}

// prepareSystem hides later mounts from the outside. The new root is built in memory, and nothing
// of it in the root file system.
func (wslPlatform) prepareSystem(*Computer) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	return systemMount{"tmpfs", filepath.Dir(newRoot), unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"}.mountBelow("")
}

// openPorts serves the host on stdin and stdout. The Computer ends with it.
func (wslPlatform) openPorts(c *Computer) error {
	stream := struct {
		io.Reader
		io.WriteCloser
	}{os.Stdin, os.Stdout}
	go func() {
		if err := mux.Guest(stream, c.serveSession); !errors.Is(err, io.EOF) {
			c.logMessage("stdin: " + err.Error())
		}
		c.powerOffNow()
	}()
	return nil
}

// setTime does nothing: WSL sets the clock.
func (wslPlatform) setTime(int64) error { return nil }

// checkSetup refuses features that need a kernel of the machine's own.
func (wslPlatform) checkSetup(s *Setup) error {
	cannot := func(what string) error {
		return atoll.Errorf("set up", s.Config.ID, atoll.ErrUnsupported, "a distribution of WSL has no %s", what)
	}
	switch {
	case s.Root.Fixed:
		return cannot("read-only root file system")
	case s.Processes > 0:
		return cannot("limit of processes")
	case s.Network != nil && s.Network.MAC == "":
		return atoll.Errorf("set up", s.Config.ID, atoll.ErrInvalid, "the network card needs a MAC")
	}
	for _, m := range s.Mounts {
		if m.Disk != "" || m.Share != "" {
			return cannot("disks and shared directories to mount on " + m.Target)
		}
	}
	return nil
}

// setUp makes the root file system the root of the machine, without the mounts of WSL.
func (d wslPlatform) setUp(c *Computer, s *Setup) error {
	if err := d.checkSetup(s); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
		return fmt.Errorf("hostname %q: %w", s.Hostname, err)
	}
	if err := os.MkdirAll(newRoot, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("/", newRoot, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("root file system: %w", err)
	}
	for _, m := range kernelMounts {
		if m.kind == "devtmpfs" { // all distributions share it
			m.kind = "tmpfs"
		}
		if err := m.mountBelow(newRoot); err != nil {
			return err
		}
	}
	if err := makeDevices(newRoot + "/dev"); err != nil {
		return err
	}
	if err := unix.Mount(newRoot+"/dev/null", newRoot+"/proc/sysrq-trigger", "", unix.MS_BIND, ""); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("protect the shared kernel: %w", err)
	}
	if err := bindModules(newRoot); err != nil {
		return err
	}
	if err := s.installTrust(newRoot); err != nil { // before the mounts, whose files are not the sandbox's
		return err
	}
	for _, m := range s.Mounts {
		if err := m.mountDir(); err != nil {
			return atoll.Errorf("mount", m.Target, atoll.ErrInvalid, "mount on %s: %w", m.Target, err)
		}
	}
	if s.Init != nil {
		if err := d.prepareInit(s); err != nil {
			return err
		}
	}
	if err := s.writeFiles(newRoot); err != nil {
		return err
	}
	if s.Network != nil {
		if err := plugIn(c, s.Network); err != nil {
			return fmt.Errorf("network: %w", err)
		}
	}
	return pivotRoot(newRoot)
}

// prepareInit provides for services: control groups, and directories in place of disks.
func (wslPlatform) prepareInit(s *Setup) error {
	if err := mountGroups(newRoot); err != nil {
		return err
	}
	for _, d := range s.Init.Disks {
		at, err := inroot.Open(newRoot, d.Mount, false)
		if err != nil {
			return err
		}
		unix.Close(at)
	}
	return nil
}

// moduleDir is the mount point of WSL for the modules of its kernel.
const moduleDir = "/lib/modules"

// bindModules makes the modules of the kernel appear below a root, for services.
func bindModules(root string) error {
	err := unix.Mount(moduleDir, root+moduleDir, "", unix.MS_BIND|unix.MS_REC, "")
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("modules of the kernel: %w", err)
	}
	return nil
}

// loadModule loads a module of WSL's kernel and its dependencies. Kernels of a vmPlatform have all
// modules from the beginning.
func loadModule(name string) error {
	if out, err := exec.Command("/sbin/modprobe", name).CombinedOutput(); err != nil {
		return fmt.Errorf("load module %s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return nil
}

// A device is a node in /dev.
type device struct {
	name         string
	major, minor uint32
}

// devices lists the devices that every program may use.
var devices = []device{
	{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}, {tunName, 10, 200},
}

// deviceLinks lists the links in /dev.
var deviceLinks = map[string]string{
	"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
}

// makeDevices creates devices and links in a directory that is empty except for mounts.
func makeDevices(dir string) error {
	for _, d := range devices {
		path := filepath.Join(dir, d.name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := unix.Mknod(path, unix.S_IFCHR, int(unix.Mkdev(d.major, d.minor))); err != nil {
			return fmt.Errorf("make device %s: %w", path, err)
		}
		if err := os.Chmod(path, 0o666); err != nil {
			return err
		}
	}
	for name, target := range deviceLinks {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// pivotRoot makes root the root of this process and of all later ones, and releases all earlier
// mounts.
func pivotRoot(root string) error {
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("enter the root file system: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return err
	}
	return os.Chdir("/")
}

// openConsole returns the stderr of WSL's program, which the driver records.
func (wslPlatform) openConsole() (*os.File, error) {
	fd, err := unix.FcntlInt(os.Stderr.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "console"), nil
}

func (wslPlatform) logMessage(text string) { fmt.Fprintln(os.Stderr, text) }

// shutDown leaves the kernel running, which others use: all processes end with the first one.
func (wslPlatform) shutDown(c *Computer, err error) {
	unix.Sync()
	if err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

var _ platform = wslPlatform{}
