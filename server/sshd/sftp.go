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

// maxFiles is the most files and directories that one sftp session may have open.
const maxFiles = 64

// serveSFTP is the program that serves the sandbox's files.
func (s *session) serveSFTP(ctx context.Context) (atoll.Exit, error) {
	sb, err := s.conn.findSandbox(ctx)
	if err != nil {
		return atoll.Exit{}, err
	}
	s.conn.log.InfoContext(ctx, "ssh: session", "what", "sftp", "sandbox", sb.ID())
	f := &fileServer{ctx: ctx, fs: atoll.Files(sb), spool: s.conn.server.opts.Spool, budget: &s.conn.spooled, open: map[*spool]bool{}}
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

// fileServer adapts a sandbox's file system to the sftp library. Features that an FS
// lacks are SSH_FX_OP_UNSUPPORTED: owners, hard links, the free space, and changes of
// modes and times of files that are not being written.
type fileServer struct {
	ctx    context.Context
	fs     atoll.FS
	spool  string // the directory for files being written
	budget *budget

	mu   sync.Mutex
	held int             // open handles
	open map[*spool]bool // files being written
}

// takeHandle counts an opened handle, giveHandle a closed one.
func (f *fileServer) takeHandle() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held == maxFiles {
		return errors.New("too many files are open")
	}
	f.held++
	return nil
}

func (f *fileServer) giveHandle() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held--
}

// statusOf turns an error into one that the library has a code for.
func statusOf(err error) error {
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
	return errors.New(err.Error()) // a failure with a text; the library would report an errno in err as another code
}

var errExists = errors.New("file exists")

// Fileread implements sftp.FileReader.
func (f *fileServer) Fileread(r *sftp.Request) (io.ReaderAt, error) {
	if err := f.takeHandle(); err != nil {
		return nil, err
	}
	rd := &reader{files: f, name: r.Filepath}
	if err := rd.openStream(0); err != nil {
		f.giveHandle()
		return nil, statusOf(err)
	}
	return rd, nil
}

// Filewrite implements sftp.FileWriter.
func (f *fileServer) Filewrite(r *sftp.Request) (io.WriterAt, error) { return f.OpenFile(r) }

// OpenFile implements sftp.OpenFileWriter.
func (f *fileServer) OpenFile(r *sftp.Request) (sftp.WriterAtReaderAt, error) {
	if err := f.takeHandle(); err != nil {
		return nil, err
	}
	s, err := f.newSpool(r.Filepath, r.Pflags(), r.Attrs)
	if err != nil {
		f.giveHandle()
		return nil, statusOf(err)
	}
	return s, nil
}

// Filecmd implements sftp.FileCmder.
func (f *fileServer) Filecmd(r *sftp.Request) error {
	switch r.Method {
	case "Mkdir":
		return statusOf(f.makeDir(r.Filepath))
	case "Rename":
		if _, err := f.fs.Stat(f.ctx, r.Target); err == nil {
			return errExists
		}
		return f.PosixRename(r)
	case "Remove":
		return statusOf(f.removeFile(r.Filepath, false))
	case "Rmdir":
		return statusOf(f.removeFile(r.Filepath, true))
	case "Symlink":
		return statusOf(f.makeLink(r.Filepath, r.Target))
	case "Setstat":
		return statusOf(f.setStat(r))
	}
	return sftp.ErrSSHFxOpUnsupported
}

// PosixRename implements sftp.PosixRenameFileCmder.
func (f *fileServer) PosixRename(r *sftp.Request) error {
	return statusOf(f.fs.Rename(f.ctx, r.Filepath, r.Target))
}

// makeDir makes a directory. Unlike an FS, it neither makes parents nor accepts an
// existing directory.
func (f *fileServer) makeDir(name string) error {
	if err := f.checkVacant(name); err != nil {
		return err
	}
	return f.fs.Mkdir(f.ctx, name, 0)
}

// checkVacant returns an error unless name is free, and its parent is a directory.
func (f *fileServer) checkVacant(name string) error {
	if _, err := f.fs.Stat(f.ctx, name); !errors.Is(err, atoll.ErrNotExist) {
		if err == nil {
			err = errExists
		}
		return err
	}
	parent, err := f.statFile(f.ctx, path.Dir(name))
	if err == nil && parent.Type != atoll.TypeDirectory {
		err = atoll.ErrNotExist
	}
	return err
}

