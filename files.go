package atoll

import (
	"context"
	"io"
	"iter"
	"time"
)

// An FS is the file system of a running sandbox, as its default user sees it
// from inside; with Caps.Volumes the work directory can also be reached while
// the sandbox is stopped. Names are absolute, or relative to the work
// directory. They are resolved inside the sandbox: neither "..", nor an
// absolute name, nor a symbolic link leads out of it.
//
// Kinds, for all: ErrNotExist, ErrAlreadyExists, ErrDenied, ErrInvalid,
// ErrStopped, ErrNotFound, ErrExhausted (disk full), ErrUnsupported.
type FS interface {
	// Read opens the file for reading from offset; the caller closes it. Links
	// are followed.
	Read(ctx context.Context, name string, offset int64) (io.ReadCloser, FileInfo, error)

	// Write stores r under name, making missing parent directories, and
	// replacing a file that is there at once and as a whole: a reader never
	// sees half of it, and when r fails the old file stays.
	Write(ctx context.Context, name string, r io.Reader, opts WriteOptions) (FileInfo, error)

	// Stat describes name itself: a link is not followed.
	Stat(ctx context.Context, name string) (FileInfo, error)

	// List describes what is in the directory, sorted by path; with recursive
	// also what is in the directories below it. Links are not followed. Hundreds
	// of thousands of entries, or many long paths, may be ErrExhausted; WriteTar
	// brings more.
	List(ctx context.Context, name string, recursive bool) ([]FileInfo, error)

	// Mkdir makes the directory and its missing parents. One that is there is
	// no error.
	Mkdir(ctx context.Context, name string, mode uint32) error

	// Rename moves a file or directory, replacing a file that is there.
	Rename(ctx context.Context, from, to string) error

	// Remove deletes a file, a link or an empty directory; with recursive, a
	// directory and all in it.
	Remove(ctx context.Context, name string, recursive bool) error

	// WriteTar packs the file or directory into w as a tar stream, names
	// relative to it ("." for itself).
	WriteTar(ctx context.Context, name string, w io.Writer) error

	// ReadTar unpacks the tar stream r into the directory, which is made if
	// missing. An entry that would land outside of it is ErrInvalid, and
	// nothing after it is unpacked.
	ReadTar(ctx context.Context, name string, r io.Reader) error

	// Watch yields changes below the directory as they happen, first one
	// FileSynced once it is listening, until the caller breaks off, ctx ends or
	// an error, which is the last pair.
	Watch(ctx context.Context, name string, recursive bool) iter.Seq2[FileEvent, error]
}

// WriteOptions change what FS.Write does.
type WriteOptions struct {
	Mode      uint32 `json:"mode,omitempty"`       // permission bits; 0 means those of the file replaced, else 0644
	NoClobber bool   `json:"no_clobber,omitempty"` // ErrAlreadyExists when the file is there
	// Sync has Write return only when the file, and its name in its directory, are on
	// disk: a machine that loses power then has the old file or the new one, whole. What
	// is not on disk anyway, such as a sandbox's root file system that is kept in memory,
	// is not the safer for it.
	Sync bool `json:"sync,omitempty"`
}

// FileType says what a file is.
type FileType string

// The types of file.
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
	Size     int64     `json:"size"` // bytes, of regular files
	Mode     uint32    `json:"mode"` // permission bits, 0..07777
	UID      int       `json:"uid"`
	GID      int       `json:"gid"`
	Modified time.Time `json:"modified"`
	Target   string    `json:"target,omitempty"` // of a link
}

// FileEvent is one change seen by FS.Watch.
type FileEvent struct {
	Type FileEventType `json:"type"`
	Path string        `json:"path,omitempty"` // absolute
}

// FileEventType says what happened.
type FileEventType string

// The types of file event.
const (
	FileSynced  FileEventType = "synced"
	FileCreated FileEventType = "created"
	FileWritten FileEventType = "written"
	FileRemoved FileEventType = "removed" // or renamed away
	FileChanged FileEventType = "changed" // mode or owner
)

// noFS is the FS of a sandbox that has none.
type noFS struct{ id string }

func (n noFS) err(op string) error { return E(op, n.id, ErrUnsupported, nil) }

func (n noFS) Read(context.Context, string, int64) (io.ReadCloser, FileInfo, error) {
	return nil, FileInfo{}, n.err("read")
}
func (n noFS) Write(context.Context, string, io.Reader, WriteOptions) (FileInfo, error) {
	return FileInfo{}, n.err("write")
}
func (n noFS) Stat(context.Context, string) (FileInfo, error) { return FileInfo{}, n.err("stat") }
func (n noFS) List(context.Context, string, bool) ([]FileInfo, error) {
	return nil, n.err("list")
}
func (n noFS) Mkdir(context.Context, string, uint32) error       { return n.err("mkdir") }
func (n noFS) Rename(context.Context, string, string) error      { return n.err("rename") }
func (n noFS) Remove(context.Context, string, bool) error        { return n.err("remove") }
func (n noFS) WriteTar(context.Context, string, io.Writer) error { return n.err("read") }
func (n noFS) ReadTar(context.Context, string, io.Reader) error  { return n.err("write") }
func (n noFS) Watch(context.Context, string, bool) iter.Seq2[FileEvent, error] {
	return func(yield func(FileEvent, error) bool) { yield(FileEvent{}, n.err("watch")) }
}

// SubFiles returns fs confined to what is below dir, for callers that have to
// stay there although the names they are given, or the processes inside, are
// not to be trusted. The result holds no resources between calls, and needs no
// closing.
//
// dir is absolute or relative to what fs's own names are relative to. It is
// found anew at each call, by following links; from then on the call works on
// that directory, whatever takes its name. It need not be there before: a call
// that does not find it is ErrNotExist, one that finds no directory ErrInvalid.
// No call makes it, moves it or removes it.
//
// Relative names are relative to dir. Absolute ones must be dir, as it is named
// here, or below it. FileInfo.Path and FileEvent.Path are absolute, as ever.
//
// A name that leads out of dir is ErrDenied, for every method, before anything
// is read, made or changed, and without a word of what is there: by "..", as an
// absolute name, or by a symbolic link, be it the last element where links are
// followed, one on the way, one to nothing, or the first of a chain. A relative
// link that leads out leads out, even if it comes back. An absolute link to dir
// or below it is followed. Stat, Rename and Remove do not follow a link that is
// the last element: that one may lead anywhere. So may links that ReadTar makes.
//
// This is no check that comes before: nothing outside of dir is read, created or
// changed, whatever a process does at the same moment, such as putting links
// where directories were. What is below dir is what can be found there; that is
// a hard link to a file elsewhere, too, a mount, or a directory that is moved
// out while a call is at work in it.
//
// Each method of the result is ErrUnsupported where fs is no SubFS.
func SubFiles(fs FS, dir string) FS {
	if s, ok := fs.(SubFS); ok {
		return s.Sub(dir)
	}
	return noFS{dir}
}

// Sub implements SubFS: there is still none.
func (n noFS) Sub(string) FS { return n }

var _ SubFS = noFS{}
