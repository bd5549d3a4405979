package treecopy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/internal/tarstream"
)

// Copy copies the content of the directory from into the empty directory to, and the attributes of from: owners, modes,
// times, extended attributes of users, capabilities, hard links, and holes of files. If the file system can, the copies
// share their data until one of them changes. It omits sockets and devices. Nobody may change from meanwhile. When ctx
// ends, Copy returns its error; what it has copied remains.
func Copy(ctx context.Context, from, to string) error {
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	c := &copier{ctx: ctx, first: map[inode]string{}, clone: true}
	return c.copyDirectory(from, to, info)
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
	first map[inode]string // the copy of a file that has several names
	clone bool             // no file could not be cloned
}

func (c *copier) copyDirectory(from, to string, info fs.FileInfo) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil {
			err = c.copyEntry(filepath.Join(from, e.Name()), filepath.Join(to, e.Name()), info)
		}
		if err != nil {
			return err
		}
	}
	return copyAttributes(from, to, info) // the files have changed the time of the directory
}

func (c *copier) copyEntry(from, to string, info fs.FileInfo) error {
	st := info.Sys().(*syscall.Stat_t)
	id := inode{uint64(st.Dev), st.Ino}
	if first, ok := c.first[id]; ok {
		return os.Link(first, to)
	}
	if st.Nlink > 1 && !info.IsDir() {
		c.first[id] = to
	}
	var err error
	switch info.Mode().Type() {
	case fs.ModeDir:
		if err := os.Mkdir(to, 0o700); err != nil {
			return err
		}
		return c.copyDirectory(from, to, info)
	case 0:
		err = c.copyFile(from, to, info.Size())
	case fs.ModeSymlink:
		var target string
		if target, err = os.Readlink(from); err == nil {
			err = os.Symlink(target, to)
		}
	case fs.ModeNamedPipe:
		err = unix.Mkfifo(to, 0o600)
	default:
		delete(c.first, id)
		return nil
	}
	if err != nil {
		return err
	}
	return copyAttributes(from, to, info)
}

func (c *copier) copyFile(from, to string, size int64) error {
	source, err := os.OpenFile(from, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if c.clone && size > 0 {
		if err := unix.IoctlFileClone(int(target.Fd()), int(source.Fd())); err == nil {
			return target.Close()
		}
		c.clone = false
	}
	return errors.Join(c.copyData(source, target, size), target.Close())
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
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%s became shorter: %w", source.Name(), io.ErrUnexpectedEOF)
	}
	return err
}

// copyAttributes gives to the attributes of from.
func copyAttributes(from, to string, info fs.FileInfo) error {
	st := info.Sys().(*syscall.Stat_t)
	made, err := os.Lstat(to)
	if err != nil {
		return err
	}
	if is := made.Sys().(*syscall.Stat_t); is.Uid != st.Uid || is.Gid != st.Gid {
		if err := os.Lchown(to, int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
	}
	link := info.Mode().Type() == fs.ModeSymlink
	if !link {
		if err := unix.Chmod(to, st.Mode&0o7777); err != nil {
			return &fs.PathError{Op: "chmod", Path: to, Err: err}
		}
		if err := copyXattrs(from, to); err != nil {
			return err
		}
	}
	times := []unix.Timespec{{Sec: st.Atim.Sec, Nsec: st.Atim.Nsec}, {Sec: st.Mtim.Sec, Nsec: st.Mtim.Nsec}}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, to, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &fs.PathError{Op: "utimes", Path: to, Err: err}
	}
	return nil
}

// copyXattrs copies the extended attributes that programs set.
func copyXattrs(from, to string) error {
	names := make([]byte, 64<<10) // the most that the kernel returns
	n, err := unix.Llistxattr(from, names)
	if errors.Is(err, unix.ENOTSUP) || n == 0 && err == nil {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "listxattr", Path: from, Err: err}
	}
	for name := range strings.SplitSeq(string(names[:n]), "\x00") {
		if !strings.HasPrefix(name, "user.") && name != "security.capability" && !strings.HasPrefix(name, "system.posix_acl_") {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(from, name, value)
		if err == nil {
			err = unix.Lsetxattr(to, name, value[:n], 0)
		}
		if err != nil {
			return &fs.PathError{Op: "copy " + name, Path: from, Err: err}
		}
	}
	return nil
}
