package filesync

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/seed46cd37a8/atoll"
)

// Version is the version of state files.
const Version = "1.0"

// Names of state files: of the file in the directory and beside each version in the
// bucket, and of a temporary file while it is written.
const (
	StateName    = ".sandbox-state"
	stateTmpName = StateName + ".tmp"
)

// A State is a state file: the content of a directory, and of its copy in a bucket.
type State struct {
	Version    string `json:"version"`
	LastSynced int64  `json:"last_synced_at"` // Unix seconds, by the clock of the files
	// SyncedNanos holds the nanoseconds of LastSynced. State files of other programs
	// lack it.
	SyncedNanos int64 `json:"last_synced_ns,omitempty"`
	// Push is the unique id of the push that made the state; "" in state files of other
	// programs.
	Push string `json:"push,omitempty"`
	// Sorted tells that Files are in order of their paths' bytes, each path once.
	Sorted bool `json:"sorted,omitempty"`
	// NoModes tells that the directory's file system does not keep modes. Only state
	// files in directories have it.
	NoModes bool   `json:"no_modes,omitempty"`
	Files   []File `json:"files"`
}

// A File is an entry of a state file. Size, checksum and time describe regular files;
// those of a link describe the text of its target, those of a directory nothing.
type File struct {
	Path     string // relative to the directory, clean, elements between slashes
	Checksum MD5
	Size     int64 // bytes
	Modified int64 // Unix seconds

	// State files of other programs lack the following fields.

	Nanos  int64          // nanoseconds of Modified; unknownNanos if missing
	Type   atoll.FileType // "" is TypeFile
	Mode   uint32         // permission bits
	Target string         // of a link
	SHA256 SHA256
	Object string // the object in the bucket that holds the bytes; "" without bytes
	Offset int64  // where they begin in it

	// Only state files in directories have the following fields.

	changed int64  // Unix nanoseconds of atoll.FileInfo.Changed; 0 if unknown
	inode   uint64 // 0 if unknown
	here    uint32 // mode of the directory's file, if that cannot have Mode; else 0
	mark    mark
}

// MD5 and SHA256 are checksums, written in lower-case hexadecimal. The zero value means
// none.
type (
	MD5    [16]byte
	SHA256 [32]byte
)

// String returns the checksum in hexadecimal.
func (m MD5) String() string { return hex.EncodeToString(m[:]) }

// String returns the checksum in hexadecimal.
func (s SHA256) String() string { return hex.EncodeToString(s[:]) }

// fileType returns the type of f, with TypeFile for "".
func (f *File) fileType() atoll.FileType {
	if f.Type == "" {
		return atoll.TypeFile
	}
	return f.Type
}

// isRegular reports whether f is a regular file.
func (f *File) isRegular() bool { return f.fileType() == atoll.TypeFile }

// sameEntry reports whether f and g are equal except for their times and the location
// of their bytes.
func (f *File) sameEntry(g *File) bool {
	return f.fileType() == g.fileType() && f.Target == g.Target && f.sameMode(g.Mode) && (!f.isRegular() || f.sameBytes(g))
}

// sameBytes compares checksums: also SHA-256 if both have it, since MD5 proves nothing.
func (f *File) sameBytes(g *File) bool {
	return f.Size == g.Size && f.Checksum == g.Checksum && (f.SHA256 == g.SHA256 || f.SHA256 == SHA256{} || g.SHA256 == SHA256{})
}

// Values of missing fields.
const (
	unknownMode  = ^uint32(0)
	unknownNanos = -1
)

func (f *File) sameMode(mode uint32) bool {
	return f.Mode == mode || f.Mode == unknownMode || mode == unknownMode || f.fileType() == atoll.TypeSymlink
}

