package sshd

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"sync"
	"time"

	"github.com/pkg/sftp"

	"github.com/seed46cd37a8/atoll"
)

// maxFiles is how many files and directories one sftp session may have open.
const maxFiles = 64

// sftp is the program that serves the sandbox's files.
func (s *session) sftp(ctx context.Context) (atoll.Exit, error) {
	sb, err := s.conn.sandbox(ctx)
	if err != nil {
		return atoll.Exit{}, err
	}
	s.conn.log.InfoContext(ctx, "ssh: session", "what", "sftp", "sandbox", sb.ID())
	f := &files{ctx: ctx, fs: atoll.Files(sb), spool: s.conn.server.opts.Spool, budget: &s.conn.spooled, open: map[*spool]bool{}}
	work, err := f.fs.Stat(ctx, ".")
	if err != nil {
		return atoll.Exit{}, err
	}
	defer context.AfterFunc(ctx, func() { _ = s.ch.Close() })()
	handlers := sftp.Handlers{FileGet: f, FilePut: f, FileCmd: f, FileList: f}
	err = sftp.NewRequestServer(newLockstep(s.ch), handlers, sftp.WithStartDirectory(work.Path)).Serve()
	if err == io.EOF {
		err = nil
	}
	return atoll.Exit{}, err
}

// files is a sandbox's file system as sftp wants it. What an FS cannot do is
// SSH_FX_OP_UNSUPPORTED: owners, hard links, the free space, and modes and times
// of files that are not being written.
type files struct {
	ctx    context.Context
	fs     atoll.FS
	spool  string // the directory for files that are being written
	budget *budget

	mu   sync.Mutex
	held int             // handles
	open map[*spool]bool // files that are being written
}

// take counts in a handle, give counts it out.
func (f *files) take() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held == maxFiles {
		return errors.New("too many files are open")
	}
	f.held++
	return nil
}

func (f *files) give() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held--
}

// status turns an error into one that the library has a code for.
func status(err error) error {
	switch atoll.KindOf(err) {
	case "":
		return nil
	case atoll.ErrNotExist, atoll.ErrNotFound:
		return sftp.ErrSSHFxNoSuchFile
	case atoll.ErrDenied:
		return sftp.ErrSSHFxPermissionDenied
	case atoll.ErrUnsupported:
		return sftp.ErrSSHFxOpUnsupported
	}
	return errors.New(err.Error()) // a failure, in words; an errno in err would be taken for another
}

var errExists = errors.New("it is there already")

// Fileread implements sftp.FileReader.
func (f *files) Fileread(r *sftp.Request) (io.ReaderAt, error) {
	if err := f.take(); err != nil {
		return nil, err
	}
	rd := &reader{files: f, name: r.Filepath}
	if err := rd.seek(0); err != nil {
		f.give()
		return nil, status(err)
	}
	return rd, nil
}

// Filewrite implements sftp.FileWriter.
func (f *files) Filewrite(r *sftp.Request) (io.WriterAt, error) { return f.OpenFile(r) }

// OpenFile implements sftp.OpenFileWriter.
func (f *files) OpenFile(r *sftp.Request) (sftp.WriterAtReaderAt, error) {
	if err := f.take(); err != nil {
		return nil, err
	}
	s, err := f.newSpool(r.Filepath, r.Pflags(), r.Attrs)
	if err != nil {
		f.give()
		return nil, status(err)
	}
	return s, nil
}

// Filecmd implements sftp.FileCmder.
func (f *files) Filecmd(r *sftp.Request) error {
	switch r.Method {
	case "Mkdir":
		return status(f.mkdir(r.Filepath))
	case "Rename":
		if _, err := f.fs.Stat(f.ctx, r.Target); err == nil {
			return errExists
		}
		return f.PosixRename(r)
	case "Remove":
		return status(f.remove(r.Filepath, false))
	case "Rmdir":
		return status(f.remove(r.Filepath, true))
	case "Symlink":
		return status(f.symlink(r.Filepath, r.Target))
	case "Setstat":
		return status(f.setstat(r))
	}
	return sftp.ErrSSHFxOpUnsupported
}

// PosixRename implements sftp.PosixRenameFileCmder.
func (f *files) PosixRename(r *sftp.Request) error {
	return status(f.fs.Rename(f.ctx, r.Filepath, r.Target))
}

// mkdir makes a directory, but neither its parents nor one that is there, which
// an FS would do.
func (f *files) mkdir(name string) error {
	if err := f.vacant(name); err != nil {
		return err
	}
	return f.fs.Mkdir(f.ctx, name, 0)
}

// vacant reports whether something can be made under name: there is nothing, and
// there is a directory for it.
func (f *files) vacant(name string) error {
	if _, err := f.fs.Stat(f.ctx, name); !errors.Is(err, atoll.ErrNotExist) {
		if err == nil {
			err = errExists
		}
		return err
	}
	parent, err := f.stat(path.Dir(name))
	if err == nil && parent.Type != atoll.TypeDirectory {
		err = atoll.ErrNotExist
	}
	return err
}

// remove deletes a directory that is empty, or anything else, as the client says.
func (f *files) remove(name string, dir bool) error {
	info, err := f.fs.Stat(f.ctx, name)
	if err != nil {
		return err
	}
	if isDir := info.Type == atoll.TypeDirectory; isDir != dir {
		if dir {
			return errors.New("it is no directory")
		}
		return errors.New("it is a directory")
	}
	return f.fs.Remove(f.ctx, name, false)
}

