package atoll

import (
	"context"
	"time"
)

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
	Owner *FileOwner `json:"owner,omitempty"`
	// NoFollow changes a link itself instead of its target. A link has no size and no mode to
	// change.
	NoFollow bool `json:"no_follow,omitempty"`
}

// FileTimes are the times of a file.
type FileTimes struct {
	Accessed time.Time `json:"accessed"`
	Modified time.Time `json:"modified"`
}

// FileOwner is the owner of a file.
type FileOwner struct {
	UID int `json:"uid"`
	GID int `json:"gid"`
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
	Total     Bytes `json:"total"`
	Free      Bytes `json:"free"`
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
