package objectstore

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"slices"
	"strings"
)

// List keeps the names of one directory and of its parents in memory at a time.
func (d *Dir) List(ctx context.Context, prefix string) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		below := prefix[:strings.LastIndexByte(prefix, '/')+1] // the part of prefix up to its last slash
		at := "."
		if below != "" {
			if CheckKey(strings.TrimSuffix(below, "/")) != nil {
				return // no valid key begins like that
			}
			at = dirPath(below)
		}
		dir, err := d.root.OpenRoot(at)
		switch {
		case errors.Is(err, fs.ErrNotExist) && at != ".":
			return
		case err != nil:
			yield(Object{}, d.wrapError("list", prefix, kindOf(err), err))
			return
		}
		defer dir.Close()
		l := &lister{ctx, prefix, yield}
		err = l.walkDir(dir, at, below)
		if errors.Is(err, fs.ErrNotExist) && at != "." {
			return // the last object was deleted meanwhile, and the directory with it
		}
		if err != nil && err != errStop {
			yield(Object{}, d.wrapError("list", prefix, kindOf(err), err))
		}
	}
}

// A lister walks a Dir.
type lister struct {
	ctx    context.Context
	prefix string
	yield  func(Object, error) bool
}

// errStop ends a walk when the caller's loop has ended.
var errStop = errors.New("list stopped")

// walkDir yields the objects in and below dir, which lies at path at and whose keys
// begin with prefix.
func (l *lister) walkDir(dir *os.Root, at, prefix string) error {
	all, err := l.readEntries(dir, prefix)
	if err != nil {
		return err
	}
	for _, e := range all {
		if err := l.ctx.Err(); err != nil {
			return err
		}
		if e.object {
			err = l.yieldObject(dir, path.Join(at, e.name), e)
		} else {
			err = l.walkBelow(dir, path.Join(at, e.name), e)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // removed meanwhile
			return err
		}
	}
	return nil
}

func (l *lister) yieldObject(dir *os.Root, at string, e entry) error {
	if CheckKey(e.key) != nil || objectPath(e.key) != at {
		return nil // not a name that objectPath makes
	}
	file, o, err := openObject(dir, e.name, e.key)
	if err != nil {
		return err
	}
	file.Close()
	if !l.yield(o, nil) {
		return errStop
	}
	return nil
}

func (l *lister) walkBelow(dir *os.Root, at string, e entry) error {
	sub, err := dir.OpenRoot(e.name)
	if err != nil {
		return err
	}
	defer sub.Close()
	return l.walkDir(sub, at, e.key)
}

// readEntries returns the entries of dir that lead to keys with the wanted prefix,
// sorted by key.
func (l *lister) readEntries(dir *os.Root, prefix string) ([]entry, error) {
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []entry
	for {
		some, err := f.ReadDir(1000)
		for _, s := range some {
			if !s.IsDir() && !s.Type().IsRegular() {
				continue
			}
			e, ok := newEntry(prefix, s.Name(), s.IsDir())
			if ok && (strings.HasPrefix(e.key, l.prefix) || !e.object && strings.HasPrefix(l.prefix, e.key)) {
				all = append(all, e)
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(all, func(a, b entry) int { return strings.Compare(a.order, b.order) })
	return all, nil
}
