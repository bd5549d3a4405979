package dirfs

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/seed46cd37a8/atoll"
)

// Open implements atoll.Editor. The file stays open when the FS is closed.
func (f *FS) Open(ctx context.Context, name string, opts atoll.OpenOptions) (atoll.File, error) {
	if err := opts.Check(name); err != nil {
		return nil, err
	}
	resolve := f.resolveName
	if opts.Write || opts.Create {
		resolve = f.resolveForChange
	}
	at, err := resolve(ctx, "open", name)
	if err != nil {
		return nil, err
	}
	file, err := f.openOrCreate(at.rel, opts)
	if err != nil {
		return nil, wrapError("open", name, err)
	}
	return &openFile{file: file, name: name, at: at, fs: f, opts: opts}, nil
}

// maxRaces limits the attempts of openOrCreate while other processes create and remove
// the file.
const maxRaces = 100

func (f *FS) openOrCreate(rel string, opts atoll.OpenOptions) (file *os.File, err error) {
	for range maxRaces {
		if !opts.Exclusive {
			file, err = f.openExisting(rel, opts)
			if !opts.Create || !errors.Is(err, fs.ErrNotExist) {
				return file, err
			}
		}
		file, err = f.createMissing(rel, opts)
		if opts.Exclusive || !errors.Is(err, fs.ErrExist) {
			return file, err
		}
	}
	return nil, err
}

func accessFlags(opts atoll.OpenOptions) int {
	flags := syscall.O_NONBLOCK // for a pipe; regular files ignore it
	switch {
	case opts.Read && opts.Write:
		flags |= os.O_RDWR
	case opts.Write:
		flags |= os.O_WRONLY
	}
	if opts.Append {
		flags |= os.O_APPEND
	}
	return flags
}

