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

	"github.com/seed46cd37a8/atoll"
)

// Write implements atoll.FS. A link given as name is followed. A file that is
// replaced keeps its owner, where this process may give it away. Until r has
// ended there is nothing to be seen of what it says, nor is anything left when
// this process is killed, but on file systems that know no files without a
// name.
func (f *FS) Write(ctx context.Context, name string, r io.Reader, opts atoll.WriteOptions) (atoll.FileInfo, error) {
	at, err := f.locateForChange(ctx, "write", name)
	if err != nil {
		return atoll.FileInfo{}, err
	}
	w := writing{uid: f.opts.UID, gid: f.opts.GID, mode: 0o644, noClobber: opts.NoClobber, sync: opts.Sync}
	err = f.inTree(at.rel, true, func(rel string) error { return f.begin(&w, rel) })
	if err != nil {
		return atoll.FileInfo{}, fail("write", name, err)
	}
	defer w.dir.Close()
	if opts.Mode != 0 {
		w.mode = f.fileMode(opts.Mode)
	}
	info, err := w.run(ctx, r)
	if err != nil {
		return atoll.FileInfo{}, fail("write", name, err)
	}
	return f.describe(at, info), nil
}

// A writing is one Write: what r says goes to a file without a name, or with a
// temporary one, in the target's directory, which then takes the target's name.
type writing struct {
	dir          tree
	target, temp string // in dir
	file         *os.File
	unnamed      bool // the file is not yet temp
	absent       bool // nothing was at target: if that is so still, the file needs no other name before
	placed       bool // it has that of target
	uid, gid     int
	mode         fs.FileMode
	noClobber    bool
	sync         bool
}

// begin finds the target and opens the file.
func (f *FS) begin(w *writing, rel string) error {
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
			w.uid, w.gid = owner(old)
		}
	}
	w.target, w.temp = path.Base(target), atoll.TempName()
	if w.dir, err = f.maker(f.tree).openRoot(path.Dir(target)); err != nil {
		return err
	}
	if err = f.open(w); err != nil {
		w.dir.Close()
	}
	return err
}

// open makes the file, where the target will be.
func (f *FS) open(w *writing) (err error) {
	if w.file, err = f.openUnnamed(w.dir); err == nil {
		w.unnamed = true
		return nil
	}
	w.file, err = w.dir.OpenFile(w.temp, createFlags, 0o600)
	return err
}

func (w *writing) run(ctx context.Context, r io.Reader) (fs.FileInfo, error) {
	info, err := fill(ctx, w.file, r, w.finish)
	switch {
	case err != nil, w.placed:
	case w.noClobber:
		if err = w.dir.Link(w.temp, w.target); err == nil {
			err = w.dir.Remove(w.temp)
		}
	default:
		err = w.dir.Rename(w.temp, w.target)
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

// finish gives the file its owner and mode, and a name.
func (w *writing) finish() error {
	err := finish(w.file, w.uid, w.gid, w.mode)
	if err == nil && w.sync {
		err = w.file.Sync()
	}
	if err != nil || !w.unnamed {
		return err
	}
	if w.absent && giveName(w.file, w.dir, w.target) == nil {
		w.placed = true
		return nil
	}
	return giveName(w.file, w.dir, w.temp)
}

// copyBuffer is what a file is written with at once: more than io's own 32 KiB
// pays as long as it fits the cache.
const copyBuffer = 256 << 10

// buffers are those, for many small files would otherwise take one each.
var buffers = sync.Pool{New: func() any { return new([copyBuffer]byte) }}

// fill copies r to the new file, finishes and closes it.
func fill(ctx context.Context, file *os.File, r io.Reader, finish func() error) (info fs.FileInfo, err error) {
	defer func() {
		if cerr := file.Close(); err == nil {
			err = cerr
		}
	}()
	buffer := buffers.Get().(*[copyBuffer]byte)
	defer buffers.Put(buffer)
	// The plain Writer keeps io from using File's own ReadFrom, which brings a
	// buffer of its own.
	if _, err := io.CopyBuffer(struct{ io.Writer }{file}, ctxReader{ctx, r}, buffer[:]); err != nil {
		return nil, err
	}
	if err := finish(); err != nil {
		return nil, err
	}
	return file.Stat()
}

// writeTarget follows links at rel, and says what is at their end, if anything.
func (f *FS) writeTarget(rel string) (string, fs.FileInfo, error) {
	info, err := f.tree.Lstat(rel)
	if err == nil && info.Mode()&fs.ModeSymlink != 0 {
		if rel, err = f.resolve(rel, true); err != nil {
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
	at, err := f.locateForChange(ctx, "mkdir", name)
	if err != nil {
		return err
	}
	if mode == 0 {
		mode = 0o755
	}
	err = f.inTree(at.rel, true, func(rel string) error {
		return f.maker(f.tree).mkdirAll(rel, f.fileMode(mode))
	})
	return fail("mkdir", name, err)
}

// Rename implements atoll.FS.
func (f *FS) Rename(ctx context.Context, from, to string) error {
	src, err := f.locateForChange(ctx, "rename", from)
	if err != nil {
		return err
	}
	dst, err := f.locateForChange(ctx, "rename", to)
	if err != nil {
		return err
	}
	if src.rel == "." || dst.rel == "." {
		return atoll.Errorf("rename", from, atoll.ErrInvalid, "%s itself cannot be moved or replaced", f.prefix)
	}
	err = f.inTree(src.rel, false, func(from string) error {
		return f.inTree(dst.rel, false, func(to string) error { return f.tree.Rename(from, to) })
	})
	return fail("rename", from, err)
}

// Remove implements atoll.FS.
func (f *FS) Remove(ctx context.Context, name string, recursive bool) error {
	at, err := f.locateForChange(ctx, "remove", name)
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
		if _, err := f.tree.Lstat(rel); err != nil { // which RemoveAll would not mind
			return err
		}
		return f.tree.RemoveAll(rel)
	})
	if isAny(err, syscall.ENOTEMPTY) {
		return atoll.Errorf("remove", name, atoll.ErrInvalid, "the directory is not empty: remove it recursively")
	}
	return fail("remove", name, err)
}
