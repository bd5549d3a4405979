//go:build linux

package hostroot

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// MountTmpfs mounts an empty tmpfs for a few small files at dir.
func MountTmpfs(dir string) error {
	if err := unix.Mount("atoll", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=16m"); err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	return nil
}

// MountPoints returns the mount points that this thread sees.
func MountPoints() ([]string, error) {
	data, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	var points []string
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 4 {
			points = append(points, unescape.Replace(fields[4]))
		}
	}
	return points, nil
}

// bindReadOnly mounts source at target, if deep also the mounts below it, read-only, without
// devices or set-user-ID programs, and with the mapping of h. Later mounts of the machine do
// not appear there.
func (h *hostView) bindReadOnly(source, target string, deep bool) error {
	tree, err := cloneTree(source, deep)
	if err == nil {
		defer unix.Close(tree)
		if err := restrictTree(tree, h.idMap); err != nil {
			return readOnlyError(source, err)
		}
		err = unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_SYMLINKS)
	}
	if errors.Is(err, unix.ENOSYS) { // older than 5.2
		return readOnlyError(source, err)
	}
	if err != nil {
		return fmt.Errorf("bind %s: %w", source, err)
	}
	return nil
}

func readOnlyError(source string, err error) error {
	return fmt.Errorf("make %s read-only: %w; needs Linux 5.12 or later", source, err)
}

// cloneTree returns a descriptor of a new mount of source that is nowhere yet, if deep with
// the mounts below it. The kernel maps the owners of such mounts only.
func cloneTree(source string, deep bool) (int, error) {
	const clone = unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC
	if !deep {
		tree, err := unix.OpenTree(unix.AT_FDCWD, source, clone)
		if !errors.Is(err, unix.EINVAL) { // a user namespace may not look below mounts that it did not make
			return tree, err
		}
	}
	return unix.OpenTree(unix.AT_FDCWD, source, clone|unix.AT_RECURSIVE)
}

// restrictTree makes the mounts of cloneTree read-only, without devices or set-user-ID
// programs. It maps the owners of their files into the user namespace idMap, unless that is
// nil or the kernel cannot map all of these mounts.
func restrictTree(tree int, idMap *os.File) error {
	attr := unix.MountAttr{
		Attr_set:    unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV,
		Propagation: unix.MS_PRIVATE,
	}
	const all = unix.AT_EMPTY_PATH | unix.AT_RECURSIVE
	if idMap != nil {
		mapped := attr
		mapped.Attr_set |= unix.MOUNT_ATTR_IDMAP
		mapped.Userns_fd = uint64(idMap.Fd())
		err := unix.MountSetattr(tree, "", all, &mapped)
		// EINVAL is of the type of a file system, EPERM of one that has a mapping or belongs to
		// another user namespace. With either, nothing has changed.
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EPERM) {
			return err
		}
	}
	return unix.MountSetattr(tree, "", all, &attr)
}
