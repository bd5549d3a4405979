package atoll

import (
	"context"
	"io"
	"iter"
	"time"
)

// An FS is the file system of a running sandbox, as the sandbox's default user sees it from
// inside. With Caps.Volumes, the work directory is also accessible while the sandbox is stopped.
// Names are absolute, or relative to the work directory. An FS resolves them inside the sandbox:
// neither "..", nor an absolute name, nor a symbolic link leads out of it.
//
// All methods return these kinds of error: ErrNotExist, ErrAlreadyExists, ErrDenied, ErrInvalid,
// ErrStopped, ErrNotFound, ErrExhausted (disk full), ErrUnsupported.
type FS interface {
	// Read opens the file for reading from offset. It follows links. The caller must close the
	// reader.
	Read(ctx context.Context, name string, offset int64) (io.ReadCloser, FileInfo, error)

	// Write stores r under name. It creates missing parent directories, and replaces an existing
	// file atomically: a reader never sees a part of the new file, and the old file stays if
	// reading r fails.
	Write(ctx context.Context, name string, r io.Reader, opts WriteOptions) (FileInfo, error)

	// Stat describes name. It does not follow a link.
	Stat(ctx context.Context, name string) (FileInfo, error)

	// List describes the entries of the directory, sorted by path. With recursive, it includes
	// the entries of all directories below. It does not follow links. A listing of hundreds of
	// thousands of entries, or of many long paths, may fail with ErrExhausted; WriteTar has no
	// such limit.
	List(ctx context.Context, name string, recursive bool) ([]FileInfo, error)

	// Mkdir creates the directory and its missing parents. It does nothing if the directory
	// exists.
	Mkdir(ctx context.Context, name string, mode uint32) error

	// Rename moves a file or directory. It replaces an existing file.
	Rename(ctx context.Context, from, to string) error

	// Remove deletes a file, a link or an empty directory. With recursive, it deletes a directory
	// and everything in it.
	Remove(ctx context.Context, name string, recursive bool) error

	// WriteTar writes the file or directory to w as a tar stream. Names in the stream are
	// relative to name, which itself is ".".
	WriteTar(ctx context.Context, name string, w io.Writer) error

	// ReadTar unpacks the tar stream r into the directory, and creates the directory if
	// necessary. An entry that would land outside of the directory is ErrInvalid; ReadTar unpacks
	// nothing after it.
	ReadTar(ctx context.Context, name string, r io.Reader) error

	// Watch yields the changes below the directory as they happen. The first event is FileSynced,
	// when the watch has begun. The sequence ends when the caller breaks out of the loop, when
	// ctx ends, or with an error as its last pair.
	Watch(ctx context.Context, name string, recursive bool) iter.Seq2[FileEvent, error]
}

// WriteOptions are the options of FS.Write.
type WriteOptions struct {
	Mode      uint32 `json:"mode,omitempty"`       // permission bits; 0 means those of the replaced file, or 0644 for a new one
	NoClobber bool   `json:"no_clobber,omitempty"` // fail with ErrAlreadyExists if the file exists
	// Sync makes Write wait until the file and its directory entry are on disk. After a power
	// failure, the machine then has either the old file or the new one, complete. Sync has no
	// effect on a file system in memory, such as the root file system of some sandboxes.
	Sync bool `json:"sync,omitempty"`
}

// FileType is the type of a file.
type FileType string

// The types of files.
const (
	TypeFile      FileType = "file"
	TypeDirectory FileType = "directory"
	TypeSymlink   FileType = "symlink"
	TypeOther     FileType = "other" // device, socket, pipe
)

// FileInfo describes a file.
type FileInfo struct {
	Name     string    `json:"name"` // base name
	Path     string    `json:"path"` // absolute, inside the sandbox
	Type     FileType  `json:"type"`
	Size     int64     `json:"size"` // in bytes; regular files only
	Mode     uint32    `json:"mode"` // permission bits, 0..07777
	UID      int       `json:"uid"`
	GID      int       `json:"gid"`
	Modified time.Time `json:"modified"`
	Changed  time.Time `json:"changed,omitzero"` // when the content, mode, owner or name changed; zero if unknown
	Inode    uint64    `json:"inode,omitempty"`  // number of the file on its file system; 0 if unknown or not permanent
	Target   string    `json:"target,omitempty"` // of a symbolic link
}

