package fsutil

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// ErrMoved is the error of UsedBelow for directories that move while it measures them.
var ErrMoved = errors.New("a directory was moved meanwhile")

// openLevels is the number of directories, one below the other, that UsedBelow has open.
const openLevels = 256

// UsedBelow returns the number of bytes that all files below the directory dir take up on disk. Files of which it finds only some of
// the names count in part. It follows no links, and skips what vanishes meanwhile. The directories may be deeper than any path.
func UsedBelow(dir string) (used int64, err error) {
	var levels []*level
	defer func() {
		for _, l := range levels {
			_ = l.dir.Close() // which a nil file survives
		}
	}()
	top, err := os.Open(dir)
	if err != nil {
		return 0, err
	}
	l, err := newLevel(top)
	levels = append(levels, l)
	for err == nil {
		l := levels[len(levels)-1]
		if len(l.names) == 0 {
			if len(levels) == 1 {
				return used, nil
			}
			levels = levels[:len(levels)-1]
			err = levels[len(levels)-1].openAgain(l)
			_ = l.dir.Close()
			continue
		}
		name := l.names[len(l.names)-1]
		l.names = l.names[:len(l.names)-1]
		var st unix.Stat_t
		if err = unix.Fstatat(int(l.dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			err = ignoreMissing(err)
			continue
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			used += st.Blocks * 512 / max(int64(st.Nlink), 1)
			continue
		}
		used += st.Blocks * 512
		fd, openErr := unix.Openat(int(l.dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if openErr != nil {
			err = ignoreMissing(openErr)
			continue
		}
		var below *level
		if below, err = newLevel(os.NewFile(uintptr(fd), name)); err == nil && len(below.names) == 0 {
			_ = below.dir.Close()
			continue
		}
		levels = append(levels, below)
		if n := len(levels) - openLevels; n > 0 {
			_ = levels[n].dir.Close() // never that of dir
			levels[n].dir = nil
		}
	}
	return 0, &os.PathError{Op: "measure", Path: dir, Err: err}
}

// ignoreMissing returns nil for the error of a file that has vanished, or become another kind of file.
func ignoreMissing(err error) error {
	if err == unix.ENOENT || err == unix.ENOTDIR || err == unix.ELOOP {
		return nil
	}
	return err
}

// A level is a directory that is being measured.
type level struct {
	dir      *os.File // nil while too many are open
	dev, ino uint64
	names    []string // of the files that are left to measure
}

func newLevel(dir *os.File) (*level, error) {
	l := &level{dir: dir}
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return l, err
	}
	l.dev, l.ino = uint64(st.Dev), st.Ino
	var err error
	l.names, err = dir.Readdirnames(-1)
	return l, err
}

// openAgain opens the directory again, if it is not open, from one in it.
func (l *level) openAgain(from *level) error {
	if l.dir != nil {
		return nil
	}
	fd, err := unix.Openat(int(from.dir.Fd()), "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	l.dir = os.NewFile(uintptr(fd), "..")
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if uint64(st.Dev) != l.dev || st.Ino != l.ino {
		return ErrMoved
	}
	return nil
}
