//go:build linux

package keeper

import (
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/provider/native/internal/pid1"
)

// initProgram returns an open executable: the first process of every sandbox. No name leads to it, and nobody can change it.
var initProgram = sync.OnceValues(func() (*os.File, error) {
	data, err := pid1.Program(runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("init", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	if _, err := unix.Write(fd, data); err != nil {
		return nil, os.NewSyscallError("write", err)
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, lowestFD)
	unix.Close(fd)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(high), "init"), nil
})

// lowestFD is above all descriptors that the first process and the scripts use.
const lowestFD = 64

// raiseFile moves a file to a descriptor that no call of a script overwrites.
func raiseFile(f *os.File) (*os.File, error) {
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, lowestFD)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
