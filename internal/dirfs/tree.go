package dirfs

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"syscall"
	"time"
)

// A tree is what an FS needs of a directory tree. Names are slash-separated and
// relative to the tree's root, which is ".".
type tree interface {
	OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error)
	OpenRoot(name string) (tree, error) // nothing leads out of it
	Stat(name string) (fs.FileInfo, error)
	Lstat(name string) (fs.FileInfo, error)
	Readlink(name string) (string, error)
	Mkdir(name string, perm fs.FileMode) error
	Chmod(name string, mode fs.FileMode) error
	Lchown(name string, uid, gid int) error
	Chtimes(name string, atime, mtime time.Time) error
	Rename(from, to string) error
	Link(from, to string) error
	Symlink(target, name string) error
	Remove(name string) error
	RemoveAll(name string) error
	Close() error
}

// rooted is the tree below a directory, out of which nothing leads.
type rooted struct{ *os.Root }

// openRooted opens a directory, by following links.
func openRooted(name string) (tree, error) {
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	return rooted{root}, nil
}

func (r rooted) OpenRoot(name string) (tree, error) {
	root, err := openSub(r.Root, name)
	if err != nil {
		return nil, err
	}
	return rooted{root}, nil
}

// errReplaced is why the mode of what was just made cannot be changed.
var errReplaced = errors.New("a link was put in its place at the same moment")

// Chmod says what os.Root, which looks for a link first, leaves to the kernel to
// find out: the mode of a link is not supported.
func (r rooted) Chmod(name string, mode fs.FileMode) error {
	err := r.Root.Chmod(name, mode)
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return errReplaced
	}
	return err
}

// system is the tree of all that the calling process sees.
type system struct{}

func (system) OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error) {
	return os.OpenFile("/"+name, flag, perm)
}
func (system) OpenRoot(name string) (tree, error)        { return openBeneath("/" + name) }
func (system) Stat(name string) (fs.FileInfo, error)     { return os.Stat("/" + name) }
func (system) Lstat(name string) (fs.FileInfo, error)    { return os.Lstat("/" + name) }
func (system) Readlink(name string) (string, error)      { return os.Readlink("/" + name) }
func (system) Mkdir(name string, perm fs.FileMode) error { return os.Mkdir("/"+name, perm) }
func (system) Chmod(name string, mode fs.FileMode) error { return os.Chmod("/"+name, mode) }
func (system) Lchown(name string, uid, gid int) error    { return os.Lchown("/"+name, uid, gid) }
func (system) Rename(from, to string) error              { return os.Rename("/"+from, "/"+to) }
func (system) Chtimes(name string, a, m time.Time) error { return os.Chtimes("/"+name, a, m) }
func (system) Symlink(target, name string) error         { return os.Symlink(target, "/"+name) }
func (system) Link(from, to string) error                { return os.Link("/"+from, "/"+to) }
func (system) Remove(name string) error                  { return os.Remove("/" + name) }
func (system) RemoveAll(name string) error               { return os.RemoveAll("/" + name) }
func (system) Close() error                              { return nil }

// A maker makes files and directories in a tree, with the right owner.
type maker struct {
	tree
	uid, gid int // -1 means leave
}

func (f *FS) maker(t tree) maker { return maker{t, f.opts.UID, f.opts.GID} }

// own gives what was just made to its owner.
func (m maker) own(name string) error {
	if m.uid < 0 && m.gid < 0 {
		return nil
	}
	return m.Lchown(name, m.uid, m.gid)
}

// mkdirAll makes a directory and its missing parents, with exactly the mode
// given, whatever the umask. One that is there is left as it is.
func (m maker) mkdirAll(name string, mode fs.FileMode) error {
	err := m.mkdir(name, mode)
	if errors.Is(err, fs.ErrNotExist) && path.Dir(name) != name {
		if err := m.mkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		err = m.mkdir(name, mode)
	}
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, serr := m.Stat(name)
	if serr != nil {
		return serr
	}
	if info.IsDir() {
		return nil
	}
	return err
}

func (m maker) mkdir(name string, mode fs.FileMode) error {
	if err := m.Mkdir(name, mode.Perm()); err != nil {
		return err
	}
	if err := m.own(name); err != nil {
		return err
	}
	return m.Chmod(name, mode)
}

// openRoot opens a directory, and makes it if there is none.
func (m maker) openRoot(name string) (tree, error) {
	dir, err := m.OpenRoot(name)
	if errors.Is(err, fs.ErrNotExist) {
		if err := m.mkdirAll(name, 0o755); err != nil {
			return nil, err
		}
		dir, err = m.OpenRoot(name)
	}
	return dir, err
}

const createFlags = os.O_WRONLY | os.O_CREATE | os.O_EXCL

// finish gives a new file its owner and mode, in that order, because a change
// of owner clears special bits.
func finish(file *os.File, uid, gid int, mode fs.FileMode) error {
	if uid >= 0 || gid >= 0 {
		if err := file.Chown(uid, gid); err != nil {
			return err
		}
	}
	return file.Chmod(mode)
}
