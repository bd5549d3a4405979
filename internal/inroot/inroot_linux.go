// Package inroot opens files below a directory as a process would whose root is that directory: no link leads out of it.
package inroot

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Open opens the file at a path below root, with O_PATH. It creates missing directories, and a missing file if file is set.
// The caller closes fd.
func Open(root, path string, file bool) (fd int, err error) {
	parent, err := unix.Open(root, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	top := parent
	defer func() {
		if parent != top {
			unix.Close(parent)
		}
		unix.Close(top)
	}()
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT}
	parts := strings.Split(strings.TrimPrefix(filepath.Clean("/"+path), "/"), "/")
	for i, name := range parts {
		last := i == len(parts)-1
		way := strings.Join(parts[:i+1], "/")
		fd, err := unix.Openat2(top, way, how)
		if errors.Is(err, unix.ENOENT) {
			if err = makeAt(parent, name, last && file); err == nil {
				fd, err = unix.Openat2(top, way, how)
			}
		}
		if err != nil {
			return -1, fmt.Errorf("%s: %w", way, err)
		}
		if last {
			return fd, nil
		}
		if parent != top {
			unix.Close(parent)
		}
		parent = fd
	}
	return -1, unix.EINVAL // not reached: the path has at least one part
}

// makeAt creates a directory or an empty file.
func makeAt(dir int, name string, file bool) error {
	if !file {
		return unix.Mkdirat(dir, name, 0o755)
	}
	fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// Files are the files below a root directory, by their names inside.
type Files struct{ Root string }

// maxRead is the size in bytes of the longest file that ReadFile reads.
const maxRead = 8 << 20

// ReadFile returns the data of a regular file.
func (f Files) ReadFile(name string) ([]byte, error) {
	top, err := unix.Open(f.Root, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(top)
	how := &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT} // a pipe must not block
	fd, err := unix.Openat2(top, strings.TrimPrefix(name, "/"), how)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &os.PathError{Op: "open", Path: name, Err: errors.New("not a regular file")}
	}
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(file, maxRead+1))
	if err == nil && len(data) > maxRead {
		err = &os.PathError{Op: "read", Path: name, Err: unix.EFBIG}
	}
	return data, err
}

// WriteFile replaces the data of a regular file, and makes the file and its directories if they are missing. If the process is killed
// meanwhile, the file has the beginning of data followed by what it had there.
func (f Files) WriteFile(name string, data []byte) error {
	target, err := Open(f.Root, name, true)
	if err != nil {
		return err
	}
	defer unix.Close(target)
	var st unix.Stat_t
	if err := unix.Fstat(target, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG { // to open it could have an effect
		return &os.PathError{Op: "open", Path: name, Err: errors.New("not a regular file")}
	}
	file, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", target), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.Write(data); err != nil {
		return err
	}
	return file.Truncate(int64(len(data)))
}
