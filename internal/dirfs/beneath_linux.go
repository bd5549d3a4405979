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

// beneath is the tree below a directory, out of which nothing leads, as rooted
// is. It is for kernels that os.Root cannot trust: gVisor's follows a link that
// is opened with O_NOFOLLOW and O_DIRECTORY, by which os.Root walks. No call
// here names more than one element, follows a link, or waits for the other end
// of a pipe.
type beneath struct{ dir *os.File } // opened with O_PATH

// openBeneath opens a directory, by following links.
func openBeneath(name string) (tree, error) {
	fd, err := openat(unix.AT_FDCWD, name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return beneath{os.NewFile(uintptr(fd), name)}, nil
}

// errLink is what a function that at calls says of a link that it does not
// follow.
var errLink = errors.New("is a symbolic link")

const maxLinks = 40

// at calls do with the directory that has name, and the name that it has there:
// "." where it is the directory itself. If do says that there is a link, it is
// followed.
func (b beneath) at(name string, do func(dir int, base string) error) error {
	if b.dir.Fd() == ^uintptr(0) {
		return fs.ErrClosed
	}
	way := []int{int(b.dir.Fd())} // of directories, the first one the root
	leave := func() {
		_ = unix.Close(way[len(way)-1]) // it is only a place
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
			leave() // to where it was found, wherever it is now
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
		target, err := readlinkat(dir, part)
		switch {
		case err == unix.EINVAL: // no longer
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

func openat(dir int, name string, flag int, perm fs.FileMode) (fd int, err error) {
	err = again(func() error {
		fd, err = unix.Openat(dir, name, flag|unix.O_CLOEXEC, uint32(perm.Perm()))
		return err
	})
	return fd, err
}

// again calls f until no signal comes in between.
func again(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// openDirAt opens an entry that is a directory, as a place.
func openDirAt(dir int, name string) (int, error) {
	fd, err := openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err = again(func() error { return unix.Fstat(fd, &st) }); err == nil {
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

func readlinkat(dir int, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

func (b beneath) OpenFile(name string, flag int, perm fs.FileMode) (file *os.File, err error) {
	err = b.at(name, func(dir int, base string) error {
		fd, err := openat(dir, base, flag|unix.O_NOFOLLOW, perm)
		if err == unix.ELOOP {
			return errLink
		}
		if err != nil {
			return err
		}
		if flag&unix.O_NONBLOCK != 0 {
			_ = unix.SetNonblock(fd, false) // it was for the opening
		}
		file = os.NewFile(uintptr(fd), name)
		return nil
	})
	return file, err
}

func (b beneath) OpenRoot(name string) (t tree, err error) {
	err = b.at(name, func(dir int, base string) error {
		fd, err := openDirAt(dir, base)
		if err == nil {
			t = beneath{os.NewFile(uintptr(fd), name)}
		}
		return err
	})
	return t, err
}

func (b beneath) Stat(name string) (fs.FileInfo, error)  { return b.stat(name, errLink) }
func (b beneath) Lstat(name string) (fs.FileInfo, error) { return b.stat(name, nil) }

// stat describes what is there; of a link it says ofLink.
func (b beneath) stat(name string, ofLink error) (info fs.FileInfo, err error) {
	err = b.at(name, func(dir int, base string) error {
		fd, err := openat(dir, base, unix.O_PATH|unix.O_NOFOLLOW, 0)
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

func (b beneath) Readlink(name string) (target string, err error) {
	err = b.at(name, func(dir int, base string) (err error) {
		target, err = readlinkat(dir, base)
		return err
	})
	return target, err
}

func (b beneath) Mkdir(name string, perm fs.FileMode) error {
	return b.at(name, func(dir int, base string) error { return unix.Mkdirat(dir, base, uint32(perm.Perm())) })
}

// Chmod needs a file that can be read, where the kernel is too old to do without.
func (b beneath) Chmod(name string, mode fs.FileMode) error {
	return b.at(name, func(dir int, base string) error {
		fd, err := openat(dir, base, openFlags|unix.O_NOFOLLOW, 0)
		if err == unix.EACCES {
			ferr := unix.Fchmodat(dir, base, unixMode(mode), unix.AT_SYMLINK_NOFOLLOW)
			if ferr == unix.EOPNOTSUPP { // by the kernel, or of a link
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
		return again(func() error { return unix.Fchmod(fd, unixMode(mode)) })
	})
}

func (b beneath) Lchown(name string, uid, gid int) error {
	return b.at(name, func(dir int, base string) error {
		return unix.Fchownat(dir, base, uid, gid, unix.AT_SYMLINK_NOFOLLOW)
	})
}

func (b beneath) Chtimes(name string, atime, mtime time.Time) error {
	times := []unix.Timespec{unix.NsecToTimespec(atime.UnixNano()), unix.NsecToTimespec(mtime.UnixNano())}
	return b.at(name, func(dir int, base string) error {
		return unix.UtimesNanoAt(dir, base, times, unix.AT_SYMLINK_NOFOLLOW)
	})
}

// Rename replaces no directory, as os.Rename does not.
func (b beneath) Rename(from, to string) error {
	return b.at(from, func(fromDir int, from string) error {
		return b.at(to, func(toDir int, to string) error {
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

func (b beneath) Link(from, to string) error {
	return b.at(from, func(fromDir int, from string) error {
		return b.at(to, func(toDir int, to string) error { return unix.Linkat(fromDir, from, toDir, to, 0) })
	})
}

func (b beneath) Symlink(target, name string) error {
	return b.at(name, func(dir int, base string) error { return unix.Symlinkat(target, dir, base) })
}

func (b beneath) Remove(name string) error { return b.at(name, removeAt) }

// removeAt removes a file, a link or an empty directory.
func removeAt(dir int, name string) error {
	err := again(func() error { return unix.Unlinkat(dir, name, 0) })
	if err == nil {
		return nil
	}
	derr := again(func() error { return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR) })
	if derr == unix.ENOTDIR { // then the first says what is wrong
		return err
	}
	return derr
}

// RemoveAll finds nothing wrong with what is not there.
func (b beneath) RemoveAll(name string) error {
	err := b.at(name, removeAllAt)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// removeAllAt removes an entry and, if it is a directory, what is in it, as long
// as there is something.
func removeAllAt(dir int, name string) error {
	for {
		err := removeAt(dir, name)
		if err != unix.ENOTEMPTY && err != unix.EEXIST {
			return err
		}
		fd, err := openat(dir, name, openFlags|unix.O_NOFOLLOW, 0)
		if err == unix.ELOOP {
			continue // it is a link by now
		}
		if err != nil {
			return err
		}
		if err := emptyDir(os.NewFile(uintptr(fd), name)); err != nil {
			return err
		}
	}
}

// emptyDir removes some of what is in a directory, and closes it.
func emptyDir(dir *os.File) error {
	defer dir.Close()
	names, err := dir.Readdirnames(batch)
	for _, name := range names {
		if err := removeAllAt(int(dir.Fd()), name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if len(names) > 0 || errors.Is(err, unix.ENOTDIR) { // it may be another file by now
		return nil
	}
	return err
}

func (b beneath) Close() error { return b.dir.Close() }
