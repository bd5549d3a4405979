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
	// relative to name, which itself is ".". Holes of files are in the stream as holes, in the
	// format of GNU tar. For each pipe, socket, device or extended attribute that it leaves out,
	// the stream has a global header with the comment "left out: WHAT: NAME".
	WriteTar(ctx context.Context, name string, w io.Writer) error

	// ReadTar unpacks the tar stream r into the directory, and creates the directory if
	// necessary. It makes the holes that files have in the stream. An entry that would land
	// outside of the directory is ErrInvalid; ReadTar unpacks nothing after it.
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
	Name     string    `json:"name"`             // base name
	Path     string    `json:"path"`             // absolute, inside the sandbox
	Type     FileType  `json:"type"`             // whether it is a file, a directory or another thing
	Size     int64     `json:"size"`             // in bytes; regular files only
	Mode     uint32    `json:"mode"`             // permission bits, 0..07777
	UID      int       `json:"uid"`              // number of its user
	GID      int       `json:"gid"`              // number of its group
	Modified time.Time `json:"modified"`         // the last change of the content
	Changed  time.Time `json:"changed,omitzero"` // when the content, mode, owner or name changed; zero if unknown
	Inode    uint64    `json:"inode,omitempty"`  // number of the file on its file system; 0 if unknown or not permanent
	Target   string    `json:"target,omitempty"` // of a symbolic link
}

// FileEvent is one change seen by FS.Watch.
type FileEvent struct {
	Type FileEventType `json:"type"`           // kind of change
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

// An Editor is an FS that changes files in place. The FS of a sandbox with Caps.Files implements it,
// and so does the result of Sub. Its methods return the kinds of error of an FS.
type Editor interface {
	// Open implements OpenFile for this FS.
	Open(ctx context.Context, name string, opts OpenOptions) (File, error)
	// Change implements ChangeFile for this FS.
	Change(ctx context.Context, name string, change FileChange) error
	// Link implements LinkFile for this FS.
	Link(ctx context.Context, from, to string) error
	// Space implements SpaceOf for this FS.
	Space(ctx context.Context, name string) (Space, error)
}

// OpenOptions are the options of OpenFile. At least one of Read and Write must be set.
type OpenOptions struct {
	Read      bool   `json:"read,omitempty"`
	Write     bool   `json:"write,omitempty"`
	Append    bool   `json:"append,omitempty"`    // writes go to the end of the file, at any offset; needs Write
	Create    bool   `json:"create,omitempty"`    // create a missing file, but not its directory
	Exclusive bool   `json:"exclusive,omitempty"` // fail with ErrAlreadyExists if the file exists; needs Create
	Truncate  bool   `json:"truncate,omitempty"`  // remove the content; needs Write
	Mode      uint32 `json:"mode,omitempty"`      // permission bits of a created file; 0 means 0644
}

// Check returns an ErrInvalid for options that contradict each other.
func (o OpenOptions) Check(name string) error {
	switch {
	case !o.Read && !o.Write:
		return Errorf("open", name, ErrInvalid, "open it for reading, writing or both")
	case !o.Write && (o.Append || o.Truncate):
		return Errorf("open", name, ErrInvalid, "appending and truncating need write access")
	case o.Exclusive && !o.Create:
		return Errorf("open", name, ErrInvalid, "exclusive needs create")
	}
	return nil
}

// FileChange describes changes of the attributes of a file. An attribute that is nil stays.
type FileChange struct {
	Size  *int64     `json:"size,omitempty"`  // of a regular file; new bytes are zero
	Mode  *uint32    `json:"mode,omitempty"`  // permission bits
	Times *FileTimes `json:"times,omitempty"` // precise to a microsecond at least
	Owner *FileOwner `json:"owner,omitempty"` // the new owner
	// NoFollow changes a link itself instead of its target. A link has no size and no mode to
	// change.
	NoFollow bool `json:"no_follow,omitempty"`
}

// FileTimes are the times of a file.
type FileTimes struct {
	Accessed time.Time `json:"accessed"` // the last access
	Modified time.Time `json:"modified"` // the last change of the content
}

// FileOwner is the owner of a file.
type FileOwner struct {
	UID int `json:"uid"` // number of the user
	GID int `json:"gid"` // number of the group
}

// A File is an open regular file. It stays the same file if another file takes its name, and if it
// has no name any more. Its methods are safe for concurrent use.
type File interface {
	// ReadAt reads len(p) bytes at offset. If it returns fewer, the error says why: io.EOF at the
	// end of the file. It fails with ErrDenied if the file is not open for reading.
	ReadAt(ctx context.Context, p []byte, offset int64) (int, error)
	// WriteAt writes p at offset, or at the end of the file with OpenOptions.Append. If it returns
	// less than len(p), the error says why. Every process sees the bytes at once. It fails with
	// ErrDenied if the file is not open for writing.
	WriteAt(ctx context.Context, p []byte, offset int64) (int, error)
	// Stat describes the file under the name with which it was opened.
	Stat(ctx context.Context) (FileInfo, error)
	// Change changes the attributes of the file, as ChangeFile does.
	Change(ctx context.Context, change FileChange) error
	// Sync waits until the content is on disk.
	Sync(ctx context.Context) error
	// Close releases the file. A second call does nothing.
	Close() error
}

// Space is the space of a file system.
type Space struct {
	Total     Bytes `json:"total"`      // size of the file system
	Free      Bytes `json:"free"`       // bytes that the user can still write
	Available Bytes `json:"available"`  // to users other than root
	Files     int64 `json:"files"`      // the most files; 0 if the file system has no such limit
	FilesFree int64 `json:"files_free"` // how many more files fit
}

// OpenFile opens the regular file name. It follows links. The caller must close the file, which uses
// a connection until then; ctx bounds only the opening. A write changes the file itself: programs
// that have the file open, and its other names, see the change. Use FS.Write to replace a file
// atomically. If fs is not an Editor, OpenFile fails with ErrUnsupported, as do ChangeFile, LinkFile
// and SpaceOf.
func OpenFile(ctx context.Context, fs FS, name string, opts OpenOptions) (File, error) {
	if err := opts.Check(name); err != nil {
		return nil, err
	}
	if e, ok := fs.(Editor); ok {
		return e.Open(ctx, name, opts)
	}
	return nil, notEditable("open", name)
}

// ChangeFile changes attributes of a file or directory. It follows a link unless change.NoFollow is
// set. It changes the size, the mode, the times and the owner in that order, also after a failure,
// and returns the first error. Bits of the mode that the FS does not store, such as set-user-ID on
// directories of the host, fail with ErrUnsupported.
func ChangeFile(ctx context.Context, fs FS, name string, change FileChange) error {
	if e, ok := fs.(Editor); ok {
		return e.Change(ctx, name, change)
	}
	return notEditable("change", name)
}

// LinkFile gives the file from the further name to. It does not follow a link at from, and fails with
// ErrAlreadyExists if to exists.
func LinkFile(ctx context.Context, fs FS, from, to string) error {
	if e, ok := fs.(Editor); ok {
		return e.Link(ctx, from, to)
	}
	return notEditable("link", from)
}

// SpaceOf returns the space of the file system that has name.
func SpaceOf(ctx context.Context, fs FS, name string) (Space, error) {
	if e, ok := fs.(Editor); ok {
		return e.Space(ctx, name)
	}
	return Space{}, notEditable("space", name)
}

func notEditable(op, name string) error {
	return Errorf(op, name, ErrUnsupported, "these files cannot be changed in place: write the whole file")
}
