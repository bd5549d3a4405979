package objectstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// A FolderLister is an optional ability of a Bucket.
type FolderLister interface {
	// Folders returns the elements that follow prefix in longer keys, sorted: "1" for
	// the prefix "a/" and the key "a/1/b". The prefix is "" or ends in a slash.
	Folders(ctx context.Context, prefix string) ([]string, error)
}

// Plain returns a bucket whose objects are the files of the directory, by their own
// names, as other programs read and write them. It knows no Condition.Tag. The objects
// of d are no objects of it, nor the other way round.
func (d *Dir) Plain() Bucket { return plainDir{d} }

// A plainDir is the result of Dir.Plain.
type plainDir struct{ d *Dir }

func (p plainDir) String() string { return p.d.String() }

// checkName returns an error for a key that no plain file has.
func (p plainDir) checkName(op, key string) error {
	err := CheckKey(key)
	if err == nil && strings.HasPrefix(key, "+") {
		err = errors.New("names with + are Atoll's own")
	}
	if err != nil {
		return p.d.wrapError(op, key, atoll.ErrInvalid, err)
	}
	return nil
}

// openPlain opens a regular file for reading.
func (p plainDir) openPlain(key string) (*os.File, Object, error) {
	file, err := p.d.root.OpenFile(key, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return nil, Object{}, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		file.Close()
		return nil, Object{}, err
	}
	return file, newPlainObject(key, info), nil
}

func newPlainObject(key string, info fs.FileInfo) Object {
	return Object{Key: key, Size: info.Size(), Tag: fmt.Sprintf("%x-%x", info.ModTime().UnixNano(), info.Size()), Modified: info.ModTime()}
}

// Get implements Bucket.
func (p plainDir) Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, Object, error) {
	if err := p.checkName("get", key); err != nil {
		return nil, Object{}, err
	}
	file, o, err := p.openPlain(key)
	if err != nil {
		return nil, Object{}, p.d.wrapError("get", key, kindOf(err), err)
	}
	if offset < 0 || offset > o.Size {
		file.Close()
		return nil, Object{}, p.d.wrapError("get", key, atoll.ErrInvalid, fmt.Errorf("offset %d beyond the end of the object (%d bytes)", offset, o.Size))
	}
	left := o.Size - offset
	if length >= 0 {
		left = min(left, length)
	}
	return &dirReader{ctx, p.d, key, file, offset, left}, o, nil
}

// Stat implements Bucket.
func (p plainDir) Stat(ctx context.Context, key string) (Object, error) {
	if err := cmp.Or(p.checkName("stat", key), ctx.Err()); err != nil {
		return Object{}, err
	}
	file, o, err := p.openPlain(key)
	if err != nil {
		return Object{}, p.d.wrapError("stat", key, kindOf(err), err)
	}
	return o, file.Close()
}

// Put implements Bucket.
func (p plainDir) Put(ctx context.Context, key string, r io.ReadSeeker, size int64, when Condition) (Object, error) {
	err := p.checkName("put", key)
	if err == nil && when.Tag != "" {
		err = atoll.E("put", key, atoll.ErrUnsupported, errors.New("plain files have no tags"))
	}
	if err != nil {
		return Object{}, err
	}
	temp, err := p.d.newTempFile()
	if err != nil {
		return Object{}, p.d.wrapError("put", key, kindOf(err), err)
	}
	defer temp.discardFile()
	if err = temp.writeBytes(ctx, r, size); err == nil {
		err = temp.file.Sync()
	}
	info, statErr := temp.file.Stat()
	if err = cmp.Or(err, statErr); err == nil {
		err = p.placeFile(ctx, temp, key, when.Absent)
	}
	if err != nil {
		return Object{}, p.d.wrapError("put", key, kindOf(err), err)
	}
	return newPlainObject(key, info), nil
}

// placeFile moves a temporary file to the path of key.
func (p plainDir) placeFile(ctx context.Context, temp *tempFile, key string, absent bool) error {
	unlock, err := p.d.lockKey(ctx, key)
	if err != nil {
		return err
	}
	defer unlock()
	root := p.d.root
	if _, err := root.Lstat(key); absent && err == nil {
		return atoll.Errorf("", "", atoll.ErrConflict, "an object with this key exists")
	}
	for range 1000 { // a concurrent Delete removes empty directories
		if err = root.MkdirAll(path.Dir(key), 0o700); err == nil || errors.Is(err, fs.ErrNotExist) {
			if err = root.Rename(temp.name, key); !errors.Is(err, fs.ErrNotExist) {
				break
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if err != nil {
		return err
	}
	temp.name = ""
	return p.d.syncPath(path.Dir(key))
}

// Delete implements Bucket.
func (p plainDir) Delete(ctx context.Context, keys ...string) error {
	for _, key := range keys {
		if err := cmp.Or(p.checkName("delete", key), ctx.Err()); err != nil {
			return err
		}
		if err := ignoreNotExist(p.d.root.Remove(key)); err != nil {
			return p.d.wrapError("delete", key, kindOf(err), err)
		}
		for dir := path.Dir(key); dir != "." && p.d.root.Remove(dir) == nil; dir = path.Dir(dir) {
		}
	}
	return nil
}

// List implements Bucket. It holds the names below the last slash of the prefix in
// memory.
func (p plainDir) List(ctx context.Context, prefix string) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		var all []Object
		at := path.Clean("./" + prefix[:strings.LastIndexByte(prefix, '/')+1])
		err := fs.WalkDir(p.d.root.FS(), at, func(key string, e fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist): // removed meanwhile
				return nil
			case err != nil:
				return err
			case e.IsDir() && (key == lockDir || key == tempDir):
				return fs.SkipDir
			case !e.Type().IsRegular() || !strings.HasPrefix(key, prefix) || CheckKey(key) != nil:
				return ctx.Err()
			}
			info, err := e.Info()
			if err == nil {
				all = append(all, newPlainObject(key, info))
			}
			return ignoreNotExist(err)
		})
		if err != nil {
			yield(Object{}, p.d.wrapError("list", prefix, kindOf(err), err))
			return
		}
		slices.SortFunc(all, func(a, b Object) int { return strings.Compare(a.Key, b.Key) })
		for _, o := range all {
			if !yield(o, nil) {
				return
			}
		}
	}
}

// Folders implements FolderLister.
func (p plainDir) Folders(ctx context.Context, prefix string) ([]string, error) {
	return p.d.readFolders(ctx, prefix, path.Clean("./"+prefix), func(name string) string { return name })
}

// Folders implements FolderLister, except for elements with names of several files.
func (d *Dir) Folders(ctx context.Context, prefix string) ([]string, error) {
	at := "."
	if prefix != "" {
		at = dirPath(prefix)
	}
	return d.readFolders(ctx, prefix, at, decodePiece)
}

// readFolders returns the names of the directories in a directory.
func (d *Dir) readFolders(ctx context.Context, prefix, at string, decode func(string) string) (names []string, err error) {
	dir, err := d.root.Open(at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, d.wrapError("list", prefix, kindOf(err), err)
	}
	defer dir.Close()
	all, err := dir.ReadDir(-1)
	if err = cmp.Or(ctx.Err(), err); err != nil {
		return nil, d.wrapError("list", prefix, kindOf(err), err)
	}
	for _, e := range all {
		if e.IsDir() && !strings.Contains(e.Name(), "+") {
			names = append(names, decode(e.Name()))
		}
	}
	slices.Sort(names)
	return names, nil
}