// removeFile deletes an empty directory if dir is set, else anything but a directory.
func (f *fileServer) removeFile(name string, dir bool) error {
	info, err := f.fs.Stat(f.ctx, name)
	if err != nil {
		return err
	}
	if isDir := info.Type == atoll.TypeDirectory; isDir != dir {
		if dir {
			return errors.New("not a directory")
		}
		return errors.New("is a directory")
	}
	return f.fs.Remove(f.ctx, name, false)
}

// makeLink makes a symlink. An FS only takes links in an archive.
func (f *fileServer) makeLink(target, name string) error {
	if err := f.checkVacant(name); err != nil {
		return err
	}
	return f.unpackEntry(path.Dir(name), &tar.Header{Typeflag: tar.TypeSymlink, Name: path.Base(name), Linkname: target, Mode: 0o777}, nil)
}

// unpackEntry unpacks one entry into an existing directory.
func (f *fileServer) unpackEntry(dir string, h *tar.Header, content io.Reader) error {
	return f.unpackWithin(f.ctx, dir, h, content)
}

func (f *fileServer) unpackWithin(ctx context.Context, dir string, h *tar.Header, content io.Reader) error {
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

// statFile follows links, which an FS doesn't.
func (f *fileServer) statFile(ctx context.Context, name string) (atoll.FileInfo, error) {
	const maxLinks = 40
	for range maxLinks {
		info, err := f.fs.Stat(ctx, name)
		if err != nil || info.Type != atoll.TypeSymlink {
			return info, err
		}
		to := info.Target
		if !path.IsAbs(to) {
			to = path.Dir(name) + "/" + to // not cleaned: the part before ".." may be a link
		}
		name = to
	}
	return atoll.FileInfo{}, errors.New("too many levels of symbolic links")
}

// Filelist implements sftp.FileLister, for List and Stat.
func (f *fileServer) Filelist(r *sftp.Request) (sftp.ListerAt, error) {
	if r.Method == "Stat" {
		return f.singleInfo(f.statOpen(r.Filepath))
	}
	if err := f.takeHandle(); err != nil {
		return nil, err
	}
	all, err := f.fs.List(f.ctx, r.Filepath, false)
	if err != nil {
		f.giveHandle()
		return nil, statusOf(err)
	}
	return &listing{list: all, files: f}, nil
}

// Lstat implements sftp.LstatFileLister.
func (f *fileServer) Lstat(r *sftp.Request) (sftp.ListerAt, error) {
	return f.singleInfo(f.fs.Stat(f.ctx, r.Filepath))
}

// statOpen is statFile, but describes a file being written in its future state.
func (f *fileServer) statOpen(name string) (atoll.FileInfo, error) {
	if s := f.openSpool(name); s != nil {
		return s.futureInfo(), nil
	}
	return f.statFile(f.ctx, name)
}

func (f *fileServer) singleInfo(info atoll.FileInfo, err error) (sftp.ListerAt, error) {
	if err != nil {
		return nil, statusOf(err)
	}
	return list{info}, nil
}

// Readlink implements sftp.ReadlinkFileLister.
func (f *fileServer) Readlink(name string) (string, error) {
	info, err := f.fs.Stat(f.ctx, name)
	if err == nil && info.Type != atoll.TypeSymlink {
		err = errors.New("not a link")
	}
	return info.Target, statusOf(err)
}

// A list serves its elements by offset.
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
	files *fileServer
}

// Close implements io.Closer.
func (l *listing) Close() error {
	l.files.giveHandle()
	return nil
}

// A fileInfo is an fs.FileInfo.
type fileInfo struct{ info atoll.FileInfo }

func (i fileInfo) Name() string       { return i.info.Name }
func (i fileInfo) Size() int64        { return i.info.Size }
func (i fileInfo) ModTime() time.Time { return i.info.Modified }
func (i fileInfo) IsDir() bool        { return i.info.Type == atoll.TypeDirectory }
func (i fileInfo) Sys() any           { return nil }
func (i fileInfo) Uid() uint32        { return uint32(i.info.UID) } // the library requires this name
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
	_ sftp.FileReader           = (*fileServer)(nil)
	_ sftp.OpenFileWriter       = (*fileServer)(nil)
	_ sftp.PosixRenameFileCmder = (*fileServer)(nil)
	_ sftp.LstatFileLister      = (*fileServer)(nil)
	_ sftp.ReadlinkFileLister   = (*fileServer)(nil)
	_ sftp.FileInfoUidGid       = fileInfo{}
)
