package treecopy

import (
	"context"
	"errors"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/internal/tarstream"
)

// Copy copies the content of the directory from into the empty directory to, and the attributes of from: owners, modes,
// times, extended attributes of users, capabilities, hard links, and holes of files. If the file system can, the copies
// share their data until one of them changes. It follows no links below from.
//
// It omits sockets and devices, and files that vanish meanwhile; of a file that changes meanwhile, it copies the old or the
// new content, or parts of both. When ctx ends, Copy returns its error; what it has copied remains.
func Copy(ctx context.Context, from, to string) error { return copyTree(ctx, from, to, false) }

// CopyLayer is Copy for the directory with the changes of an overlay. The copy also has what the kernel has put there: marks of
// removed files, and attributes.
func CopyLayer(ctx context.Context, from, to string) error { return copyTree(ctx, from, to, true) }

func copyTree(ctx context.Context, from, to string, layer bool) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.Open(to)
	if err != nil {
		return err
	}
	defer target.Close()
	root, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer root.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(source.Fd()), &st); err != nil {
		return pathError("stat", from, err)
	}
	c := &copier{ctx: ctx, root: root, first: map[inode]string{}, clone: true, layer: layer}
	if err := c.copyDirectory(source, target, "."); err != nil {
		return err
	}
	if err := c.copyXattrs(source, target, &st); err != nil {
		return err
	}
	return copyAttributes(unix.AT_FDCWD, to, to, &st)
}

// Sync waits until all files of the file system of dir are on disk.
func Sync(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return os.NewSyscallError("syncfs", unix.Syncfs(int(f.Fd())))
}

type inode struct{ dev, ino uint64 }

type copier struct {
	ctx   context.Context
	root  *os.Root         // of the copy
	first map[inode]string // the copy of a file that has several names
	clone bool             // no file could not be cloned
	layer bool             // of an overlay
}

func pathError(op, name string, err error) error { return &os.PathError{Op: op, Path: name, Err: err} }

