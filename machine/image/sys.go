//go:build linux

package image

import (
	"bufio"
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// capabilityAttr is the extended attribute with a file's capabilities. It is the only
// one that a tree sets: others have a meaning for the host's overlays and labels.
const capabilityAttr = "security.capability"

func (t *tree) setCapabilities(f *os.File, value string) error {
	err := unix.Fsetxattr(int(f.Fd()), capabilityAttr, []byte(value), 0)
	if errors.Is(err, unix.EINVAL) {
		return newDamageError(nil, "its %s attribute is invalid", capabilityAttr)
	}
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) {
		t.log.Debug("unpack", "file", f.Name(), "err", err)
		return nil
	}
	return err
}

// canChown reports whether this process may give files to any user: it is root, and
// not in a user namespace that maps only a few ids.
func canChown() bool {
	if os.Geteuid() != 0 {
		return false
	}
	f, err := os.Open("/proc/self/uid_map")
	if err != nil {
		return true // a kernel without user namespaces
	}
	defer f.Close()
	ids := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) == 3 {
			n, _ := strconv.Atoi(fields[2])
			ids += n
		}
	}
	return ids >= 1<<16-1
}

// syncFileSystem writes the whole file system of f to disk, so that after a crash of
// the machine an image is either complete or absent.
func syncFileSystem(f *os.File) error {
	for {
		err := unix.Syncfs(int(f.Fd()))
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// freeBytes returns the free bytes of the file system of dir, or 0 if unknown.
func freeBytes(dir string) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0
	}
	return int64(st.Bavail) * st.Bsize
}
