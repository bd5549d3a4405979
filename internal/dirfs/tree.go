package dirfs

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"syscall"
	"time"
)

// A tree has the operations on a directory tree that an FS needs. Names are
// slash-separated and relative to the tree's root, which is ".".
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

// A rootTree is the tree below a directory; nothing leads out of it.
type rootTree struct{ *os.Root }

// openRooted opens a directory, and follows links.
func openRooted(name string) (tree, error) {
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	return rootTree{root}, nil
}

func (r rootTree) OpenRoot(name string) (tree, error) {
	root, err := openSub(r.Root, name)
	if err != nil {
		return nil, err
	}
	return rootTree{root}, nil
}

// errReplaced says that a new file was replaced before its mode could be changed.
var errReplaced = errors.New("replaced by a link at the same moment")

// Chmod implements tree. os.Root checks for a link first; if one appears after the
// check, the kernel refuses, and Chmod returns errReplaced.
func (r rootTree) Chmod(name string, mode fs.FileMode) error {
	err := r.Root.Chmod(name, mode)
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return errReplaced
	}
	return err
}

// A systemTree is the tree of all files that the calling process sees.
type systemTree struct{}

func (systemTree) OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error) {
	return os.OpenFile("/"+name, flag, perm)
}
func (systemTree) OpenRoot(name string) (tree, error)        { return openBeneath("/" + name) }
func (systemTree) Stat(name string) (fs.FileInfo, error)     { return os.Stat("/" + name) }
func (systemTree) Lstat(name string) (fs.FileInfo, error)    { return os.Lstat("/" + name) }
func (systemTree) Readlink(name string) (string, error)      { return os.Readlink("/" + name) }
func (systemTree) Mkdir(name string, perm fs.FileMode) error { return os.Mkdir("/"+name, perm) }
func (systemTree) Chmod(name string, mode fs.FileMode) error { return os.Chmod("/"+name, mode) }
func (systemTree) Lchown(name string, uid, gid int) error    { return os.Lchown("/"+name, uid, gid) }
func (systemTree) Rename(from, to string) error              { return os.Rename("/"+from, "/"+to) }
func (systemTree) Chtimes(name string, a, m time.Time) error { return os.Chtimes("/"+name, a, m) }
func (systemTree) Symlink(target, name string) error         { return os.Symlink(target, "/"+name) }
func (systemTree) Link(from, to string) error                { return os.Link("/"+from, "/"+to) }
func (systemTree) Remove(name string) error                  { return os.Remove("/" + name) }
func (systemTree) RemoveAll(name string) error               { return os.RemoveAll("/" + name) }
func (systemTree) Close() error                              { return nil }

// A creator creates files and directories in a tree, with the right owner.
type creator struct {
	tree
	uid, gid int // -1 means unchanged
}

func (f *FS) newCreator(t tree) creator { return creator{t, f.opts.UID, f.opts.GID} }

// setOwner sets the owner of a new file.
func (m creator) setOwner(name string) error {
	if m.uid < 0 && m.gid < 0 {
		return nil
	}
	return m.Lchown(name, m.uid, m.gid)
}

// mkdirAll creates a directory and its missing parents, with exactly the mode given,
// whatever the umask. It does not change an existing directory.
func (m creator) mkdirAll(name string, mode fs.FileMode) error {
	err := m.makeDir(name, mode)
	if errors.Is(err, fs.ErrNotExist) && path.Dir(name) != name {
		if err := m.mkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		err = m.makeDir(name, mode)
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

func (m creator) makeDir(name string, mode fs.FileMode) error {
	if err := m.Mkdir(name, mode.Perm()); err != nil {
		return err
	}
	if err := m.setOwner(name); err != nil {
		return err
	}
	return m.Chmod(name, mode)
}

// openRoot opens a directory, and creates it if missing.
func (m creator) openRoot(name string) (tree, error) {
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

// setOwnerAndMode sets the owner and mode of a new file, in that order, because a change
// of owner clears special bits.
func setOwnerAndMode(file *os.File, uid, gid int, mode fs.FileMode) error {
	if uid >= 0 || gid >= 0 {
		if err := file.Chown(uid, gid); err != nil {
			return err
		}
	}
	return file.Chmod(mode)
}
