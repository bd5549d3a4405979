//go:build linux

package sentry

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cmd/sandboxsetup"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/gvisor/internal/pid1"
	"github.com/seed46cd37a8/atoll/provider/internal/hostroot"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

// prepareMountTargets makes sure that every mount has a target in the root file system: an
// existing target must be of the mount's type, and a missing one must be possible to make.
// In either case, gVisor would only report that its gofer died.
func (e *engine) prepareMountTargets(root string) error {
	var closed []string
	for i, m := range e.job.Mounts {
		dir, err := mountsDir(m)
		if err == nil && !dir && m.Target == path.Clean(e.job.Spec.Workdir) {
			err = fmt.Errorf("processes start there, but %s is a file", m.Source)
		}
		var in string
		if err == nil {
			in, err = findMountTarget(root, e.job.Mounts[:i], m, dir)
		}
		if err != nil {
			return atoll.Errorf("start", e.sandbox.ID(), atoll.ErrInvalid, "cannot mount %s: %w", m.Target, err)
		}
		if in != "" && unix.Access(in, unix.W_OK) != nil {
			closed = append(closed, in)
		}
	}
	// The deepest first, or an overlay would lie on another: Linux stacks two at
	// the most.
	slices.Sort(closed)
	for _, dir := range slices.Backward(slices.Compact(closed)) {
		if err := makeWritable(dir); err != nil {
			return atoll.Errorf("start", e.sandbox.ID(), atoll.ErrUnsupported,
				"cannot make a mount target in %s, which is read-only here; mount it elsewhere, such as below /opt, or use an image that has the target: %w",
				strings.TrimPrefix(dir, root), err)
		}
	}
	return nil
}

// mountsDir reports whether the mount's source is a directory, not a file.
func mountsDir(m supervisor.Mount) (bool, error) {
	if m.Source == "" {
		return true, nil
	}
	info, err := os.Stat(m.Source)
	return err == nil && info.IsDir(), err
}

// findMountTarget checks the target of a mount of a directory or a file, with the mounts
// that come before it. If the target does not exist, it returns the directory of the root
// file system in which it has to be made.
func findMountTarget(root string, before []supervisor.Mount, m supervisor.Mount, dir bool) (string, error) {
	base, name := root, m.Target
	for _, b := range before {
		if rest, ok := strings.CutPrefix(m.Target, b.Target+"/"); ok && b.Source != "" {
			base, name = b.Source, "/"+rest
		}
	}
	inside := func(p string) string { return strings.TrimSuffix(m.Target, name) + strings.TrimPrefix(p, base) }
	at, err := sandboxsetup.ResolveSymlinks(base, name) // as the gofer does
	if pe, ok := errors.AsType[*fs.PathError](err); ok && errors.Is(err, unix.ENOTDIR) {
		return "", fmt.Errorf("%s is not a directory", inside(filepath.Dir(pe.Path)))
	}
	if err != nil {
		return "", err
	}
	if base != root && at != filepath.Join(base, name) {
		return "", nil // there is a link in a mounted directory: only the inside knows where it leads
	}
	info, err := os.Lstat(at)
	switch {
	case err == nil && info.IsDir() && !dir:
		return "", fmt.Errorf("%s is a file, but %s is a directory", m.Source, inside(at))
	case err == nil && !info.IsDir() && dir:
		return "", fmt.Errorf("%s is a directory, but %s is a file", cmp.Or(m.Source, "a tmpfs"), inside(at))
	case err == nil || m.Source == "": // a tmpfs is mounted by the sentry, which makes any place
		return "", nil
	}
	for errors.Is(err, fs.ErrNotExist) && at != base {
		at = filepath.Dir(at)
		_, err = os.Lstat(at)
	}
	if err != nil || base == root {
		return at, err
	}
	if err := unix.Access(at, unix.W_OK); err != nil {
		return "", fmt.Errorf("its target cannot be made in %s: %w", at, err)
	}
	return "", nil
}

// makeWritable lays an overlay over a directory that is shown read-only, so that mount
// targets can be made there. Mounts below it stay: some of them hide what must not be
// visible.
func makeWritable(dir string) error {
	dir, err := filepath.EvalSymlinks(dir) // as MountPoints names it
	if err != nil {
		return err
	}
	points, err := hostroot.MountPoints()
	if err != nil {
		return err
	}
	slices.Sort(points)
	var below []*os.File
	defer func() {
		for _, f := range below {
			f.Close()
		}
	}()
	for _, point := range points {
		covered := slices.ContainsFunc(below, func(f *os.File) bool { return strings.HasPrefix(point+"/", f.Name()+"/") })
		if covered || !strings.HasPrefix(point, dir+"/") {
			continue
		}
		fd, err := unix.Open(point, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		below = append(below, os.NewFile(uintptr(fd), point))
	}
	lower, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer lower.Close()
	if err := hostroot.MountTmpfs(dir); err != nil {
		return err
	}
	if err := mountOverlay(lower, dir, dir); err != nil {
		return err
	}
	for _, f := range below {
		if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), f.Name(), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("bind %s: %w", f.Name(), err)
		}
	}
	return nil
}

