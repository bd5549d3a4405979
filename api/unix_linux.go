package api

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// shortPath calls use with a path for the socket that fits in an address: a
// long one is reached through a descriptor of its directory.
func shortPath(path string, use func(short string) error) error {
	if len(path) <= maxSocketPath {
		return use(path)
	}
	const oPath = 0x200000 // O_PATH
	dir, err := syscall.Open(filepath.Dir(path), oPath|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: filepath.Dir(path), Err: err}
	}
	defer syscall.Close(dir)
	return use(fmt.Sprintf("/proc/self/fd/%d/%s", dir, filepath.Base(path)))
}

// sendFile sends the rest of a regular file, or as much of it as src is
// limited to, without copying it through this process. done is false when src
// is something else; nothing was sent then.
func sendFile(conn *net.UnixConn, src io.Reader) (n int64, done bool, err error) {
	left := int64(1<<63 - 1)
	limited, _ := src.(*io.LimitedReader)
	if limited != nil {
		src, left = limited.R, limited.N
	}
	file, ok := src.(*os.File)
	if !ok {
		return 0, false, nil
	}
	if fi, err := file.Stat(); err != nil || !fi.Mode().IsRegular() {
		return 0, false, nil
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, false, nil
	}
	from, err := file.SyscallConn()
	if err != nil {
		return 0, false, nil
	}
	cerr := from.Control(func(in uintptr) {
		n, err = sendAll(raw, int(in), left)
	})
	if err == nil {
		err = cerr
	}
	if limited != nil {
		limited.N -= n
	}
	if n == 0 && (err == syscall.EINVAL || err == syscall.ENOSYS) { // not every file system can
		return 0, false, nil
	}
	return n, true, err
}

const sendChunk = 4 << 20

// sendAll sends from in's offset until left is 0 or the file ends.
func sendAll(out syscall.RawConn, in int, left int64) (total int64, err error) {
	werr := out.Write(func(fd uintptr) bool {
		for left > 0 {
			var n int
			n, err = syscall.Sendfile(int(fd), in, nil, int(min(left, sendChunk)))
			if n > 0 {
				total += int64(n)
				left -= int64(n)
			}
			switch {
			case err == syscall.EINTR:
			case err == syscall.EAGAIN:
				return false // until there is room
			case err != nil || n == 0:
				return true
			}
		}
		return true
	})
	if err == nil {
		err = werr
	}
	return total, err
}
