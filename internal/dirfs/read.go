package dirfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/seed46cd37a8/atoll"
)

// openFlags opens a file for reading without blocking on a pipe.
const openFlags = os.O_RDONLY | syscall.O_NONBLOCK

// Read implements atoll.FS.
func (f *FS) Read(ctx context.Context, name string, offset int64) (io.ReadCloser, atoll.FileInfo, error) {
	at, err := f.resolveName(ctx, "read", name)
	if err != nil {
		return nil, atoll.FileInfo{}, err
	}
	if offset < 0 {
		return nil, atoll.FileInfo{}, atoll.Errorf("read", name, atoll.ErrInvalid, "offset %d: must not be negative", offset)
	}
	file, info, err := f.openRegular(at.rel)
	if err != nil {
		return nil, atoll.FileInfo{}, wrapError("read", name, err)
	}
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		file.Close()
		return nil, atoll.FileInfo{}, wrapError("read", name, err)
	}
	return file, f.newFileInfo(at, info), nil
}

// openRegular opens a regular file for reading, and refuses other files.
func (f *FS) openRegular(rel string) (file *os.File, info fs.FileInfo, err error) {
	err = f.inTree(rel, true, func(rel string) (err error) {
		file, err = f.tree.OpenFile(rel, openFlags, 0)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	info, err = file.Stat()
	if err == nil && info.IsDir() {
		err = syscall.EISDIR
	}
	if err == nil && !info.Mode().IsRegular() {
		err = errNotRegular
	}
	if err != nil {
		file.Close()
		return nil, nil, err
	}
	return file, info, nil
}

var errNotRegular = &invalidError{"not a regular file"}

// An invalidError is an error of kind ErrInvalid without an errno.
type invalidError struct{ text string }

func (e *invalidError) Error() string        { return e.text }
func (e *invalidError) Is(target error) bool { return target == fs.ErrInvalid }

// Stat implements atoll.FS.
func (f *FS) Stat(ctx context.Context, name string) (atoll.FileInfo, error) {
	at, err := f.resolveName(ctx, "stat", name)
	if err != nil {
		return atoll.FileInfo{}, err
	}
	var info fs.FileInfo
	err = f.inTree(at.rel, false, func(rel string) (err error) {
		info, err = f.tree.Lstat(rel)
		return err
	})
	if err != nil {
		return atoll.FileInfo{}, wrapError("stat", name, err)
	}
	return f.newFileInfo(at, info), nil
}

// List implements atoll.FS. It follows a link given as name. More entries or longer
// paths than the limits fail with ErrExhausted.
func (f *FS) List(ctx context.Context, name string, recursive bool) ([]atoll.FileInfo, error) {
	at, err := f.resolveName(ctx, "list", name)
	if err != nil {
		return nil, err
	}
	list, err := f.listEntries(ctx, at, recursive)
	if err != nil {
		return nil, wrapError("list", name, err)
	}
	slices.SortFunc(list, func(a, b atoll.FileInfo) int { return strings.Compare(a.Path, b.Path) })
	return list, nil
}

func (f *FS) listEntries(ctx context.Context, top location, recursive bool) ([]atoll.FileInfo, error) {
	var list [][]atoll.FileInfo // in parts, since growing one large slice would need twice the memory
	var part []atoll.FileInfo
	left := f.most
	for below := []location{top}; len(below) > 0; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		dir := below[len(below)-1]
		below = below[:len(below)-1]
		err := f.readDir(dir.rel, func(info fs.FileInfo) error {
			at := dir.joinName(info.Name())
			d := f.newFileInfo(at, info)
			if !left.reserveEntry(len(d.Path) + len(d.Target)) {
				return errPaths
			}
			if len(part) == batchSize {
				list, part = append(list, part), make([]atoll.FileInfo, 0, batchSize)
			}
			part = append(part, d)
			if recursive && info.IsDir() {
				below = append(below, at)
			}
			return nil
		})
		if err != nil && (dir == top || !errors.Is(err, fs.ErrNotExist)) { // just removed
			return nil, err
		}
	}
	return slices.Concat(append(list, part)...), nil
}

// A limitExceeded error says that a directory has too many entries.
type limitExceeded struct{ text string }

func (e *limitExceeded) Error() string { return e.text }

// errPaths says that a tree has too many entries or too long paths.
var errPaths = &limitExceeded{fmt.Sprintf("more than %d entries, or %d MiB of paths: choose one of the directories below", maxEntries, maxPaths>>20)}

// errNames says that the names take more memory than a tar stream may use.
var errNames = &limitExceeded{fmt.Sprintf("more than %d MiB of names: choose one of the directories below", maxNames>>20)}

// openDir opens a directory for reading, and follows links.
func (f *FS) openDir(rel string) (dir *os.File, err error) {
	err = f.inTree(rel, true, func(rel string) (err error) {
		dir, err = f.tree.OpenFile(rel, openFlags, 0)
		return err
	})
	return dir, err
}

// batchSize is the number of entries that are read at once.
const batchSize = 1024

// readDir calls fn with each entry of a directory, in no order, until fn fails.
func (f *FS) readDir(rel string, fn func(fs.FileInfo) error) error {
	dir, err := f.openDir(rel)
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		infos, err := dir.Readdir(batchSize)
		for _, info := range infos {
			if err := fn(info); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// readNames returns the sorted names in a directory, and the bytes of memory that they
// take; more than most is an error.
func (f *FS) readNames(rel string, most int) (names []string, size int, err error) {
	dir, err := f.openDir(rel)
	if err != nil {
		return nil, 0, err
	}
	defer dir.Close()
	for {
		some, err := dir.Readdirnames(batchSize)
		for _, name := range some {
			size += len(name) + nameSize
		}
		if size > most {
			return nil, 0, errNames
		}
		names = append(names, some...)
		if err == io.EOF {
			slices.Sort(names)
			return names, size, nil
		}
		if err != nil {
			return nil, 0, err
		}
	}
}

// statEntries returns the FileInfos of those entries of a directory that still exist.
func (f *FS) statEntries(rel string, names []string) (infos []fs.FileInfo, err error) {
	var dir tree
	err = f.inTree(rel, true, func(rel string) (err error) {
		dir, err = f.tree.OpenRoot(rel)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	for _, name := range names {
		info, err := dir.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		infos = append(infos, info)
	}
	return infos, nil
}

// newFileInfo returns the atoll.FileInfo of the file at a location.
func (f *FS) newFileInfo(at location, info fs.FileInfo) atoll.FileInfo {
	d := atoll.FileInfo{
		Name:     path.Base(at.abs),
		Path:     at.abs,
		Type:     typeOf(info.Mode()),
		Mode:     unixMode(info.Mode()),
		Modified: info.ModTime(),
	}
	d.UID, d.GID = ownerOf(info)
	d.Changed, d.Inode = changeOf(info)
	if !f.keepsInodes {
		d.Inode = 0
	}
	switch d.Type {
	case atoll.TypeFile:
		d.Size = info.Size()
	case atoll.TypeSymlink:
		_ = f.inTree(at.rel, false, func(rel string) (err error) { // it may just have been removed
			d.Target, err = f.tree.Readlink(rel)
			return err
		})
	}
	return d
}

func typeOf(mode fs.FileMode) atoll.FileType {
	switch {
	case mode.IsRegular():
		return atoll.TypeFile
	case mode.IsDir():
		return atoll.TypeDirectory
	case mode&fs.ModeSymlink != 0:
		return atoll.TypeSymlink
	}
	return atoll.TypeOther
}

// special maps the mode bits that package fs represents differently.
var special = []struct {
	unix uint32
	mode fs.FileMode
}{{0o4000, fs.ModeSetuid}, {0o2000, fs.ModeSetgid}, {0o1000, fs.ModeSticky}}

func unixMode(mode fs.FileMode) uint32 {
	m := uint32(mode.Perm())
	for _, s := range special {
		if mode&s.mode != 0 {
			m |= s.unix
		}
	}
	return m
}

// fileMode is the reverse of unixMode, without the bits that the FS does not allow.
func (f *FS) fileMode(unix uint32) fs.FileMode {
	mode := fs.FileMode(unix) & fs.ModePerm
	for _, s := range special {
		if unix&s.unix != 0 {
			mode |= s.mode
		}
	}
	return mode & f.modeMask
}
