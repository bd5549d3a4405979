//go:build linux

package keeper

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The host's root file system is shown by an allow-list. Nothing enumerates
// every token, socket and database below "/", so nothing but what is named
// here is there at all; the rest is empty directories.
var (
	// hostTrees are shown as they are: the machine's programs and libraries.
	hostTrees = []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"}

	// hostEtc is what programs need of /etc to start, find their libraries,
	// check certificates and print names. No account data, keys or tokens.
	hostEtc = []string{
		"alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version",
		"fonts", "gai.conf", "host.conf", "inputrc", "java-*", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime",
		"locale.alias", "locale.conf", "login.defs", "magic", "magic.mime", "mime.types", "nsswitch.conf", "os-release",
		"perl", "pki/ca-trust", "pki/tls/cert.pem", "pki/tls/certs", "profile", "protocols", "python3*", "redhat-release",
		"rpc", "services", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone",
	}

	// emptyDirs exist, empty and writable as usual.
	emptyDirs = map[string]fs.FileMode{
		"dev": 0o755, "etc": 0o755, "home": 0o755, "mnt": 0o755, "opt": 0o755, "proc": 0o755, "root": 0o700, "run": 0o755,
		"srv": 0o755, "sys": 0o755, "tmp": 0o777 | fs.ModeSticky, "var": 0o755, "var/cache": 0o755, "var/lib": 0o755, "var/log": 0o755,
		"var/tmp": 0o777 | fs.ModeSticky,
	}
)

// hostRoot lays out the host's root file system at dir, which becomes a small
// tmpfs with read-only bind mounts. It must run in a mount namespace of its
// own. extra names more absolute paths to show.
func hostRoot(dir string, extra []string) error {
	if err := unix.Mount("atoll", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=16m"); err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	for name, mode := range emptyDirs {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			return err
		}
	}
	for _, name := range hostTrees {
		if err := show("/"+name, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	for _, pattern := range hostEtc {
		found, err := filepath.Glob("/etc/" + pattern)
		if err != nil {
			return err
		}
		for _, path := range found {
			if err := show(path, filepath.Join(dir, path)); err != nil {
				return err
			}
		}
	}
	for _, path := range extra {
		if _, err := os.Lstat(path); err != nil {
			return err
		}
		if err := show(path, filepath.Join(dir, path)); err != nil {
			return err
		}
	}
	return hostAccounts(filepath.Join(dir, "etc"))
}

// show makes source visible at target: links are copied as links, small files
// as files, directories by a read-only bind mount. A source that is not there,
// or that the caller may not read, is left out.
func show(source, target string) error {
	info, err := os.Lstat(source)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		to, err := os.Readlink(source)
		if err != nil {
			return err
		}
		return os.Symlink(to, target)
	case info.IsDir():
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
		return bindReadOnly(source, target)
	case info.Mode().IsRegular() && info.Size() <= 1<<20:
		data, err := os.ReadFile(source)
		if errors.Is(err, fs.ErrPermission) {
			return nil
		}
		if err != nil {
			return err
		}
		return os.WriteFile(target, data, info.Mode().Perm())
	case info.Mode().IsRegular():
		if err := os.WriteFile(target, nil, 0o644); err != nil {
			return err
		}
		return bindReadOnly(source, target)
	}
	return nil // sockets, pipes and devices are never shown
}

// bindReadOnly mounts source at target with all that is mounted below it,
// read-only, without devices or set-user-ID programs.
func bindReadOnly(source, target string) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s: %w", source, err)
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	err := unix.MountSetattr(unix.AT_FDCWD, target, unix.AT_RECURSIVE, &attr)
	if errors.Is(err, unix.ENOSYS) { // before Linux 5.12; the gofer's overlay never writes to it anyhow
		err = unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, "")
	}
	if err != nil {
		return fmt.Errorf("make %s read-only: %w", source, err)
	}
	return nil
}

// hostAccounts writes passwd and group with the host's system accounts only:
// the names of its people are nobody's business.
func hostAccounts(etc string) error {
	files := map[string]string{
		"passwd": "root:x:0:0:root:/root:/bin/sh\n",
		"group":  "root:x:0:\n",
	}
	for name := range files {
		data, err := os.ReadFile("/etc/" + name)
		if err == nil {
			files[name] = systemAccounts(name, data)
		}
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(etc, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// systemAccounts returns the lines of a passwd or group file whose id belongs
// to the system (below 1000, or nobody), without passwords, members, comments
// or foreign home directories.
func systemAccounts(name string, data []byte) string {
	var out strings.Builder
	for scan := bufio.NewScanner(bytes.NewReader(data)); scan.Scan(); {
		f := strings.Split(scan.Text(), ":")
		if len(f) < 4 {
			continue
		}
		id, err := strconv.Atoi(f[2])
		if err != nil || id >= 1000 && id != 65534 {
			continue
		}
		if name == "group" {
			fmt.Fprintf(&out, "%s:x:%d:\n", f[0], id)
			continue
		}
		if len(f) < 7 {
			continue
		}
		home := "/nonexistent"
		if id == 0 {
			home = "/root"
		}
		fmt.Fprintf(&out, "%s:x:%d:%s:%s:%s:%s\n", f[0], id, f[3], f[0], home, f[6])
	}
	return out.String()
}

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
	if err := unix.Mount("atoll", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=16m"); err != nil {
		return "", fmt.Errorf("mount tmpfs: %w", err)
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
	if err := dir.WriteFile(name, data, mode); err != nil {
		return err
	}
	return dir.Chmod(name, mode) // whatever the umask
}

// keepTmp is a directory in /tmp. gVisor mounts a tmpfs on an empty /tmp, which
// no stop would save and no limit of the disk would hold.
const keepTmp = ".atoll"
