package fsutil

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/seed46cd37a8/atoll"
)

// RemoveAll is os.RemoveAll for trees that others made: whose directories may
// forbid to be read or changed, and may lie in each other deeper than files can
// be open at once. It follows no link, stops at what is mounted in the tree, and
// keeps a hundred files open at most. Many may remove the same tree at once.
// When it fails, some of it may be gone.
func RemoveAll(path string) error {
	path = filepath.Clean(path)
	parent, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return unlessGone(err)
	}
	defer parent.Close()
	if err := new(remover).remove(parent, filepath.Base(path), "", 0); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// maxDepth is how many directories, each in the one before, are open at once;
// and twice while they are read.
const maxDepth = 50

// rwx is what it takes to read and change a directory.
const rwx = 0o700

// batch is how many names of a directory are read at once.
const batch = 1000

// A remover removes one tree.
type remover struct{ top *os.Root }

// remove removes name from dir. The directory that name may be is called path
// from the top, and so deep below it.
func (r *remover) remove(dir *os.Root, name, path string, depth int) error {
	err := dir.Remove(name)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	info, statErr := dir.Lstat(name)
	if statErr != nil {
		return unlessGone(statErr)
	}
	if !info.IsDir() || errors.Is(err, syscall.EBUSY) {
		return err
	}
	if info.Mode()&rwx != rwx {
		_ = dir.Chmod(name, rwx) // whether it was enough shows when it is opened
	}
	if depth > maxDepth {
		// Emptied later, as a directory of the top.
		return unlessGone(r.top.Rename(path, atoll.NewID()))
	}
	sub, err := dir.OpenRoot(name)
	if err != nil {
		return unlessGone(err)
	}
	defer sub.Close()
	if r.top == nil {
		r.top = sub
	}
	for {
		if err := r.empty(sub, path, depth); err != nil {
			return err
		}
		err := dir.Remove(name)
		if !errors.Is(err, syscall.ENOTEMPTY) { // another one has just moved something here
			return unlessGone(err)
		}
	}
}

// empty removes all that is in dir.
func (r *remover) empty(dir *os.Root, path string, depth int) error {
	for {
		names, err := some(dir)
		if err != nil || len(names) == 0 {
			return unlessGone(err)
		}
		var first error
		for _, name := range names {
			if err := r.remove(dir, name, filepath.Join(path, name), depth+1); first == nil {
				first = err
			}
		}
		if first != nil {
			return first // what is left would only be listed again
		}
	}
}

// some returns names of things in dir; none if it is empty.
func some(dir *os.Root) ([]string, error) {
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(batch)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}

func unlessGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
