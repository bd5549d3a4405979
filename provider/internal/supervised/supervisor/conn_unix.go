//go:build unix

package supervisor

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/internal/socket"
)

// canRemoveItself says that a supervisor can remove its own sandbox.
const canRemoveItself = true

// jobFD is the descriptor of the socket on which the job comes and the reply goes back.
const jobFD = 3

// heldFD is the descriptor of a file whose being open keeps the image from being removed,
// if the sandbox has an image. It stays open until this process ends.
const heldFD = 4

// Start starts cmd, which sets only arguments and attributes, as a supervisor that inherits
// held, which may be nil.
func Start(cmd *exec.Cmd, held *os.File) (Conn, error) {
	ours, theirs, err := socket.Pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		ours.Close()
		return nil, err
	}
	defer null.Close()
	cmd.ExtraFiles = inheritedFiles([]*os.File{jobFD - 3: theirs, heldFD - 3: held}, null)
	if err := cmd.Start(); err != nil {
		ours.Close()
		return nil, err
	}
	return socketConn{ours}, nil
}

// openJobConn cleans up what this process inherited, and returns the connection on which
// the job comes.
func openJobConn() (Conn, error) {
	unix.Umask(0o022) // files that the sandbox sees get the modes they are made with, whatever the caller's umask
	if err := closeInherited(); err != nil {
		return nil, err
	}
	for _, fd := range inheritedFDs {
		unix.CloseOnExec(fd)
	}
	job := os.NewFile(jobFD, "job")
	defer job.Close()
	conn, err := net.FileConn(job)
	if err != nil {
		return nil, err
	}
	return socketConn{conn.(*net.UnixConn)}, nil
}

// closeInherited closes descriptors that this process inherited by accident: files that the
// program which started Atoll had left open, locks and secrets among them, and that would
// stay open as long as the sandbox lives. The Go runtime's own descriptors are
// close-on-exec, so it leaves them open.
func closeInherited() error {
	entries, err := os.ReadDir(descriptorDir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd < jobFD || slices.Contains(inheritedFDs, fd) {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	}
	return nil
}

// A socketConn is a Conn over a Unix socket.
type socketConn struct{ *net.UnixConn }

// HungUp implements Conn.
func (l socketConn) HungUp() bool {
	raw, err := l.SyscallConn()
	if err != nil {
		return true // closed
	}
	silent := false
	err = raw.Control(func(fd uintptr) {
		_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		silent = errors.Is(err, unix.EAGAIN)
	})
	return err != nil || !silent
}
