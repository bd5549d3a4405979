// Package inroot opens files below a directory as a process would whose root is that directory: no link leads out of it.
package inroot

import (
	"errors"
	"fmt"
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
