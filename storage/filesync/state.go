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

// Version is the one version of state files.
const Version = "1.0"

// Names of state files: the file itself, in the directory that is kept in step and
// beside each version in the bucket, and what it is called while it is written.
const (
	StateName    = ".sandbox-state"
	stateTmpName = StateName + ".tmp"
)

// A State is a state file: what a directory, and its copy in a bucket, hold.
type State struct {
	Version    string `json:"version"`
	LastSynced int64  `json:"last_synced_at"` // seconds since 1970, by the clock of the files
	// SyncedNanos are those beyond the second. In state files of other programs there
	// are none.
	SyncedNanos int64 `json:"last_synced_ns,omitempty"`
	// Push is the push that the state is of; "" in state files of other programs. No
	// two pushes have the same.
	Push string `json:"push,omitempty"`
	// Sorted says that Files are in order of their paths' bytes, each path once.
	Sorted bool   `json:"sorted,omitempty"`
	Files  []File `json:"files"`
}

// A File is an entry of a state file. Size, checksum and time are of regular files;
// of a link they are those of its target's text, of a directory nothing's.
type File struct {
	Path     string // relative to the directory, clean, elements between slashes
	Checksum MD5
	Size     int64 // bytes
	Modified int64 // seconds since 1970

	// The following are not in state files of other programs.

	Nanos  int64          // of Modified, beyond the second; unknownNanos if it does not say
	Type   atoll.FileType // "" is TypeFile
	Mode   uint32         // permission bits
	Target string         // of a link
	SHA256 SHA256
	Object string // which object in the bucket holds the bytes; "" of what has none
	Offset int64  // where in it they begin
}

// MD5 and SHA256 are checksums, written in lower-case hexadecimal. The zero value is
// none.
type (
	MD5    [16]byte
	SHA256 [32]byte
)

// String is in hexadecimal.
func (m MD5) String() string { return hex.EncodeToString(m[:]) }

// String is in hexadecimal.
func (s SHA256) String() string { return hex.EncodeToString(s[:]) }

// kind is what f is.
func (f *File) kind() atoll.FileType {
	if f.Type == "" {
		return atoll.TypeFile
	}
	return f.Type
}

// regular reports whether f is a file with bytes of its own.
func (f *File) regular() bool { return f.kind() == atoll.TypeFile }

// same reports whether f and g are alike in all but when they were modified and where
// their bytes are.
func (f *File) same(g *File) bool {
	return f.kind() == g.kind() && f.Target == g.Target && f.sameMode(g.Mode) && (!f.regular() || f.sameBytes(g))
}

// sameBytes compares checksums: SHA-256 where both have it, for MD5 is no proof.
func (f *File) sameBytes(g *File) bool {
	return f.Size == g.Size && f.Checksum == g.Checksum && (f.SHA256 == g.SHA256 || f.SHA256 == SHA256{} || g.SHA256 == SHA256{})
}

// What entries have that do not say.
const (
	unknownMode  = ^uint32(0)
	unknownNanos = -1
)

func (f *File) sameMode(mode uint32) bool {
	return f.Mode == mode || f.Mode == unknownMode || mode == unknownMode || f.kind() == atoll.TypeSymlink
}

// A wireFile is a File in JSON. What is no text comes in base64, too.
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
}

// MarshalJSON implements json.Marshaler.
func (f File) MarshalJSON() ([]byte, error) {
	w := wireFile{Path: f.Path, Checksum: f.Checksum.String(), Size: f.Size, Modified: f.Modified, Type: f.Type, Target: f.Target, Object: f.Object, Offset: f.Offset}
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

// UnmarshalJSON implements json.Unmarshaler. It checks the entry: what it accepts can
// be used as a name below a directory.
func (f *File) UnmarshalJSON(b []byte) error {
	var w wireFile
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	return f.of(&w)
}

// of makes f the entry that w says, and checks it.
func (f *File) of(w *wireFile) error {
	*f = File{
		Path: w.Path, Size: w.Size, Modified: w.Modified, Type: w.Type, Mode: unknownMode, Nanos: unknownNanos, Target: w.Target, Object: w.Object, Offset: w.Offset,
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
	if n, err := hex.Decode(f.Checksum[:], hexOf(w.Checksum, len(f.Checksum))); err != nil || n != len(f.Checksum) {
		return fmt.Errorf("%q: its checksum %.40q is no MD5", f.Path, w.Checksum)
	}
	if w.SHA256 != "" {
		if n, err := hex.Decode(f.SHA256[:], hexOf(w.SHA256, len(f.SHA256))); err != nil || n != len(f.SHA256) {
			return fmt.Errorf("%q: its checksum %.70q is no SHA-256", f.Path, w.SHA256)
		}
	}
	switch {
	case f.Size < 0 || f.Offset < 0 || f.Offset > 1<<62-f.Size:
		return fmt.Errorf("%q: its size is %d at %d", f.Path, f.Size, f.Offset)
	case f.kind() == atoll.TypeSymlink && (f.Target == "" || strings.ContainsRune(f.Target, 0)):
		return fmt.Errorf("%q: a link without a target", f.Path)
	case f.kind() != atoll.TypeSymlink && f.Target != "":
		return fmt.Errorf("%q: a target, and no link", f.Path)
	case f.kind() != atoll.TypeFile && f.kind() != atoll.TypeDirectory && f.kind() != atoll.TypeSymlink:
		return fmt.Errorf("%q: its type is %.20q", f.Path, f.Type)
	case f.Object != "" && !isObject(f.Object):
		return fmt.Errorf("%q: no object is called %.60q", f.Path, f.Object)
	}
	return nil
}

// hexOf is s if it has the digits of n bytes, else what is no number.
func hexOf(s string, n int) []byte {
	if len(s) != 2*n {
		return []byte("?")
	}
	return []byte(s)
}

// The longest path, and the longest element of one: what Linux bears.
const (
	maxPath    = 4095
	maxElement = 255
)

// checkPath refuses what is no clean path below a directory, and the names of state
// files.
func checkPath(p string) error {
	switch {
	case p == "":
		return errors.New("an entry without a path")
	case len(p) > maxPath:
		return fmt.Errorf("a path of %d bytes that begins with %.40q", len(p), p)
	case p[0] == '/' || strings.ContainsRune(p, 0):
		return fmt.Errorf("no path below the directory: %.80q", p)
	case p == StateName || p == stateTmpName || strings.HasPrefix(p, StateName+"/"):
		return fmt.Errorf("the path %s: that is the state file's own", p)
	}
	for e := range strings.SplitSeq(p, "/") {
		if e == "" || e == "." || e == ".." || len(e) > maxElement {
			return fmt.Errorf("no path below the directory: %.80q", p)
		}
	}
	return nil
}
