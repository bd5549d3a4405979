//go:build linux

package keeper

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// checkTargets reports a mount whose place cannot be made, because there is
// something on the way that is no directory: all that gVisor would say is that
// its gofer died.
func checkTargets(root string, mounts []Mount) error {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	for _, m := range mounts {
		for at := filepath.Dir(m.Target); at != "/"; at = filepath.Dir(at) {
			how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT}
			fd, err := unix.Openat2(dir, at[1:], &how)
			if err == nil {
				unix.Close(fd)
				break
			}
			if errors.Is(err, unix.ENOTDIR) {
				return fmt.Errorf("%s cannot be mounted: %s is not a directory", m.Target, at)
			}
		}
	}
	return nil
}

// netFiles are the files of /etc that describe the network from inside.
func netFiles(hostname, resolver string) map[string]string {
	files := map[string]string{
		"hostname": hostname + "\n",
		"hosts":    "127.0.0.1 localhost " + hostname + "\n::1 localhost ip6-localhost ip6-loopback\n",
	}
	if resolver != "" {
		files["resolv.conf"] = "nameserver " + resolver + "\n"
	}
	return files
}

// imageRoot mounts the image, which is shared and read-only, below dir with a
// layer of its own on top, for what every sandbox has and for the places of its
// mounts, and returns where. It must run in a mount namespace of its own.
func imageRoot(dir, image string) (string, error) {
	lower, err := os.Open(image)
	if err != nil {
		return "", err
	}
	defer lower.Close()
	info, err := lower.Stat()
	if err != nil {
		return "", err
	}
	if err := mountTmpfs(dir); err != nil {
		return "", err
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"upper", "work", "root"} {
		if err := os.Mkdir(at(name), 0o755); err != nil {
			return "", err
		}
	}
	if err := os.Chmod(at("upper"), info.Mode().Perm()); err != nil { // is that of the root
		return "", err
	}
	layer, err := os.Open(dir)
	if err != nil {
		return "", err
	}
	defer layer.Close()
	// By descriptors: a path could hold what separates mount options.
	opts := fmt.Sprintf("lowerdir=/proc/self/fd/%d,upperdir=/proc/self/fd/%d/upper,workdir=/proc/self/fd/%[2]d/work", lower.Fd(), layer.Fd())
	if err := unix.Mount("atoll", at("root"), "overlay", unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
		return "", fmt.Errorf("mount overlay: %w", err)
	}
	return at("root"), nil
}

// furnish puts into the root file system what every sandbox has: the idle init,
// the names of the machine, and a /tmp of its own.
func furnish(dir string, etc map[string]string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	init, err := idleELF(runtime.GOARCH)
	if err != nil {
		return err
	}
	err = within(root, idleDir[1:], 0o755, func(d *os.Root) error { return place(d, idleName, init, 0o755) })
	if err != nil {
		return err
	}
	err = within(root, "etc", 0o755, func(d *os.Root) error {
		var errs []error
		for name, text := range etc {
			errs = append(errs, place(d, name, []byte(text), 0o644))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return err
	}
	return within(root, "tmp", 0o777|fs.ModeSticky, func(d *os.Root) error { return d.MkdirAll(keepTmp, 0o755) })
}

// within calls fn with a directory of the root file system, which is made if
// there is none. A link is followed as it is inside.
func within(root *os.Root, name string, mode fs.FileMode, fn func(*os.Root) error) error {
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT}
	fd, err := unix.Openat2(int(dir.Fd()), name, &how)
	if errors.Is(err, unix.ENOENT) {
		_ = root.Remove(name) // a link that leads nowhere
		if err := errors.Join(root.Mkdir(name, 0o755), root.Chmod(name, mode)); err != nil {
			return err
		}
		fd, err = unix.Openat2(int(dir.Fd()), name, &how)
	}
	if err != nil {
		return fmt.Errorf("/%s: %w", name, err)
	}
	defer unix.Close(fd)
	d, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return err
	}
	defer d.Close()
	return fn(d)
}

// place writes a file, in place of one or of a link that is there.
func place(dir *os.Root, name string, data []byte, mode fs.FileMode) error {
	if err := dir.RemoveAll(name); err != nil {
		return err
	}
	return dir.WriteFile(name, data, mode)
}

// keepTmp is a directory in /tmp. gVisor mounts a tmpfs on an empty /tmp, which
// no stop would save and no limit of the disk would hold.
const keepTmp = ".atoll"
