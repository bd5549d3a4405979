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

// capabilities is the attribute with a file's capabilities, the only one that
// is kept: others mean something to the host's own layers and labels.
const capabilities = "security.capability"

func (t *tree) setCapabilities(f *os.File, value string) error {
	err := unix.Fsetxattr(int(f.Fd()), capabilities, []byte(value), 0)
	if errors.Is(err, unix.EINVAL) {
		return damaged(nil, "its capabilities make no sense")
	}
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) {
		t.log.Debug("unpack", "file", f.Name(), "err", err)
		return nil
	}
	return err
}

// canChown reports whether this process may give files to any user: as root,
// unless in a user namespace that knows only itself.
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

// flush writes all of the file system that f is on to disk, so that an image
// is there as a whole, or not, after the machine crashed.
func flush(f *os.File) error {
	for {
		err := unix.Syncfs(int(f.Fd()))
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// free returns how many bytes can be written below dir.
func free(dir string) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0
	}
	return int64(st.Bavail) * st.Bsize
}
