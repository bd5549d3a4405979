package usernet

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtoolSet issues one of the ethtool commands that set a single value. The
// unix package has no call for these.
func ethtoolSet(fd int, name string, cmd, value uint32) error {
	arg := struct{ cmd, value uint32 }{cmd, value}
	req := struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&arg)}
	copy(req.name[:len(req.name)-1], name)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
	runtime.KeepAlive(&arg)
	if errno != 0 {
		return errno
	}
	return nil
}