func (f *FS) openExisting(rel string, opts atoll.OpenOptions) (file *os.File, err error) {
	err = f.inTree(rel, true, func(rel string) (err error) {
		file, err = f.tree.OpenFile(rel, accessFlags(opts), 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	switch {
	case err != nil:
	case info.IsDir():
		err = syscall.EISDIR
	case !info.Mode().IsRegular():
		err = errNotRegular
	case opts.Truncate:
		err = file.Truncate(0)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// createMissing creates a file, also at the target of a dangling link unless opts.Exclusive
// is set.
func (f *FS) createMissing(rel string, opts atoll.OpenOptions) (file *os.File, err error) {
	mode := fs.FileMode(0o644)
	if opts.Mode != 0 {
		mode = f.fileMode(opts.Mode)
	}
	err = f.inTree(rel, !opts.Exclusive, func(rel string) (err error) {
		if !opts.Exclusive {
			if rel, _, err = f.writeTarget(rel); err != nil {
				return err
			}
		}
		if file, err = f.tree.OpenFile(rel, accessFlags(opts)|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
			return err
		}
		if err = setOwnerAndMode(file, f.opts.UID, f.opts.GID, mode); err != nil {
			file.Close()
			_ = f.tree.Remove(rel) // the first error counts
		}
		return err
	})
	return file, err
}

// An openFile is an atoll.File.
type openFile struct {
	file *os.File
	name string
	at   location
	fs   *FS
	opts atoll.OpenOptions
}

func (o *openFile) checkCall(ctx context.Context, op string, allowed bool, offset int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !allowed {
		return atoll.Errorf(op, o.name, atoll.ErrDenied, "the file is not open for that")
	}
	if offset < 0 {
		return atoll.Errorf(op, o.name, atoll.ErrInvalid, "offset %d: must not be negative", offset)
	}
	return nil
}

// ReadAt implements atoll.File.
func (o *openFile) ReadAt(ctx context.Context, p []byte, offset int64) (int, error) {
	if err := o.checkCall(ctx, "read", o.opts.Read, offset); err != nil {
		return 0, err
	}
	n, err := o.file.ReadAt(p, offset)
	if err == io.EOF {
		return n, err
	}
	return n, wrapError("read", o.name, err)
}

// WriteAt implements atoll.File.
func (o *openFile) WriteAt(ctx context.Context, p []byte, offset int64) (n int, err error) {
	if err := o.checkCall(ctx, "write", o.opts.Write, offset); err != nil {
		return 0, err
	}
	if o.opts.Append {
		n, err = o.file.Write(p)
	} else {
		n, err = o.file.WriteAt(p, offset)
	}
	return n, wrapError("write", o.name, err)
}

// Stat implements atoll.File.
func (o *openFile) Stat(ctx context.Context) (atoll.FileInfo, error) {
	if err := ctx.Err(); err != nil {
		return atoll.FileInfo{}, err
	}
	info, err := o.file.Stat()
	if err != nil {
		return atoll.FileInfo{}, wrapError("stat", o.name, err)
	}
	return o.fs.newFileInfo(o.at, info), nil
}

// Change implements atoll.File.
func (o *openFile) Change(ctx context.Context, change atoll.FileChange) error {
	if err := o.checkCall(ctx, "change", !o.fs.opts.ReadOnly, 0); err != nil {
		return err
	}
	info, err := o.file.Stat()
	if err != nil {
		return wrapError("change", o.name, err)
	}
	return o.fs.applyChange(o.name, info, change, attributeSetter{
		size:  o.file.Truncate,
		mode:  o.file.Chmod,
		times: func(t atoll.FileTimes) error { return setFileTimes(o.file, t) },
		owner: o.file.Chown,
	})
}

// Sync implements atoll.File.
func (o *openFile) Sync(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return wrapError("sync", o.name, o.file.Sync())
}

// Close implements atoll.File.
func (o *openFile) Close() error {
	if err := o.file.Close(); !errors.Is(err, fs.ErrClosed) {
		return wrapError("close", o.name, err)
	}
	return nil
}

// An attributeSetter sets the attributes of one file.
type attributeSetter struct {
	size  func(n int64) error
	mode  func(fs.FileMode) error
	times func(atoll.FileTimes) error
	owner func(uid, gid int) error
}

// applyChange changes the attributes of the file that info describes.
func (f *FS) applyChange(name string, info fs.FileInfo, change atoll.FileChange, set attributeSetter) error {
	var errs []error
	if n := change.Size; n != nil {
		if *n < 0 {
			return atoll.Errorf("change", name, atoll.ErrInvalid, "size %d: must not be negative", *n)
		}
		errs = append(errs, wrapError("change", name, set.size(*n)))
	}
	if m := change.Mode; m != nil {
		mode := f.fileMode(*m)
		if unixMode(mode) != *m&0o7777 {
			errs = append(errs, atoll.Errorf("change", name, atoll.ErrUnsupported, "mode %04o: set-user-ID and set-group-ID are not stored here", *m))
		} else {
			errs = append(errs, wrapError("change", name, set.mode(mode)))
		}
	}
	if t := change.Times; t != nil {
		errs = append(errs, wrapError("change", name, set.times(*t)))
	}
	if o := change.Owner; o != nil {
		errs = append(errs, f.changeOwner(name, info, *o, set.owner))
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// changeOwner refuses what only root may do if this process is root, but serves the files
// of another user.
func (f *FS) changeOwner(name string, info fs.FileInfo, to atoll.FileOwner, set func(uid, gid int) error) error {
	if to.UID < 0 || to.GID < 0 {
		return atoll.Errorf("change", name, atoll.ErrInvalid, "owner %d:%d: must not be negative", to.UID, to.GID)
	}
	uid, gid := ownerOf(info)
	if f.opts.UID > 0 && (to.UID != uid || to.GID != gid) {
		return atoll.Errorf("change", name, atoll.ErrDenied, "only root may change owners")
	}
	return wrapError("change", name, set(to.UID, to.GID))
}

// Change implements atoll.Editor.
func (f *FS) Change(ctx context.Context, name string, change atoll.FileChange) error {
	at, err := f.resolveForChange(ctx, "change", name)
	if err != nil {
		return err
	}
	rel, err := f.resolveLinks(at.rel, !change.NoFollow)
	if err != nil {
		return wrapError("change", name, err)
	}
	info, err := f.tree.Lstat(rel)
	if err != nil {
		return wrapError("change", name, err)
	}
	set := attributeSetter{
		size:  func(n int64) error { return f.truncateFile(rel, n) },
		mode:  func(m fs.FileMode) error { return f.tree.Chmod(rel, m) },
		times: func(t atoll.FileTimes) error { return f.tree.Chtimes(rel, t.Accessed, t.Modified) },
		owner: func(uid, gid int) error { return f.tree.Lchown(rel, uid, gid) },
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		set.size = func(int64) error { return errNotRegular }
		set.mode = func(fs.FileMode) error {
			return atoll.Errorf("change", name, atoll.ErrUnsupported, "a link has no mode: change that of its target")
		}
		set.times = func(t atoll.FileTimes) error { return setLinkTimes(f.tree, rel, t) }
	}
	return f.applyChange(name, info, change, set)
}

// truncateFile changes the size of a regular file.
func (f *FS) truncateFile(rel string, size int64) error {
	file, err := f.openExisting(rel, atoll.OpenOptions{Write: true})
	if err != nil {
		return err
	}
	defer file.Close()
	return file.Truncate(size)
}

// Link implements atoll.Editor.
func (f *FS) Link(ctx context.Context, from, to string) error {
	src, err := f.resolveForChange(ctx, "link", from)
	if err != nil {
		return err
	}
	dst, err := f.resolveForChange(ctx, "link", to)
	if err != nil {
		return err
	}
	err = f.inTree(src.rel, false, func(from string) error {
		return f.inTree(dst.rel, false, func(to string) error { return f.tree.Link(from, to) })
	})
	return wrapError("link", from, err)
}

// Space implements atoll.Editor.
func (f *FS) Space(ctx context.Context, name string) (space atoll.Space, err error) {
	at, err := f.resolveName(ctx, "space", name)
	if err != nil {
		return atoll.Space{}, err
	}
	err = f.inTree(at.rel, true, func(rel string) error {
		file, err := f.tree.OpenFile(rel, openFlags, 0)
		if err != nil {
			return err
		}
		defer file.Close()
		space, err = spaceOf(file)
		return err
	})
	return space, wrapError("space", name, err)
}

var _ atoll.Editor = (*FS)(nil)
