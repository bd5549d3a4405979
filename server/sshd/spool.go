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

// A spool is a file being written. Clients write its pieces in any order; an FS takes a
// whole file. So a spool collects them in an unnamed file on this side, and stores that
// in the sandbox when the client closes it, or has gone: then the client can resume.
type spool struct {
	files     *fileServer
	name      string
	fresh     bool // the file did not exist
	exclusive bool // nor may it exist at the end
	floor     int64
	file      *os.File

	mu       sync.Mutex
	size     int64
	mode     uint32    // mode for the file; 0 keeps it
	modified time.Time // time for the file; zero means now
	changed  bool
	err      error // the reason that the file cannot be stored
}

// errFull is the error of a spool beyond the budget.
var errFull = atoll.Errorf("write", "", atoll.ErrExhausted, "open files exceed the upload limit: close some files, or raise max_upload")

// newSpool opens a file for writing, according to flags. attrs are the raw attributes
// of the request, since the library doesn't tell which they are.
func (f *fileServer) newSpool(name string, flags sftp.FileOpenFlags, attrs []byte) (*spool, error) {
	s := &spool{files: f, name: name, exclusive: flags.Excl && flags.Creat}
	old, err := f.statFile(f.ctx, name)
	switch {
	case err == nil && s.exclusive:
		return nil, errExists
	case err == nil && old.Type != atoll.TypeFile:
		return nil, errors.New("not a file")
	case err == nil:
		s.changed = flags.Trunc
	case errors.Is(err, atoll.ErrNotExist) && flags.Creat:
		if err := f.checkParent(name); err != nil {
			return nil, err
		}
		s.fresh, s.changed = true, true
		s.mode = modeOf(attrs)
	default:
		return nil, err
	}
	if s.file, err = openUnnamed(f.spool); err != nil {
		return nil, err
	}
	if !s.fresh && !flags.Trunc {
		err = s.loadContent()
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

// checkParent returns an error unless name's parent is a directory. name itself may be
// a dangling link.
func (f *fileServer) checkParent(name string) error {
	parent, err := f.statFile(f.ctx, path.Dir(name))
	if err == nil && parent.Type != atoll.TypeDirectory {
		err = atoll.ErrNotExist
	}
	return err
}

// modeOf returns the mode in the attributes of an open request: OpenSSH sends only
// that, in four bytes. It removes write permission for group and others, as the usual
// umask does.
func modeOf(attrs []byte) uint32 {
	if len(attrs) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(attrs) & 0o777 &^ 0o022
}

// openUnnamed makes a file that vanishes when it is closed.
func openUnnamed(dir string) (*os.File, error) {
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

// loadContent copies the file's current content, since the client may change only parts
// of it.
func (s *spool) loadContent() error {
	r, _, err := s.files.fs.Read(s.files.ctx, s.name, 0)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(io.NewOffsetWriter(putter(s.writePiece), 0), r)
	return err
}

type putter func(p []byte, off int64) (int, error)

func (put putter) WriteAt(p []byte, off int64) (int, error) { return put(p, off) }

// WriteAt implements io.WriterAt. If the client opened the file for appending, offsets
// have to be behind its old content.
func (s *spool) WriteAt(p []byte, off int64) (int, error) {
	if off < s.floor {
		return 0, errors.New("the file is open for appending: the offset is before its end")
	}
	n, err := s.writePiece(p, off)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = true
	s.err = cmp.Or(s.err, err)
	return n, statusOf(err)
}

func (s *spool) writePiece(p []byte, off int64) (int, error) {
	if off < 0 || off > math.MaxInt64-int64(len(p)) {
		return 0, atoll.ErrInvalid
	}
	if err := s.growTo(off + int64(len(p))); err != nil {
		return 0, err
	}
	return s.file.WriteAt(p, off)
}

// growTo reserves the budget for a size.
func (s *spool) growTo(size int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if size <= s.size {
		return nil
	}
	if !s.files.budget.reserve(size - s.size) {
		return errFull
	}
	s.size = size
	return nil
}

// ReadAt implements io.ReaderAt.
func (s *spool) ReadAt(p []byte, off int64) (int, error) { return s.file.ReadAt(p, off) }

// setAttributes changes the future attributes of the file.
func (s *spool) setAttributes(flags sftp.FileAttrFlags, to *sftp.FileStat) error {
	if flags.Size {
		if err := s.truncateTo(to.Size); err != nil {
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

func (s *spool) truncateTo(size uint64) error {
	if size > math.MaxInt64 {
		return atoll.ErrInvalid
	}
	if err := s.growTo(int64(size)); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files.budget.release(s.size - int64(size))
	s.size = int64(size)
	return s.file.Truncate(s.size)
}

// futureInfo describes the file in its future state.
func (s *spool) futureInfo() atoll.FileInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	info := atoll.FileInfo{Name: path.Base(s.name), Path: s.name, Type: atoll.TypeFile, Size: s.size, Mode: cmp.Or(s.mode, 0o644), Modified: s.modified}
	if s.modified.IsZero() {
		info.Modified = time.Now()
	}
	return info
}

// openSpool returns the file being written under name, if there is one.
func (f *fileServer) openSpool(name string) *spool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.open {
		if s.name == name {
			return s
		}
	}
	return nil
}

// handOverTime bounds the storing of a file after the client has gone.
const handOverTime = 30 * time.Second

// Close implements io.Closer: it stores the file in the sandbox, unless a write has
// failed.
func (s *spool) Close() error {
	defer s.discard()
	if s.err != nil || !s.changed {
		return statusOf(s.err)
	}
	ctx, cancel := outlive(s.files.ctx, handOverTime)
	defer cancel()
	return statusOf(s.handOver(ctx))
}

func (s *spool) handOver(ctx context.Context) error {
	content := io.NewSectionReader(s.file, 0, s.size)
	if !s.modified.IsZero() && !s.exclusive {
		return s.handOverDated(ctx, content)
	}
	_, err := s.files.fs.Write(ctx, s.name, content, atoll.WriteOptions{Mode: s.mode, NoClobber: s.exclusive})
	return err
}

// handOverDated stores a file with its time, which only an archive can carry: under a
// temporary name first, since unpacking isn't atomic.
func (s *spool) handOverDated(ctx context.Context, content io.Reader) error {
	target, mode := s.name, cmp.Or(s.mode, 0o644)
	if !s.fresh {
		old, err := s.files.statFile(ctx, s.name)
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
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), handOverTime)
		defer cancel()
		_ = s.files.fs.Remove(late, path.Join(dir, temp), false) // the first error counts
	}
	return err
}

// discard releases the spool's resources.
func (s *spool) discard() {
	s.file.Close()
	s.files.budget.release(s.size)
	s.files.mu.Lock()
	defer s.files.mu.Unlock()
	if s.files.open[s] {
		delete(s.files.open, s)
		s.files.held--
	}
}

// setStat changes a file being written, or a directory. An FS cannot change the mode
// and time of any other file, but setStat succeeds if they are already as wanted.
func (f *fileServer) setStat(r *sftp.Request) error {
	flags, to := r.AttrFlags(), r.Attributes()
	const known = 1 | 2 | 4 | 8 // size, owner, mode, times
	switch {
	case to == nil:
		return atoll.ErrInvalid
	case flags.UidGid || r.Flags&^known != 0:
		return atoll.ErrUnsupported
	}
	if s := f.openSpool(r.Filepath); s != nil {
		return s.setAttributes(flags, to)
	}
	info, err := f.statFile(f.ctx, r.Filepath)
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
		return f.unpackEntry(info.Path, &tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: int64(mode), ModTime: modified}, nil)
	}
	return atoll.ErrUnsupported
}

// outlive returns a context that ends d after ctx has.
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

// A budget bounds the bytes in use at once.
type budget struct {
	mu      sync.Mutex
	limited bool
	left    int64
}

func (b *budget) reserve(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.limited && n > b.left {
		return false
	}
	b.left -= n
	return true
}

func (b *budget) release(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += n
}
