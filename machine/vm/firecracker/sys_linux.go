package firecracker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// errNoListener means that a socket does not exist yet, or that nobody listens on it.
var errNoListener = errors.New("nobody listens on the socket")

// dialSocket connects to a socket in the directory root. The path may be longer than paths of
// sockets are; and the connection leads nowhere else, even if a jailed process has replaced the
// socket by a link.
func dialSocket(ctx context.Context, root, name string) (net.Conn, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", root, err)
	}
	defer unix.Close(dir)
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, errNoListener
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, fmt.Errorf("%s is not a socket", name)
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", fd))
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil, errNoListener
	}
	return conn, err
}

// setNewPIDNamespace makes cmd the first process of a new PID namespace.
func setNewPIDNamespace(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
}

// From the kernel's kvm.h.
const (
	kvmGetAPIVersion = 0xae00
	kvmCreateVM      = 0xae01
	kvmAPIVersion    = 12
)

// tryKVM creates a virtual machine on KVM, and drops it.
func tryKVM(device string) error {
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	version, err := unix.IoctlRetInt(int(f.Fd()), kvmGetAPIVersion)
	if err != nil {
		return fmt.Errorf("%s: %w", device, err)
	}
	if version != kvmAPIVersion {
		return fmt.Errorf("%s has API version %d, firecracker needs %d", device, version, kvmAPIVersion)
	}
	machine, err := unix.IoctlRetInt(int(f.Fd()), kvmCreateVM)
	if err != nil {
		return fmt.Errorf("%s: create a virtual machine: %w", device, err)
	}
	return unix.Close(machine)
}
