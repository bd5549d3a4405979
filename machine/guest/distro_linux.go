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
	"github.com/seed46cd37a8/atoll/internal/mux"
	"github.com/seed46cd37a8/atoll/internal/tartree"
)

// A distro is the world of a Computer that is a distribution of WSL's. Its kernel, clock and
// network are those of all distributions, and what WSL mounts leads to Windows and to the
// others: it has namespaces of its own, and of the file systems nothing but its root. Its
// one host is at the other ends of stdin and stdout.
type distro struct{}

// Unpack writes the root archive that is on stdin over the root file system, of which
// something may run: what WSL executes for a machine whose root file system stays, when
// that is to have the programs of another archive.
func Unpack() error {
	err := tartree.Over("/", os.Stdin)
	unix.Sync()
	return err
}

// RunDistro is the whole life of the program that WSL executes in a distribution which is to
// be a Computer, and of the same one as the first process of namespaces, which the former
// starts. It returns when that has ended: its code, and what went wrong with starting it.
func RunDistro() (code int, err error) {
	if os.Getpid() == 1 {
		runComputer(distro{})
	}
	signal.Notify(make(chan os.Signal, 1), append(deadly, unix.SIGINT, unix.SIGTERM)...) // its end is that of stdin
	runtime.LockOSThread()                                                               // with which the first process ends
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

// begin has nobody outside see what is mounted from now on. What is put together is so in
// memory, and nothing of it in the root file system.
func (distro) begin(*Computer) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	return systemMount{"tmpfs", filepath.Dir(newRoot), unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"}.make("")
}

// open has the host on stdin and stdout come in, with whom the Computer ends.
func (distro) open(c *Computer) error {
	stream := struct {
		io.Reader
		io.WriteCloser
	}{os.Stdin, os.Stdout}
	go func() {
		if err := mux.Guest(stream, c.welcome); !errors.Is(err, io.EOF) {
			c.say("stdin: " + err.Error())
		}
		c.off()
	}()
	return nil
}

// setTime does nothing: the clock is WSL's, which keeps it.
func (distro) setTime(int64) error { return nil }

// check refuses what only a machine with a kernel of its own can be.
func (distro) check(s *Setup) error {
	cannot := func(what string) error {
		return atoll.Errorf("set up", s.Config.ID, atoll.ErrUnsupported, "a distribution of WSL has no %s", what)
	}
	switch {
	case s.Root.Fixed:
		return cannot("root file system that is read-only")
	case s.Processes > 0:
		return cannot("limit of processes")
	case s.Network != nil && s.Network.MAC == "":
		return atoll.Errorf("set up", s.Config.ID, atoll.ErrInvalid, "the network card is to be made, and has no MAC")
	}
	for _, m := range s.Mounts {
		if m.Disk != "" || m.Share != "" {
			return cannot("disks and shared directories to mount on " + m.Target)
		}
	}
	return nil
}

// setUp makes the root file system that of a machine: as it is, without what WSL has
// mounted on it.
func (d distro) setUp(c *Computer, s *Setup) error {
	if err := d.check(s); err != nil {
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
		if m.kind == "devtmpfs" { // which is everybody's
			m.kind = "tmpfs"
		}
		if err := m.make(newRoot); err != nil {
			return err
		}
	}
	if err := makeDevices(newRoot + "/dev"); err != nil {
		return err
	}
	if err := unix.Mount(newRoot+"/dev/null", newRoot+"/proc/sysrq-trigger", "", unix.MS_BIND, ""); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("keep the kernel going: %w", err) // which is everybody's
	}
	if err := bindModules(newRoot); err != nil {
		return err
	}
	for _, m := range s.Mounts {
		if err := m.mount(); err != nil {
			return atoll.Errorf("mount", m.Target, atoll.ErrInvalid, "mount on %s: %w", m.Target, err)
		}
	}
	if s.Init != nil {
		if err := d.prepare(s); err != nil {
			return err
		}
	}
	if err := s.files(newRoot); err != nil {
		return err
	}
	if s.Network != nil {
		if err := plugIn(c, s.Network); err != nil {
			return fmt.Errorf("network: %w", err)
		}
	}
	return pivot(newRoot)
}

// prepare has what services need: control groups, and directories where others have disks.
func (distro) prepare(s *Setup) error {
	if err := mountGroups(newRoot); err != nil {
		return err
	}
	for _, d := range s.Init.Disks {
		at, err := place(newRoot, d.Mount, false)
		if err != nil {
			return err
		}
		unix.Close(at)
	}
	return nil
}

// modulesAt is where WSL mounts the modules of its kernel.
const modulesAt = "/lib/modules"

// bindModules has services find the modules of the kernel below a root, too.
func bindModules(root string) error {
	err := unix.Mount(modulesAt, root+modulesAt, "", unix.MS_BIND|unix.MS_REC, "")
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("modules of the kernel: %w", err)
	}
	return nil
}

// loadModule loads a module of WSL's kernel, with what it depends on: only the kernels of
// Computers with a board have all that they need from the beginning.
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

// devices are those that every program may use.
var devices = []device{
	{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}, {tunName, 10, 200},
}

// deviceLinks are names for what is elsewhere.
var deviceLinks = map[string]string{
	"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
}

// makeDevices fills a directory that is empty but for mounts.
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

// pivot makes root the root of this process and of all to come, and lets go of all that was
// mounted before.
func pivot(root string) error {
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

// console is where WSL's program has its stderr, which the driver writes down.
func (distro) console() (*os.File, error) {
	fd, err := unix.FcntlInt(os.Stderr.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "console"), nil
}

func (distro) say(text string) { fmt.Fprintln(os.Stderr, text) }

// end leaves the kernel alone, which is not ours: all processes end with the first one.
func (distro) end(c *Computer, err error) {
	unix.Sync()
	if err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

var _ world = distro{}