// symlink makes a link, by the one way in which an FS takes one: in an archive.
func (f *files) symlink(target, name string) error {
	if err := f.vacant(name); err != nil {
		return err
	}
	return f.unpack(path.Dir(name), &tar.Header{Typeflag: tar.TypeSymlink, Name: path.Base(name), Linkname: target, Mode: 0o777}, nil)
}

// unpack puts one entry into a directory that is there.
func (f *files) unpack(dir string, h *tar.Header, content io.Reader) error {
	return f.unpackWithin(f.ctx, dir, h, content)
}

func (f *files) unpackWithin(ctx context.Context, dir string, h *tar.Header, content io.Reader) error {
	r, w := io.Pipe()
	var packing sync.WaitGroup
	defer packing.Wait()
	defer r.Close()
	packing.Go(func() {
		tw := tar.NewWriter(w)
		err := tw.WriteHeader(h)
		if err == nil && content != nil {
			_, err = io.Copy(tw, content)
		}
		if err == nil {
			err = tw.Close()
		}
		w.CloseWithError(err)
	})
	return f.fs.ReadTar(ctx, dir, r)
}

// stat follows links, which an FS does not.
func (f *files) stat(name string) (atoll.FileInfo, error) {
	const maxLinks = 40
	for range maxLinks {
		info, err := f.fs.Stat(f.ctx, name)
		if err != nil || info.Type != atoll.TypeSymlink {
			return info, err
		}
		to := info.Target
		if !path.IsAbs(to) {
			to = path.Dir(name) + "/" + to // not cleaned: what is before ".." may be a link
		}
		name = to
	}
	return atoll.FileInfo{}, errors.New("too many links lead to each other")
}

// Filelist implements sftp.FileLister, for List and Stat.
func (f *files) Filelist(r *sftp.Request) (sftp.ListerAt, error) {
	if r.Method == "Stat" {
		return f.one(f.statOpen(r.Filepath))
	}
	if err := f.take(); err != nil {
		return nil, err
	}
	all, err := f.fs.List(f.ctx, r.Filepath, false)
	if err != nil {
		f.give()
		return nil, status(err)
	}
	return &listing{list: all, files: f}, nil
}

// Lstat implements sftp.LstatFileLister.
func (f *files) Lstat(r *sftp.Request) (sftp.ListerAt, error) {
	return f.one(f.fs.Stat(f.ctx, r.Filepath))
}

// statOpen is stat, of a file that is being written as it will be.
func (f *files) statOpen(name string) (atoll.FileInfo, error) {
	if s := f.writing(name); s != nil {
		return s.info(), nil
	}
	return f.stat(name)
}

func (f *files) one(info atoll.FileInfo, err error) (sftp.ListerAt, error) {
	if err != nil {
		return nil, status(err)
	}
	return list{info}, nil
}

// Readlink implements sftp.ReadlinkFileLister.
func (f *files) Readlink(name string) (string, error) {
	info, err := f.fs.Stat(f.ctx, name)
	if err == nil && info.Type != atoll.TypeSymlink {
		err = errors.New("it is no link")
	}
	return info.Target, status(err)
}

// A list answers with some of what is in it.
type list []atoll.FileInfo

// ListAt implements sftp.ListerAt.
func (l list) ListAt(to []os.FileInfo, offset int64) (n int, err error) {
	for ; n < len(to); n++ {
		if offset+int64(n) >= int64(len(l)) {
			return n, io.EOF
		}
		to[n] = fileInfo{l[offset+int64(n)]}
	}
	return n, nil
}

// A listing is an open directory.
type listing struct {
	list
	files *files
}

// Close implements io.Closer.
func (l *listing) Close() error {
	l.files.give()
	return nil
}

// A fileInfo is an fs.FileInfo.
type fileInfo struct{ info atoll.FileInfo }

func (i fileInfo) Name() string       { return i.info.Name }
func (i fileInfo) Size() int64        { return i.info.Size }
func (i fileInfo) ModTime() time.Time { return i.info.Modified }
func (i fileInfo) IsDir() bool        { return i.info.Type == atoll.TypeDirectory }
func (i fileInfo) Sys() any           { return nil }
func (i fileInfo) Uid() uint32        { return uint32(i.info.UID) } // which the library asks for under this name
func (i fileInfo) Gid() uint32        { return uint32(i.info.GID) }

// Mode implements fs.FileInfo.
func (i fileInfo) Mode() fs.FileMode {
	mode := fs.FileMode(i.info.Mode & 0o777)
	for bit, flag := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if i.info.Mode&bit != 0 {
			mode |= flag
		}
	}
	switch i.info.Type {
	case atoll.TypeDirectory:
		mode |= fs.ModeDir
	case atoll.TypeSymlink:
		mode |= fs.ModeSymlink
	case atoll.TypeOther:
		mode |= fs.ModeIrregular
	}
	return mode
}

var (
	_ sftp.FileReader           = (*files)(nil)
	_ sftp.OpenFileWriter       = (*files)(nil)
	_ sftp.PosixRenameFileCmder = (*files)(nil)
	_ sftp.LstatFileLister      = (*files)(nil)
	_ sftp.ReadlinkFileLister   = (*files)(nil)
	_ sftp.FileInfoUidGid       = fileInfo{}
)
