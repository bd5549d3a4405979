//go:build linux

package keeper

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/inroot"
	"github.com/seed46cd37a8/atoll/provider/internal/hostroot"
)

// rootName is the name of a directory in the sandbox's directory, on which the root file system is mounted in this process's own
// mount namespace; changesName is that of the directory with the changes of the root file system.
const (
	rootName    = "rootfs"
	changesName = "changes"
)

// The directories on the tmpfs at rootName.
const (
	lowerName  = "lower"  // what the sandbox is made from
	layersName = "layers" // the changes
	mergedName = "root"   // both
)

// A root is the root file system of a sandbox while it is laid out. Close it.
type root struct {
	dir  string   // on which base is mounted
	base *os.File // the tmpfs with all parts
	ids  *ids

	layers []string // the directories of the root file system that have changes of their own
}

// partPath returns the path of a part that also works for actInside: root inside may not enter the directories above base.
func (r *root) partPath(name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", r.base.Fd(), name)
}

func (r *root) closeRoot() {
	if r.base != nil {
		_ = r.base.Close()
	}
}

// mergedPath returns the path of the root directory of the sandbox.
func (r *root) mergedPath() string { return r.partPath(mergedName) }

// layOut mounts the root file system: of an image in a directory, or of the host if that is "". The changes go to a directory that
// exists, or to memory if that is "".
func (r *root) layOut(image, changes string, hostPaths []string) error {
	if err := os.Mkdir(r.dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := mountTmpfs(r.dir, r.ids, 0, "mode=0755", "size=16m"); err != nil {
		return err
	}
	// The sandbox must not see what the host mounts later.
	if err := unix.Mount("", r.dir, "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	base, err := openPath(r.dir)
	if err != nil {
		return err
	}
	if r.base, err = raiseFile(base); err != nil {
		return err
	}
	err = r.ids.actInside(func() error {
		for _, name := range []string{lowerName, layersName, mergedName} {
			if err := os.Mkdir(r.partPath(name), 0o755); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if changes != "" {
		if err := (bind{owners: r.ids}).mountOn(changes, r.partPath(layersName)); err != nil {
			return err
		}
	}
	if image == "" {
		return r.layOutHost(hostPaths)
	}
	if err := (bind{readOnly: true, owners: r.ids}).mountOn(image, r.partPath(lowerName)); err != nil {
		return err
	}
	return r.mountLayer("root", "")
}

// mountLayer mounts a directory of the lower root, and its changes, on the same directory of the merged root.
func (r *root) mountLayer(name, dir string) error {
	layer := filepath.Join(r.partPath(layersName), name)
	err := r.ids.actInside(func() error { return os.MkdirAll(layer, 0o755) })
	if err != nil {
		return err
	}
	o := overlay{lower: filepath.Join(r.partPath(lowerName), dir), layer: layer, target: filepath.Join(r.mergedPath(), dir), owners: r.ids}
	if dir != "" && needsSkeleton(o.lower, r.ids) {
		o.middle = r.partPath("skeleton-" + name)
		if err := makeSkeleton(o.middle, o.lower); err != nil {
			return err
		}
	}
	r.layers = append(r.layers, dir)
	return o.mountOverlay(!r.ids.mapped)
}

// layOutHost mounts the host's root file system, as far as sandboxes see it. Its large trees are mounted by themselves, since an
// overlay does not have what is mounted below its directories.
func (r *root) layOutHost(extra []string) error {
	lower := filepath.Join(r.dir, lowerName) // as the list of mounts has it
	err := r.ids.actInside(func() error {
		return hostroot.LayOut(lower, hostroot.Options{Extra: extra, IDMap: r.ids.mappingFile()})
	})
	if err != nil {
		return fmt.Errorf("host root file system: %w", err)
	}
	points, err := hostroot.MountPoints()
	if err != nil {
		return err
	}
	points = slices.DeleteFunc(points, func(p string) bool { return !strings.HasPrefix(p, lower+"/") })
	slices.Sort(points)
	if err := r.mountLayer("root", ""); err != nil {
		return err
	}
	for _, point := range slices.Compact(points) {
		dir := strings.TrimPrefix(point, lower)
		if strings.Count(dir, "/") == 1 && isDir(point) { // /usr, and what is not a link to it
			err = r.mountLayer("root-"+dir[1:], dir)
		} else {
			err = bind{readOnly: true}.mountOn(point, filepath.Join(r.mergedPath(), dir))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func isDir(name string) bool {
	info, err := os.Lstat(name)
	return err == nil && info.IsDir()
}

// mappingFile returns the user namespace for ID-mapped mounts; nil if none is needed.
func (i *ids) mappingFile() *os.File {
	if !i.mapped {
		return nil
	}
	return i.namespace
}

// makeReadOnly makes the root file system read-only, without what is mounted on it.
func (r *root) makeReadOnly() error {
	for _, dir := range r.layers {
		target := filepath.Join(r.mergedPath(), dir)
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		if err := unix.MountSetattr(unix.AT_FDCWD, target, 0, &attr); err != nil {
			return fmt.Errorf("make /%s read-only: %w", dir, err)
		}
	}
	return nil
}

// syncChanges writes changes to disk.
func (r *root) syncChanges() error {
	f, err := os.Open(r.partPath(layersName))
	if err != nil {
		return err
	}
	defer f.Close()
	return os.NewSyscallError("syncfs", unix.Syncfs(int(f.Fd())))
}

// openTarget returns a descriptor of a directory, or a file, of the root file system, which it makes if it does not exist.
func (r *root) openTarget(target string, file bool) (fd int, err error) {
	err = r.ids.actInside(func() (err error) {
		fd, err = inroot.Open(r.mergedPath(), target, file)
		return err
	})
	return fd, err
}

// writeFiles writes files of /etc.
func (r *root) writeFiles(etc map[string]string) error {
	return r.ids.actInside(func() error {
		for _, name := range slices.Sorted(maps.Keys(etc)) {
			if err := writeInside(r.mergedPath(), "/etc/"+name, etc[name]); err != nil {
				return fmt.Errorf("/etc/%s: %w", name, err)
			}
		}
		return nil
	})
}

// writeInside writes a file below root.
func writeInside(root, name, text string) error {
	target, err := inroot.Open(root, name, true)
	if err != nil {
		return err
	}
	defer unix.Close(target)
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", target), unix.O_WRONLY|unix.O_TRUNC|unix.O_NONBLOCK|unix.O_CLOEXEC, 0) // a pipe of the image must not block
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(text)) // less than a page: the kernel writes all or nothing
	return err
}

// mountError says which mount failed.
func mountError(id, target string, err error) error {
	if e := (*atoll.Error)(nil); errors.As(err, &e) {
		return err
	}
	return atoll.Errorf("start", id, atoll.ErrInvalid, "cannot mount %s: %w", path.Clean(target), err)
}