// FileEvent is one change seen by FS.Watch.
type FileEvent struct {
	Type FileEventType `json:"type"`
	Path string        `json:"path,omitempty"` // absolute
}

// FileEventType is the type of a FileEvent.
type FileEventType string

// The types of file events.
const (
	FileSynced  FileEventType = "synced" // the watch has begun
	FileCreated FileEventType = "created"
	FileWritten FileEventType = "written"
	FileRemoved FileEventType = "removed" // removed, or renamed to another name
	FileChanged FileEventType = "changed" // the mode or the owner changed
)

// noFS is the FS of a sandbox without file access. All methods fail with ErrUnsupported.
type noFS struct{ id string }

func (n noFS) unsupportedError(op string) error { return E(op, n.id, ErrUnsupported, nil) }

func (n noFS) Read(context.Context, string, int64) (io.ReadCloser, FileInfo, error) {
	return nil, FileInfo{}, n.unsupportedError("read")
}
func (n noFS) Write(context.Context, string, io.Reader, WriteOptions) (FileInfo, error) {
	return FileInfo{}, n.unsupportedError("write")
}
func (n noFS) Stat(context.Context, string) (FileInfo, error) {
	return FileInfo{}, n.unsupportedError("stat")
}
func (n noFS) List(context.Context, string, bool) ([]FileInfo, error) {
	return nil, n.unsupportedError("list")
}
func (n noFS) Mkdir(context.Context, string, uint32) error       { return n.unsupportedError("mkdir") }
func (n noFS) Rename(context.Context, string, string) error      { return n.unsupportedError("rename") }
func (n noFS) Remove(context.Context, string, bool) error        { return n.unsupportedError("remove") }
func (n noFS) WriteTar(context.Context, string, io.Writer) error { return n.unsupportedError("read") }
func (n noFS) ReadTar(context.Context, string, io.Reader) error  { return n.unsupportedError("write") }
func (n noFS) Watch(context.Context, string, bool) iter.Seq2[FileEvent, error] {
	return func(yield func(FileEvent, error) bool) { yield(FileEvent{}, n.unsupportedError("watch")) }
}

// SubFiles returns an FS confined to the directory dir of fs. It is for callers that must stay
// below dir although they trust neither the names that they receive nor the processes in the
// sandbox. The result holds no resources between calls and needs no closing.
//
// dir is absolute, or relative to the base of fs's own names. Each call looks dir up again and
// follows links. The call then works on that directory, even if something else takes its name.
// dir need not exist when SubFiles is called. A call fails with ErrNotExist if dir does not
// exist, and with ErrInvalid if it is not a directory. No call creates, moves or removes dir
// itself.
//
// Relative names are relative to dir. Absolute names must be dir, as passed here, or below it.
// FileInfo.Path and FileEvent.Path are absolute, as in any FS.
//
// All methods fail with ErrDenied if a name leads out of dir, by "..", as an absolute name, or by
// a symbolic link. This applies to a link as the last element where the method follows links, to
// a link on the way, to a dangling link and to the first of a chain of links. The method fails
// before it reads, creates or changes anything, and its error does not tell what exists outside.
// A relative link that leads out is denied even if it leads back in. An absolute link to dir or
// below it is followed. Stat, Rename and Remove do not follow a link that is the last element, so
// that one may lead anywhere. Links that ReadTar creates may lead anywhere, too.
//
// The confinement is not a check before the access: nothing outside of dir is read, created or
// changed even if a process replaces directories by links at the same moment. Everything
// reachable below dir counts as inside. This includes hard links to files elsewhere, mounts, and
// a directory that a process moves out while a call works in it.
//
// If fs is not a SubFS, all methods of the result fail with ErrUnsupported.
func SubFiles(fs FS, dir string) FS {
	if s, ok := fs.(SubFS); ok {
		return s.Sub(dir)
	}
	return noFS{dir}
}

// Sub implements SubFS. The result fails as n does.
func (n noFS) Sub(string) FS { return n }

var _ SubFS = noFS{}
