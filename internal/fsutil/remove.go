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

// RemoveAll is os.RemoveAll for trees of untrusted programs: their directories may deny
// reads and changes, and may be nested deeper than the limit of open files. It follows no
// link, stops at mounts in the tree, and has a hundred files open at most. Concurrent
// calls may remove the same tree. After an error, part of the tree may be gone.
func RemoveAll(path string) error {
	path = filepath.Clean(path)
	parent, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return ignoreNotExist(err)
	}
	defer parent.Close()
	if err := new(remover).removeEntry(parent, filepath.Base(path), "", 0); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// maxDepth is the number of nested directories that are open at once, each with two
// descriptors while it is read.
const maxDepth = 50

// rwx is the mode that a remover needs to read and change a directory.
const rwx = 0o700

// batchSize is the number of names that a remover reads from a directory at once.
const batchSize = 1000

// A remover removes one tree.
type remover struct{ top *os.Root }

// removeEntry removes name from dir, with everything below. path is the path of name from
// the top, and depth its depth below the top.
func (r *remover) removeEntry(dir *os.Root, name, path string, depth int) error {
	err := dir.Remove(name)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	info, statErr := dir.Lstat(name)
	if statErr != nil {
		return ignoreNotExist(statErr)
	}
	if !info.IsDir() || errors.Is(err, syscall.EBUSY) {
		return err
	}
	if info.Mode()&rwx != rwx {
		_ = dir.Chmod(name, rwx) // if it fails, opening fails too
	}
	if depth > maxDepth {
		// The remover empties it later, as a directory of the top.
		return ignoreNotExist(r.top.Rename(path, atoll.NewID()))
	}
	sub, err := dir.OpenRoot(name)
	if err != nil {
		return ignoreNotExist(err)
	}
	defer sub.Close()
	if r.top == nil {
		r.top = sub
	}
	for {
		if err := r.emptyDir(sub, path, depth); err != nil {
			return err
		}
		err := dir.Remove(name)
		if !errors.Is(err, syscall.ENOTEMPTY) { // another call has just moved something here
			return ignoreNotExist(err)
		}
	}
}

// emptyDir removes everything in dir.
func (r *remover) emptyDir(dir *os.Root, path string, depth int) error {
	for {
		names, err := readSomeNames(dir)
		if err != nil || len(names) == 0 {
			return ignoreNotExist(err)
		}
		var first error
		for _, name := range names {
			if err := r.removeEntry(dir, name, filepath.Join(path, name), depth+1); first == nil {
				first = err
			}
		}
		if first != nil {
			return first // another pass would only list the same names
		}
	}
}

// readSomeNames returns up to batchSize names in dir; none if it is empty.
func readSomeNames(dir *os.Root) ([]string, error) {
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(batchSize)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}

func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
