package dirfs

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"sync"
	"syscall"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// Write implements atoll.FS. It follows a link given as name. A replaced file retains
// its owner if this process may give files away. Until r has ended, no process sees the
// new content, and if this process is killed, nothing of it remains, except on file
// systems without unnamed files.
func (f *FS) Write(ctx context.Context, name string, r io.Reader, opts atoll.WriteOptions) (atoll.FileInfo, error) {
	at, err := f.resolveForChange(ctx, "write", name)
	if err != nil {
		return atoll.FileInfo{}, err
	}
	w := pendingWrite{uid: f.opts.UID, gid: f.opts.GID, mode: 0o644, noClobber: opts.NoClobber, sync: opts.Sync}
	err = f.inTree(at.rel, true, func(rel string) error { return f.beginWrite(ctx, &w, rel) })
	if err != nil {
		return atoll.FileInfo{}, wrapError("write", name, err)
	}
	defer w.dir.Close()
	if opts.Mode != 0 {
		w.mode = f.fileMode(opts.Mode)
	}
	info, err := w.writeAll(func(file *os.File, buffer []byte) error {
		// The plain Writer prevents io from using File.ReadFrom, which allocates a buffer
		// of its own.
		_, err := io.CopyBuffer(struct{ io.Writer }{file}, ctxReader{ctx, r}, buffer)
		return err
	})
	if err != nil {
		return atoll.FileInfo{}, wrapError("write", name, err)
	}
	d := f.newFileInfo(at, info)
	d.Changed = time.Time{} // since then, the file got its name
	return d, nil
}

// A pendingWrite is one call of Write. It copies r to a file without a name, or with a
// temporary one, in the target's directory, and then gives the file the target's name.
type pendingWrite struct {
	dir          tree
	target, temp string // in dir
	file         *os.File
	unnamed      bool // the file does not have the name temp yet
	absent       bool // target did not exist: if it still does not, the file needs no temporary name
	placed       bool // the file has the name target
	uid, gid     int
	mode         fs.FileMode
	noClobber    bool
	sync         bool
	live         liveDir
	silent       bool // live could not give the file its name
}

// beginWrite resolves the target and opens the new file.
func (f *FS) beginWrite(ctx context.Context, w *pendingWrite, rel string) error {
	target, old, err := f.writeTarget(rel)
	if err != nil {
		return err
	}
	if old != nil && w.noClobber {
		return fs.ErrExist
	}
	if old != nil {
		w.mode = old.Mode() & f.modeMask
		if os.Geteuid() == 0 {
			w.uid, w.gid = ownerOf(old)
		}
	}
	w.target, w.temp, w.live = path.Base(target), atoll.TempName(), f.liveDir(ctx, path.Dir(target))
	if w.dir, err = f.newCreator(f.tree).openRoot(path.Dir(target)); err != nil {
		return err
	}
	if err = f.createFile(w); err != nil {
		w.dir.Close()
	}
	return err
}

// createFile creates the new file, in the directory of the target.
func (f *FS) createFile(w *pendingWrite) (err error) {
	if w.file, err = f.openUnnamed(w.dir); err == nil {
		w.unnamed = true
		return nil
	}
	w.file, err = w.dir.OpenFile(w.temp, createFlags, 0o600)
	return err
}

// writeAll has write, which gets a buffer, write the content of the file, and gives the file its
// name.
func (w *pendingWrite) writeAll(write func(file *os.File, buffer []byte) error) (fs.FileInfo, error) {
	info, err := fillFile(w.file, write, w.finishFile)
	if err == nil && !w.placed {
		err = w.replaceTarget(info)
	}
	if err != nil {
		_ = w.dir.Remove(w.temp) // the first error counts
		return nil, err
	}
	if w.sync {
		return info, syncDir(w.dir)
	}
	return info, nil
}

// replaceTarget gives the temporary file, which info describes, its name.
func (w *pendingWrite) replaceTarget(info fs.FileInfo) error {
	if w.live.giveName(w.temp, w.target, w.noClobber) {
		return nil
	}
	if w.silent = w.live.fs != nil; w.silent { // it may have done so, and only the answer was lost
		if there, err := w.dir.Lstat(w.target); err == nil && os.SameFile(there, info) {
			_ = w.dir.Remove(w.temp) // another name of the file, or gone
			return nil
		}
	}
	if !w.noClobber {
		return w.dir.Rename(w.temp, w.target)
	}
	if err := w.dir.Link(w.temp, w.target); err != nil {
		return err
	}
	return w.dir.Remove(w.temp)
}