// A wireFile is the JSON form of a File. Strings that are not UTF-8 are repeated in
// base64.
type wireFile struct {
	Path      string         `json:"path"`
	PathB64   []byte         `json:"path_b64,omitempty"`
	Checksum  string         `json:"checksum"`
	Size      int64          `json:"size"`
	Modified  int64          `json:"modified_at"`
	Nanos     *int64         `json:"modified_ns,omitempty"`
	Type      atoll.FileType `json:"type,omitempty"`
	Mode      *uint32        `json:"mode,omitempty"`
	Target    string         `json:"target,omitempty"`
	TargetB64 []byte         `json:"target_b64,omitempty"`
	SHA256    string         `json:"sha256,omitempty"`
	Object    string         `json:"object,omitempty"`
	Offset    int64          `json:"offset,omitempty"`
	Changed   int64          `json:"changed_ns,omitempty"`
	Inode     uint64         `json:"inode,omitempty"`
	Here      uint32         `json:"mode_here,omitempty"`
	Mark      mark           `json:"mark,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (f File) MarshalJSON() ([]byte, error) {
	w := wireFile{
		Path: f.Path, Checksum: f.Checksum.String(), Size: f.Size, Modified: f.Modified, Type: f.Type, Target: f.Target, Object: f.Object, Offset: f.Offset,
		Changed: f.changed, Inode: f.inode, Here: f.here, Mark: f.mark,
	}
	if !utf8.ValidString(f.Path) {
		w.PathB64 = []byte(f.Path)
	}
	if !utf8.ValidString(f.Target) {
		w.TargetB64 = []byte(f.Target)
	}
	if f.Mode != unknownMode {
		w.Mode = &f.Mode
	}
	if f.Nanos != unknownNanos {
		w.Nanos = &f.Nanos
	}
	if f.SHA256 != (SHA256{}) {
		w.SHA256 = f.SHA256.String()
	}
	return json.Marshal(&w)
}

// UnmarshalJSON implements json.Unmarshaler. It checks the entry: an accepted path is
// safe to use below a directory.
func (f *File) UnmarshalJSON(b []byte) error {
	var w wireFile
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	return f.fromWire(&w)
}

// fromWire sets f from w, and checks it.
func (f *File) fromWire(w *wireFile) error {
	*f = File{
		Path: w.Path, Size: w.Size, Modified: w.Modified, Type: w.Type, Mode: unknownMode, Nanos: unknownNanos, Target: w.Target, Object: w.Object, Offset: w.Offset,
		changed: w.Changed, inode: w.Inode, here: w.Here & 0o7777, mark: w.Mark,
	}
	if w.PathB64 != nil {
		f.Path = string(w.PathB64)
	}
	if w.TargetB64 != nil {
		f.Target = string(w.TargetB64)
	}
	if w.Mode != nil {
		f.Mode = *w.Mode & 0o7777
	}
	if w.Nanos != nil && *w.Nanos >= 0 && *w.Nanos < 1e9 {
		f.Nanos = *w.Nanos
	}
	if err := checkPath(f.Path); err != nil {
		return err
	}
	if n, err := hex.Decode(f.Checksum[:], hexDigits(w.Checksum, len(f.Checksum))); err != nil || n != len(f.Checksum) {
		return fmt.Errorf("%q has an invalid MD5 checksum %.40q", f.Path, w.Checksum)
	}
	if w.SHA256 != "" {
		if n, err := hex.Decode(f.SHA256[:], hexDigits(w.SHA256, len(f.SHA256))); err != nil || n != len(f.SHA256) {
			return fmt.Errorf("%q has an invalid SHA-256 checksum %.70q", f.Path, w.SHA256)
		}
	}
	switch {
	case f.Size < 0 || f.Offset < 0 || f.Offset > 1<<62-f.Size:
		return fmt.Errorf("%q has an invalid size %d or offset %d", f.Path, f.Size, f.Offset)
	case f.fileType() == atoll.TypeSymlink && (f.Target == "" || strings.ContainsRune(f.Target, 0)):
		return fmt.Errorf("%q is a symlink without a target", f.Path)
	case f.fileType() != atoll.TypeSymlink && f.Target != "":
		return fmt.Errorf("%q has a link target but is not a symlink", f.Path)
	case f.fileType() != atoll.TypeFile && f.fileType() != atoll.TypeDirectory && f.fileType() != atoll.TypeSymlink:
		return fmt.Errorf("%q has an unknown type %.20q", f.Path, f.Type)
	case f.Object != "" && !isObject(f.Object):
		return fmt.Errorf("%q has an invalid object name %.60q", f.Path, f.Object)
	}
	return nil
}

// hexDigits returns s if it has the digits of n bytes, else an invalid number.
func hexDigits(s string, n int) []byte {
	if len(s) != 2*n {
		return []byte("?")
	}
	return []byte(s)
}

// Limits of Linux for a path and its elements, in bytes.
const (
	maxPath    = 4095
	maxElement = 255
)

// checkPath returns an error unless p is a clean relative path, and not the name of a
// state file.
func checkPath(p string) error {
	switch {
	case p == "":
		return errors.New("entry has no path")
	case len(p) > maxPath:
		return fmt.Errorf("path of %d bytes is too long; it begins with %.40q", len(p), p)
	case p[0] == '/' || strings.ContainsRune(p, 0):
		return fmt.Errorf("path %.80q is not below the directory", p)
	case p == StateName || p == stateTmpName || strings.HasPrefix(p, StateName+"/"):
		return fmt.Errorf("path %s is reserved for the state file", p)
	}
	for e := range strings.SplitSeq(p, "/") {
		if e == "" || e == "." || e == ".." || len(e) > maxElement {
			return fmt.Errorf("path %.80q is not below the directory", p)
		}
	}
	return nil
}
