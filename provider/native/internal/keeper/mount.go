//go:build linux

package keeper

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
)

// A bind says how a tree of the host is mounted in a sandbox.
type bind struct {
	readOnly bool
	deep     bool // with the mounts below it
	owners   *ids // whose mapping the owners of its files get, if they have one
}

// openTree returns a descriptor of a new mount of source, which is nowhere yet.
func (b bind) openTree(source string) (int, error) {
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC)
	if b.deep {
		flags |= unix.AT_RECURSIVE
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, flags)
	if err == nil || b.deep || !errors.Is(err, unix.EINVAL) {
		return tree, err
	}
	return unix.OpenTree(unix.AT_FDCWD, source, flags|unix.AT_RECURSIVE) // a user namespace may not look below mounts that it did not make
}

// mountAt mounts source on a descriptor of a directory or file.
func (b bind) mountAt(source string, target int) error {
	tree, err := b.openTree(source)
	if err != nil {
		return fmt.Errorf("mount %s: %w", source, err)
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if b.readOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if b.owners != nil && b.owners.mapped {
		attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
		attr.Userns_fd = uint64(b.owners.namespace.Fd())
	}
	err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr)
	if errors.Is(err, unix.EINVAL) && attr.Attr_set&unix.MOUNT_ATTR_IDMAP != 0 {
		return atoll.Errorf("start", "", atoll.ErrUnsupported,
			"mount %s: its file system, or Linux before 5.19, cannot map owners of files to those of a sandbox: use a directory on ext4, xfs or btrfs", source)
	}
	if err != nil {
		return fmt.Errorf("mount %s: %w", source, err)
	}
	if err := unix.MoveMount(tree, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount %s: %w", source, err)
	}
	return nil
}

// mountOn is mountAt for a path.
func (b bind) mountOn(source, target string) error {
	fd, err := unix.Open(target, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: target, Err: err}
	}
	defer unix.Close(fd)
	return b.mountAt(source, fd)
}

// mountTmpfs mounts an empty tmpfs for a sandbox's root on a path.
func mountTmpfs(target string, owners *ids, flags uintptr, options ...string) error {
	options = append(options, fmt.Sprintf("uid=%d,gid=%[1]d", owners.root))
	if err := unix.Mount("tmpfs", target, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|flags, strings.Join(options, ",")); err != nil {
		return fmt.Errorf("mount tmpfs on %s: %w", target, err)
	}
	return nil
}

// An overlay is a directory with changes in a layer of its own.
type overlay struct {
	lower  string
	middle string // a layer above it; "" for none
	layer  string // the directory with the changes, and the kernel's working directory
	target string
	owners *ids
}

const (
	upperName = "upper"
	workName  = "work"
)

// mountOverlay makes the layer, unless an earlier run has, and mounts the overlay.
func (o overlay) mountOverlay(inNamespace bool) error {
	if err := o.makeLayer(); err != nil {
		return err
	}
	lower, err := os.Open(o.lower)
	if err != nil {
		return err
	}
	defer lower.Close()
	layer, err := os.Open(o.layer)
	if err != nil {
		return err
	}
	defer layer.Close()
	// By descriptors: a path could contain characters that separate mount options.
	lowers := fmt.Sprintf("/proc/self/fd/%d", lower.Fd())
	if o.middle != "" {
		middle, err := os.Open(o.middle)
		if err != nil {
			return err
		}
		defer middle.Close()
		lowers = fmt.Sprintf("/proc/self/fd/%d:%s", middle.Fd(), lowers)
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=/proc/self/fd/%d/%s,workdir=/proc/self/fd/%[2]d/%[4]s", lowers, layer.Fd(), upperName, workName)
	if inNamespace {
		options += ",userxattr"
	}
	// The kernel writes files of the layer with the rights of the thread that mounts it.
	err = o.owners.actInside(func() error {
		return withinQuota(func() error {
			return unix.Mount("overlay", o.target, "overlay", unix.MS_NOSUID|unix.MS_NODEV, options)
		})
	})
	if err != nil {
		return fmt.Errorf("mount overlay on %s: %w", o.target, err)
	}
	return nil
}

// makeLayer makes the directories of the layer. The upper one gets the mode and the owner of the lower one: they become those of
// the target.
func (o overlay) makeLayer() error {
	upper := filepath.Join(o.layer, upperName)
	if _, err := os.Lstat(upper); err == nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Stat(o.lower, &st); err != nil {
		return &os.PathError{Op: "stat", Path: o.lower, Err: err}
	}
	return o.owners.actInside(func() error {
		made := upper + ".new" // until it is complete
		err := os.MkdirAll(filepath.Join(o.layer, workName), 0o755)
		if err == nil {
			err = os.MkdirAll(made, 0o755)
		}
		if err == nil {
			_ = os.Chown(made, int(st.Uid), int(st.Gid)) // fails for owners that do not exist inside
			err = unix.Chmod(made, st.Mode&0o7777)
		}
		if err != nil {
			return err
		}
		return os.Rename(made, upper)
	})
}