// finishFile sets the owner, mode and name of the file.
func (w *pendingWrite) finishFile() error {
	err := setOwnerAndMode(w.file, w.uid, w.gid, w.mode)
	if err == nil && w.sync {
		err = w.file.Sync()
	}
	if err != nil || !w.unnamed {
		return err
	}
	if w.absent && w.live.fs == nil && giveName(w.file, w.dir, w.target) == nil {
		w.placed = true
		return nil
	}
	return giveName(w.file, w.dir, w.temp)
}

// copyBuffer is the size of the buffer for writing files, in bytes: more than io's 32
// KiB is faster as long as it fits the cache.
const copyBuffer = 256 << 10

// bufferPool has these buffers: without it, each of many small files would take one.
var bufferPool = sync.Pool{New: func() any { return new([copyBuffer]byte) }}

// fillFile has write write the content of the new file, calls finish, and closes the file.
func fillFile(file *os.File, write func(*os.File, []byte) error, finish func() error) (info fs.FileInfo, err error) {
	defer func() {
		if cerr := file.Close(); err == nil {
			err = cerr
		}
	}()
	buffer := bufferPool.Get().(*[copyBuffer]byte)
	defer bufferPool.Put(buffer)
	if err := write(file, buffer[:]); err != nil {
		return nil, err
	}
	if err := finish(); err != nil {
		return nil, err
	}
	return file.Stat()
}

// writeTarget follows links at rel, and returns the final name and the file there; nil
// if there is none.
func (f *FS) writeTarget(rel string) (string, fs.FileInfo, error) {
	info, err := f.tree.Lstat(rel)
	if err == nil && info.Mode()&fs.ModeSymlink != 0 {
		if rel, err = f.resolveLinks(rel, true); err != nil {
			return "", nil, err
		}
		info, err = f.tree.Lstat(rel)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return rel, nil, nil
	case err != nil:
		return "", nil, err
	case info.IsDir():
		return "", nil, syscall.EISDIR
	case !info.Mode().IsRegular():
		return "", nil, errNotRegular
	}
	return rel, info, nil
}

// Mkdir implements atoll.FS. mode 0 means 0755.
func (f *FS) Mkdir(ctx context.Context, name string, mode uint32) error {
	at, err := f.resolveForChange(ctx, "mkdir", name)
	if err != nil {
		return err
	}
	if mode == 0 {
		mode = 0o755
	}
	err = f.inTree(at.rel, true, func(rel string) error {
		return f.newCreator(f.tree).mkdirAll(rel, f.fileMode(mode))
	})
	return wrapError("mkdir", name, err)
}

// Rename implements atoll.FS.
func (f *FS) Rename(ctx context.Context, from, to string) error {
	src, err := f.resolveForChange(ctx, "rename", from)
	if err != nil {
		return err
	}
	dst, err := f.resolveForChange(ctx, "rename", to)
	if err != nil {
		return err
	}
	if src.rel == "." || dst.rel == "." {
		return atoll.Errorf("rename", from, atoll.ErrInvalid, "%s itself cannot be moved or replaced", f.prefix)
	}
	err = f.inTree(src.rel, false, func(from string) error {
		return f.inTree(dst.rel, false, func(to string) error { return f.tree.Rename(from, to) })
	})
	return wrapError("rename", from, err)
}

// Remove implements atoll.FS.
func (f *FS) Remove(ctx context.Context, name string, recursive bool) error {
	at, err := f.resolveForChange(ctx, "remove", name)
	if err != nil {
		return err
	}
	if at.rel == "." {
		return atoll.Errorf("remove", name, atoll.ErrInvalid, "%s itself cannot be removed", f.prefix)
	}
	err = f.inTree(at.rel, false, func(rel string) error {
		if !recursive {
			return f.tree.Remove(rel)
		}
		if _, err := f.tree.Lstat(rel); err != nil { // RemoveAll accepts a missing file
			return err
		}
		return f.tree.RemoveAll(rel)
	})
	if isAny(err, syscall.ENOTEMPTY) {
		return atoll.Errorf("remove", name, atoll.ErrInvalid, "the directory is not empty: remove it recursively")
	}
	return wrapError("remove", name, err)
}
