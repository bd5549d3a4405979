package sshd

import (
	"archive/tar"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"os"
	"path"
	"sync"
	"time"

	"github.com/pkg/sftp"

	"github.com/seed46cd37a8/atoll"
)

// A spool is a file that is being written. Clients write pieces of it in any
// order; an FS takes a file as a whole. So they are collected in a file without a
// name on this side, which is handed over when the client closes it, or has gone:
// what came until then can be resumed.
type spool struct {
	files *files
	name  string
	fresh bool // the file was not there
	excl  bool // nor may it be, in the end
	floor int64
	file  *os.File

	mu       sync.Mutex
	size     int64
	mode     uint32    // that the file shall have; 0 leaves it as it is
	modified time.Time // the same; zero is now
	changed  bool
	err      error // why it cannot be handed over
}

// errFull is that of a spool for which there is no more room.
var errFull = atoll.Errorf("write", "", atoll.ErrExhausted, "more is being written at once than this server takes: close some files, or raise max_upload")

// newSpool opens a file for writing, as flags say. attrs are those of an open,
// of which the library does not say which they are.
func (f *files) newSpool(name string, flags sftp.FileOpenFlags, attrs []byte) (*spool, error) {
	s := &spool{files: f, name: name, excl: flags.Excl && flags.Creat}
	old, err := f.stat(name)
	switch {
	case err == nil && s.excl:
		return nil, errExists
	case err == nil && old.Type != atoll.TypeFile:
		return nil, errors.New("it is no file")
	case err == nil:
		s.changed = flags.Trunc
	case errors.Is(err, atoll.ErrNotExist) && flags.Creat:
		if err := f.directoryOf(name); err != nil {
			return nil, err
		}
		s.fresh, s.changed = true, true
		s.mode = modeOf(attrs)
	default:
		return nil, err
	}
	if s.file, err = unnamed(f.spool); err != nil {
		return nil, err
	}
	if !s.fresh && !flags.Trunc {
		err = s.load()
	}
	if err != nil {
		s.discard()
		return nil, err
	}
	if flags.Append {
		s.floor = s.size
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open[s] = true
	return s, nil
}

// directoryOf reports whether there is a directory for name, which may be a link
// that leads nowhere yet.
func (f *files) directoryOf(name string) error {
	parent, err := f.stat(path.Dir(name))
	if err == nil && parent.Type != atoll.TypeDirectory {
		err = atoll.ErrNotExist
	}
	return err
}

// modeOf is the mode among the attributes of an open: the one attribute that is
// four bytes long, as OpenSSH sends it. Others may write to nothing, as with the
// usual umask.
func modeOf(attrs []byte) uint32 {
	if len(attrs) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(attrs) & 0o777 &^ 0o022
}

// unnamed makes a file that nothing is left of when it is closed.
func unnamed(dir string) (*os.File, error) {
	file, err := os.CreateTemp(dir, ".atoll-sftp-*")
	if err != nil {
		return nil, atoll.E("write", "", atoll.ErrInternal, err)
	}
	if err := os.Remove(file.Name()); err != nil {
		file.Close()
		return nil, atoll.E("write", "", atoll.ErrInternal, err)
	}
	return file, nil
}

// load copies what the file holds, of which the client may leave parts as they
// are.
func (s *spool) load() error {
	r, _, err := s.files.fs.Read(s.files.ctx, s.name, 0)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(io.NewOffsetWriter(putter(s.put), 0), r)
	return err
}

type putter func(p []byte, off int64) (int, error)

func (put putter) WriteAt(p []byte, off int64) (int, error) { return put(p, off) }

// WriteAt implements io.WriterAt. Where the client has asked to append, it must
// say an offset behind what is there.
func (s *spool) WriteAt(p []byte, off int64) (int, error) {
	if off < s.floor {
		return 0, errors.New("the file is open for appending: the offset is within it")
	}
	n, err := s.put(p, off)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = true
	s.err = cmp.Or(s.err, err)
	return n, status(err)
}

func (s *spool) put(p []byte, off int64) (int, error) {
	if off < 0 || off > math.MaxInt64-int64(len(p)) {
		return 0, atoll.ErrInvalid
	}
	if err := s.grow(off + int64(len(p))); err != nil {
		return 0, err
	}
	return s.file.WriteAt(p, off)
}

// grow makes room for a size.
func (s *spool) grow(size int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if size <= s.size {
		return nil
	}
	if !s.files.budget.take(size - s.size) {
		return errFull
	}
	s.size = size
	return nil
}

// ReadAt implements io.ReaderAt.
func (s *spool) ReadAt(p []byte, off int64) (int, error) { return s.file.ReadAt(p, off) }

// set changes what the file will be.
func (s *spool) set(flags sftp.FileAttrFlags, to *sftp.FileStat) error {
	if flags.Size {
		if err := s.truncate(to.Size); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = true
	if flags.Permissions {
		s.mode = to.Mode & 0o7777
	}
	if flags.Acmodtime {
		s.modified = time.Unix(int64(to.Mtime), 0)
	}
	return nil
}

func (s *spool) truncate(size uint64) error {
	if size > math.MaxInt64 {
		return atoll.ErrInvalid
	}
	if err := s.grow(int64(size)); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files.budget.give(s.size - int64(size))
	s.size = int64(size)
	return s.file.Truncate(s.size)
}

// info describes the file as it will be.
func (s *spool) info() atoll.FileInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	info := atoll.FileInfo{Name: path.Base(s.name), Path: s.name, Type: atoll.TypeFile, Size: s.size, Mode: cmp.Or(s.mode, 0o644), Modified: s.modified}
	if s.modified.IsZero() {
		info.Modified = time.Now()
	}
	return info
}

// writing is a file that is being written under name, if there is one.
func (f *files) writing(name string) *spool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.open {
		if s.name == name {
			return s
		}
	}
	return nil
}

