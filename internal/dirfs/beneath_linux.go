package dirfs

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A beneathTree is the tree below a directory; nothing leads out of it, as with
// rootTree. It is for kernels on which os.Root is not safe: gVisor's follows a link that
// is opened with O_NOFOLLOW and O_DIRECTORY, the flags of os.Root. No system call here
// has a name of more than one element, follows a link, or blocks on a pipe.
type beneathTree struct{ dir *os.File } // opened with O_PATH

// openBeneath opens a directory, and follows links.
func openBeneath(name string) (tree, error) {
	fd, err := openAt(unix.AT_FDCWD, name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return beneathTree{os.NewFile(uintptr(fd), name)}, nil
}

// errLink is the error of a callback of withEntry at a link that the callback does not
// follow.
var errLink = errors.New("is a symbolic link")

const maxLinks = 40

// withEntry calls do with the directory that contains name, and its name there: "." if
// name is the directory itself. If do returns errLink, withEntry follows the link and
// calls do again.
func (b beneathTree) withEntry(name string, do func(dir int, base string) error) error {
	if b.dir.Fd() == ^uintptr(0) {
		return fs.ErrClosed
	}
	way := []int{int(b.dir.Fd())} // open directories of the path, the root first
	leave := func() {
		_ = unix.Close(way[len(way)-1]) // opened with O_PATH
		way = way[:len(way)-1]
	}
	defer func() {
		for len(way) > 1 {
			leave()
		}
	}()
	links := 0
	for rest := strings.Split(name, "/"); ; {
		dir, part := way[len(way)-1], rest[0]
		rest = rest[1:]
		last := len(rest) == 0
		if part == ".." {
			if len(way) == 1 {
				return ErrEscapes
			}
			leave() // to the directory we came from, wherever it is now
			dir, part = way[len(way)-1], "."
		}
		var err error
		switch {
		case last && part == "":
			return do(dir, ".")
		case last:
			err = do(dir, part)
		case part == "" || part == ".":
			continue
		default:
			var next int
			if next, err = openDirAt(dir, part); err == nil {
				way = append(way, next)
				continue
			}
		}
		if err != errLink {
			return err
		}
		if links++; links > maxLinks {
			return unix.ELOOP
		}
		target, err := readLinkAt(dir, part)
		switch {
		case err == unix.EINVAL: // no longer a link
			rest = append([]string{part}, rest...)
		case err != nil:
			return err
		case path.IsAbs(target):
			return ErrEscapes
		default:
			rest = append(strings.Split(target, "/"), rest...)
		}
	}
}

func openAt(dir int, name string, flag int, perm fs.FileMode) (fd int, err error) {
	err = retryEINTR(func() error {
		fd, err = unix.Openat(dir, name, flag|unix.O_CLOEXEC, uint32(perm.Perm()))
		return err
	})
	return fd, err
}

// retryEINTR calls f until no signal interrupts it.
func retryEINTR(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// openDirAt opens an entry that is a directory, with O_PATH.
func openDirAt(dir int, name string) (int, error) {
	fd, err := openAt(dir, name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err = retryEINTR(func() error { return unix.Fstat(fd, &st) }); err == nil {
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			return fd, nil
		case unix.S_IFLNK:
			err = errLink
		default:
			err = unix.ENOTDIR
		}
	}
	_ = unix.Close(fd)
	return -1, err
}

func readLinkAt(dir int, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

func (b beneathTree) OpenFile(name string, flag int, perm fs.FileMode) (file *os.File, err error) {
	err = b.withEntry(name, func(dir int, base string) error {
		fd, err := openAt(dir, base, flag|unix.O_NOFOLLOW, perm)
		if err == unix.ELOOP {
			return errLink
		}
		if err != nil {
			return err
		}
		if flag&unix.O_NONBLOCK != 0 {
			_ = unix.SetNonblock(fd, false) // the flag was for open only
		}
		file = os.NewFile(uintptr(fd), name)
		return nil
	})
	return file, err
}

func (b beneathTree) OpenRoot(name string) (t tree, err error) {
	err = b.withEntry(name, func(dir int, base string) error {
		fd, err := openDirAt(dir, base)
		if err == nil {
			t = beneathTree{os.NewFile(uintptr(fd), name)}
		}
		return err
	})
	return t, err
}

func (b beneathTree) Stat(name string) (fs.FileInfo, error)  { return b.statEntry(name, errLink) }
func (b beneathTree) Lstat(name string) (fs.FileInfo, error) { return b.statEntry(name, nil) }

// statEntry returns the FileInfo of an entry; for a link, also the error ofLink.
func (b beneathTree) statEntry(name string, ofLink error) (info fs.FileInfo, err error) {
	err = b.withEntry(name, func(dir int, base string) error {
		fd, err := openAt(dir, base, unix.O_PATH|unix.O_NOFOLLOW, 0)
		if err != nil {
			return err
		}
		file := os.NewFile(uintptr(fd), name)
		defer file.Close()
		if info, err = file.Stat(); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			err = ofLink
		}
		return err
	})
	return info, err
}

func (b beneathTree) Readlink(name string) (target string, err error) {
	err = b.withEntry(name, func(dir int, base string) (err error) {
		target, err = readLinkAt(dir, base)
		return err
	})
	return target, err
}

func (b beneathTree) Mkdir(name string, perm fs.FileMode) error {
	return b.withEntry(name, func(dir int, base string) error { return unix.Mkdirat(dir, base, uint32(perm.Perm())) })
}

// Chmod implements tree. On old kernels it needs read permission for the file.
func (b beneathTree) Chmod(name string, mode fs.FileMode) error {
	return b.withEntry(name, func(dir int, base string) error {
		fd, err := openAt(dir, base, openFlags|unix.O_NOFOLLOW, 0)
		if err == unix.EACCES {
			ferr := unix.Fchmodat(dir, base, unixMode(mode), unix.AT_SYMLINK_NOFOLLOW)
			if ferr == unix.EOPNOTSUPP { // an old kernel, or a link
				return err
			}
			return ferr
		}
		if err == unix.ELOOP {
			return errLink
		}
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return retryEINTR(func() error { return unix.Fchmod(fd, unixMode(mode)) })
	})
}

func (b beneathTree) Lchown(name string, uid, gid int) error {
	return b.withEntry(name, func(dir int, base string) error {
		return unix.Fchownat(dir, base, uid, gid, unix.AT_SYMLINK_NOFOLLOW)
	})
}

func (b beneathTree) Chtimes(name string, atime, mtime time.Time) error {
	times := []unix.Timespec{unix.NsecToTimespec(atime.UnixNano()), unix.NsecToTimespec(mtime.UnixNano())}
	return b.withEntry(name, func(dir int, base string) error {
		return unix.UtimesNanoAt(dir, base, times, unix.AT_SYMLINK_NOFOLLOW)
	})
}

// Rename implements tree. Like os.Rename, it does not replace a directory.
func (b beneathTree) Rename(from, to string) error {
	return b.withEntry(from, func(fromDir int, from string) error {
		return b.withEntry(to, func(toDir int, to string) error {
			var old, there unix.Stat_t
			if err := unix.Fstatat(toDir, to, &there, unix.AT_SYMLINK_NOFOLLOW); err == nil && there.Mode&unix.S_IFMT == unix.S_IFDIR {
				if err := unix.Fstatat(fromDir, from, &old, unix.AT_SYMLINK_NOFOLLOW); err != nil {
					return err
				}
				if from == to || old.Dev != there.Dev || old.Ino != there.Ino {
					return unix.EEXIST
				}
			}
			return unix.Renameat(fromDir, from, toDir, to)
		})
	})
}

func (b beneathTree) Link(from, to string) error {
	return b.withEntry(from, func(fromDir int, from string) error {
		return b.withEntry(to, func(toDir int, to string) error { return unix.Linkat(fromDir, from, toDir, to, 0) })
	})
}

func (b beneathTree) Symlink(target, name string) error {
	return b.withEntry(name, func(dir int, base string) error { return unix.Symlinkat(target, dir, base) })
}

func (b beneathTree) Remove(name string) error { return b.withEntry(name, removeAt) }

// removeAt removes a file, a link or an empty directory.
func removeAt(dir int, name string) error {
	err := retryEINTR(func() error { return unix.Unlinkat(dir, name, 0) })
	if err == nil {
		return nil
	}
	derr := retryEINTR(func() error { return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR) })
	if derr == unix.ENOTDIR { // then the first error is the cause
		return err
	}
	return derr
}

// RemoveAll implements tree. It accepts a missing file.
func (b beneathTree) RemoveAll(name string) error {
	err := b.withEntry(name, removeAllAt)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// removeAllAt removes an entry and, if it is a directory, its contents, until it is
// empty.
func removeAllAt(dir int, name string) error {
	for {
		err := removeAt(dir, name)
		if err != unix.ENOTEMPTY && err != unix.EEXIST {
			return err
		}
		fd, err := openAt(dir, name, openFlags|unix.O_NOFOLLOW, 0)
		if err == unix.ELOOP {
			continue // replaced by a link
		}
		if err != nil {
			return err
		}
		if err := emptyDir(os.NewFile(uintptr(fd), name)); err != nil {
			return err
		}
	}
}

// emptyDir removes a batch of entries from a directory, and closes it.
func emptyDir(dir *os.File) error {
	defer dir.Close()
	names, err := dir.Readdirnames(batchSize)
	for _, name := range names {
		if err := removeAllAt(int(dir.Fd()), name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if len(names) > 0 || errors.Is(err, unix.ENOTDIR) { // it may have been replaced by a file
		return nil
	}
	return err
}

func (b beneathTree) Close() error { return b.dir.Close() }