// copyDirectory copies the files of a directory, whose name below the root is within.
func (c *copier) copyDirectory(from, to *os.File, within string) error {
	names, err := from.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		err := c.copyEntry(from, to, name, path.Join(within, name))
		var st unix.Stat_t
		if unix.Fstatat(int(from.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) == unix.ENOENT { // it has vanished
			err = c.root.RemoveAll(path.Join(within, name))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// copyEntry copies the file with that name in from, whose name below the root is within.
func (c *copier) copyEntry(from, to *os.File, name, within string) (err error) {
	var st unix.Stat_t
	if err := unix.Fstatat(int(from.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return pathError("stat", within, err)
	}
	id := inode{uint64(st.Dev), st.Ino}
	if first, ok := c.first[id]; ok {
		if err := c.root.Link(first, within); !errors.Is(err, os.ErrNotExist) { // the first one has not vanished
			return err
		}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		err = c.copySubdirectory(from, to, name, within, &st)
	case unix.S_IFREG:
		err = c.copyFile(from, to, name, within)
	case unix.S_IFLNK:
		err = copyLink(from, to, name)
	case unix.S_IFIFO:
		err = unix.Mknodat(int(to.Fd()), name, unix.S_IFIFO|0o600, 0)
	default:
		if !c.layer || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0 {
			return nil
		}
		err = unix.Mknodat(int(to.Fd()), name, unix.S_IFCHR, 0) // the mark of a removed file
	}
	if err != nil {
		return pathError("copy", within, err)
	}
	if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		c.first[id] = within
	}
	return copyAttributes(int(to.Fd()), name, within, &st)
}

// openIn opens a file in a directory, but no link and nothing that would block.
func openIn(dir *os.File, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (c *copier) copySubdirectory(from, to *os.File, name, within string, st *unix.Stat_t) error {
	source, err := openIn(from, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer source.Close()
	if err := unix.Mkdirat(int(to.Fd()), name, 0o700); err != nil {
		return err
	}
	target, err := openIn(to, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer target.Close()
	if err := c.copyDirectory(source, target, within); err != nil {
		return err
	}
	return c.copyXattrs(source, target, st)
}

func copyLink(from, to *os.File, name string) error {
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(from.Fd()), name, target)
	if err != nil {
		return err
	}
	return unix.Symlinkat(string(target[:n]), int(to.Fd()), name)
}

func (c *copier) copyFile(from, to *os.File, name, within string) error {
	source, err := openIn(from, name, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer source.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(source.Fd()), &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errors.New("it has become another kind of file")
	}
	target, err := openIn(to, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return err
	}
	defer target.Close()
	if c.clone && st.Size > 0 {
		c.clone = unix.IoctlFileClone(int(target.Fd()), int(source.Fd())) == nil
	}
	if !c.clone {
		if err := c.copyData(source, target, st.Size); err != nil {
			return err
		}
	}
	return c.copyXattrs(source, target, &st)
}

// chunkSize is the number of bytes that are copied before the context is asked again.
const chunkSize = 64 << 20

func (c *copier) copyData(source, target *os.File, size int64) error {
	extents, whole, err := tarstream.FindExtents(c.ctx, source, size)
	if err != nil {
		return err
	}
	if whole {
		extents = []tarstream.Extent{{Offset: 0, Length: size}}
	}
	for _, e := range extents {
		for at := e.Offset; at < e.Offset+e.Length; at += chunkSize {
			if err := c.ctx.Err(); err != nil {
				return err
			}
			if err := copyRange(source, target, at, min(chunkSize, e.Offset+e.Length-at)); err != nil {
				return err
			}
		}
	}
	return target.Truncate(size)
}

func copyRange(source, target *os.File, at, length int64) error {
	_, err1 := source.Seek(at, io.SeekStart)
	_, err2 := target.Seek(at, io.SeekStart)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	_, err := io.CopyN(target, source, length)
	if errors.Is(err, io.EOF) { // the file has become shorter
		return nil
	}
	return err
}

// changeOwner gives a file its owner, unless it has that.
func changeOwner(dir int, name string, flags int, within string, st *unix.Stat_t) error {
	var made unix.Stat_t
	if err := unix.Fstatat(dir, name, &made, flags); err != nil {
		return pathError("stat", within, err)
	}
	if made.Uid == st.Uid && made.Gid == st.Gid {
		return nil
	}
	if err := unix.Fchownat(dir, name, int(st.Uid), int(st.Gid), flags); err != nil {
		return pathError("chown", within, err)
	}
	return nil
}

// copyAttributes gives a file its owner, mode and times. A set-ID bit that may not be set here is left out, as it is when
// a program inside sets one.
func copyAttributes(dir int, name, within string, st *unix.Stat_t) error {
	if err := changeOwner(dir, name, unix.AT_SYMLINK_NOFOLLOW, within, st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		err := unix.Fchmodat(dir, name, st.Mode&0o7777, 0)
		if err == unix.EPERM && st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
			err = unix.Fchmodat(dir, name, st.Mode&0o1777, 0)
		}
		if err != nil {
			return pathError("chmod", within, err)
		}
	}
	if err := unix.UtimesNanoAt(dir, name, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return pathError("utimes", within, err)
	}
	return nil
}

// copyXattrs copies the extended attributes that programs set, and those of a layer. It sets the owner before, whose change clears
// capabilities.
func (c *copier) copyXattrs(from, to *os.File, st *unix.Stat_t) error {
	if err := changeOwner(int(to.Fd()), "", unix.AT_EMPTY_PATH, from.Name(), st); err != nil {
		return err
	}
	names := make([]byte, 64<<10) // the most that the kernel returns
	n, err := unix.Flistxattr(int(from.Fd()), names)
	if errors.Is(err, unix.ENOTSUP) || n == 0 && err == nil {
		return nil
	}
	if err != nil {
		return pathError("listxattr", from.Name(), err)
	}
	for name := range strings.SplitSeq(string(names[:n]), "\x00") {
		overlay := c.layer && strings.HasPrefix(name, "trusted.overlay.")
		if !strings.HasPrefix(name, "user.") && name != "security.capability" && !strings.HasPrefix(name, "system.posix_acl_") && !overlay {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Fgetxattr(int(from.Fd()), name, value)
		if err == nil {
			err = unix.Fsetxattr(int(to.Fd()), name, value[:n], 0)
		}
		if err != nil {
			return pathError("copy "+name, from.Name(), err)
		}
	}
	return nil
}