// handOverTime is how long a file may take to get into the sandbox when the
// client has gone.
const handOverTime = 30 * time.Second

// Close implements io.Closer: it hands the file over. Nothing is, when a piece of
// it could not be kept.
func (s *spool) Close() error {
	defer s.discard()
	if s.err != nil || !s.changed {
		return status(s.err)
	}
	ctx, cancel := outlive(s.files.ctx, handOverTime)
	defer cancel()
	return status(s.handOver(ctx))
}

func (s *spool) handOver(ctx context.Context) error {
	content := io.NewSectionReader(s.file, 0, s.size)
	if !s.modified.IsZero() && !s.excl {
		return s.handOverDated(ctx, content)
	}
	_, err := s.files.fs.Write(ctx, s.name, content, atoll.WriteOptions{Mode: s.mode, NoClobber: s.excl})
	return err
}

// handOverDated hands over a file with its time, which only an archive can carry:
// under another name, because what is in an archive does not come at once.
func (s *spool) handOverDated(ctx context.Context, content io.Reader) error {
	target, mode := s.name, cmp.Or(s.mode, 0o644)
	if !s.fresh {
		old, err := s.files.stat(s.name)
		if err != nil {
			return err
		}
		target, mode = old.Path, cmp.Or(s.mode, old.Mode)
	}
	dir, temp := path.Dir(target), atoll.TempName()
	h := &tar.Header{Typeflag: tar.TypeReg, Name: temp, Size: s.size, Mode: int64(mode), ModTime: s.modified}
	err := s.files.unpackWithin(ctx, dir, h, content)
	if err == nil {
		err = s.files.fs.Rename(ctx, path.Join(dir, temp), target)
	}
	if err != nil {
		_ = s.files.fs.Remove(ctx, path.Join(dir, temp), false) // the first error counts
	}
	return err
}

// discard gives back what the spool takes.
func (s *spool) discard() {
	s.file.Close()
	s.files.budget.give(s.size)
	s.files.mu.Lock()
	defer s.files.mu.Unlock()
	if s.files.open[s] {
		delete(s.files.open, s)
		s.files.held--
	}
}

// setstat changes a file that is being written, or a directory. The mode and the
// time of any other file an FS cannot change: but they may be as wanted already.
func (f *files) setstat(r *sftp.Request) error {
	flags, to := r.AttrFlags(), r.Attributes()
	const known = 1 | 2 | 4 | 8 // size, owner, mode, times
	switch {
	case to == nil:
		return atoll.ErrInvalid
	case flags.UidGid || r.Flags&^known != 0:
		return atoll.ErrUnsupported
	}
	if s := f.writing(r.Filepath); s != nil {
		return s.set(flags, to)
	}
	info, err := f.stat(r.Filepath)
	if err != nil {
		return err
	}
	modified := info.Modified
	if flags.Acmodtime {
		modified = time.Unix(int64(to.Mtime), 0)
	}
	mode := info.Mode
	if flags.Permissions {
		mode = to.Mode & 0o7777
	}
	switch {
	case flags.Size && int64(to.Size) != info.Size:
		return atoll.ErrUnsupported
	case mode == info.Mode && modified.Unix() == info.Modified.Unix():
		return nil
	case info.Type == atoll.TypeDirectory:
		return f.unpack(info.Path, &tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: int64(mode), ModTime: modified}, nil)
	}
	return atoll.ErrUnsupported
}

// outlive returns a ctx that ends d after ctx has.
func outlive(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	long, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(d, cancel)
		context.AfterFunc(long, func() { timer.Stop() })
	})
	return long, func() {
		stop()
		cancel()
	}
}

// A budget is how many bytes may be in use at once.
type budget struct {
	mu      sync.Mutex
	limited bool
	left    int64
}

func (b *budget) take(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.limited && n > b.left {
		return false
	}
	b.left -= n
	return true
}

func (b *budget) give(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += n
}
