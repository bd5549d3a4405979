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

// errNotThere is a socket that nobody has made yet, or listens on.
var errNotThere = errors.New("nobody listens there")

// connect connects to a socket in the directory root. Its path is as long as it likes;
// and it leads nowhere else, though whoever is jailed there may have exchanged it.
func connect(ctx context.Context, root, name string) (net.Conn, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", root, err)
	}
	defer unix.Close(dir)
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, errNotThere
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
		return nil, errNotThere
	}
	return conn, err
}

// inNamespace has cmd be the first process of a PID namespace.
func inNamespace(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
}

// From the kernel's kvm.h.
const (
	kvmGetAPIVersion = 0xae00
	kvmCreateVM      = 0xae01
	kvmAPIVersion    = 12
)

// tryKVM makes a machine of KVM's, and drops it.
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
		return fmt.Errorf("%s has version %d of its API, and firecracker wants %d", device, version, kvmAPIVersion)
	}
	machine, err := unix.IoctlRetInt(int(f.Fd()), kvmCreateVM)
	if err != nil {
		return fmt.Errorf("%s makes no machine: %w", device, err)
	}
	return unix.Close(machine)
}