// etcFiles returns the files of /etc that describe the network from inside.
func (e *engine) etcFiles() map[string]string {
	hostname, resolver := sandboxHostname(&e.job.Spec), e.network.resolver
	files := map[string]string{
		"hostname": hostname + "\n",
		"hosts":    "127.0.0.1 localhost " + hostname + "\n::1 localhost ip6-localhost ip6-loopback\n",
	}
	if resolver != "" {
		files["resolv.conf"] = "nameserver " + resolver + "\n"
	}
	return files
}

// imageRoot mounts the image, which is shared and read-only, below dir with a writable
// layer on top, for the files that every sandbox has and for the targets of its mounts, and
// returns its path. It must run in a mount namespace of its own.
func imageRoot(dir, image string) (string, error) {
	lower, err := os.Open(image)
	if err != nil {
		return "", err
	}
	defer lower.Close()
	if err := hostroot.MountTmpfs(dir); err != nil {
		return "", err
	}
	root := filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		return "", err
	}
	return root, mountOverlay(lower, dir, root)
}

// mountOverlay mounts a directory at path with a writable layer on top, which it makes in
// dir, a tmpfs.
func mountOverlay(lower *os.File, dir, path string) error {
	info, err := lower.Stat()
	if err != nil {
		return err
	}
	upper := filepath.Join(dir, "upper")
	if err := errors.Join(os.Mkdir(upper, 0o755), os.Mkdir(filepath.Join(dir, "work"), 0o755)); err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		_ = os.Chown(upper, int(st.Uid), int(st.Gid)) // fails in a user namespace for owners without a mapping
	}
	if err := os.Chmod(upper, info.Mode()); err != nil { // it becomes the mode of the directory
		return err
	}
	layer, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer layer.Close()
	// By descriptors: a path could contain characters that separate mount options.
	opts := fmt.Sprintf("lowerdir=/proc/self/fd/%d,upperdir=/proc/self/fd/%d/upper,workdir=/proc/self/fd/%[2]d/work", lower.Fd(), layer.Fd())
	if err := unix.Mount("atoll", path, "overlay", unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
		return fmt.Errorf("mount overlay: %w", err)
	}
	return nil
}

// initDir is the directory in which the sandbox sees its first process. That is a file, although
// gVisor could execute an open descriptor, because a snapshot cannot save memory that is mapped
// from one.
const initDir, initName = "/.atoll", "init"

// addSandboxFiles adds to the root file system what every sandbox has: the first process, the
// files of /etc in etc, and a /tmp of its own.
func addSandboxFiles(dir string, etc map[string]string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	init, err := pid1.Program(runtime.GOARCH)
	if err != nil {
		return err
	}
	err = withDir(root, initDir[1:], 0o755, func(d *os.Root) error { return placeFile(d, initName, init, 0o755) })
	if err != nil {
		return err
	}
	err = withDir(root, "etc", 0o755, func(d *os.Root) error {
		var errs []error
		for name, text := range etc {
			errs = append(errs, placeFile(d, name, []byte(text), 0o644))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return err
	}
	return withDir(root, "tmp", 0o777|fs.ModeSticky, func(d *os.Root) error { return d.MkdirAll(keepTmp, 0o755) })
}

// withDir calls fn with a directory of the root file system, which it makes if there is
// none. It follows links as the inside does.
func withDir(root *os.Root, name string, mode fs.FileMode, fn func(*os.Root) error) error {
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	openHow := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT}
	fd, err := unix.Openat2(int(dir.Fd()), name, &openHow)
	if errors.Is(err, unix.ENOENT) {
		_ = root.Remove(name) // a link that leads nowhere
		if err := errors.Join(root.Mkdir(name, 0o755), root.Chmod(name, mode)); err != nil {
			return err
		}
		fd, err = unix.Openat2(int(dir.Fd()), name, &openHow)
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

// placeFile writes a file, and replaces a file or a link with that name.
func placeFile(dir *os.Root, name string, data []byte, mode fs.FileMode) error {
	if err := dir.RemoveAll(name); err != nil {
		return err
	}
	return dir.WriteFile(name, data, mode)
}

// keepTmp is a directory in /tmp. gVisor mounts a tmpfs on an empty /tmp, which no stop
// would save and no disk limit would bound.
const keepTmp = ".atoll"
