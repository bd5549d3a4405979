// Package filesync synchronizes a directory of a sandbox with versions of it in object
// storage; see decision 28. A state file in the directory, .sandbox-state, records the last
// push or pull. Each version has such a file, too.
//
// An agent wrote the files, so the package trusts nothing about them: it checks names,
// links, sizes and state files before it uses them, and changes the sandbox only through
// the sandbox's own file API, confined to the directory.
package filesync

import (
	"cmp"
	"encoding/json"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

// Options configure a Remote. The zero value is ready to use.
type Options struct {
	// MaxFiles and MaxBytes bound the entries of a version and the bytes of all its
	// files. 0 means DefaultMaxFiles and DefaultMaxBytes. A larger version is
	// ErrExhausted, and nothing is pushed or pulled.
	MaxFiles int
	MaxBytes int64
	// Dir is the directory of temporary files for content in transit; "" means the
	// system's.
	Dir string
	// Layout is the layout of new versions; "" means LayoutPacked. With LayoutFiles, each
	// push and pull also looks for newer versions of other programs.
	Layout Layout
	// Owner names this program to others that wait for it; "" means its host and
	// process id.
	Owner string
	// Log receives warnings that no call returns; nil discards them.
	Log *slog.Logger

	step   func(name string) // for tests: called with the name of each completed step
	expire time.Duration     // for tests: the time after which an unrenewed lock expires
	now    func() time.Time  // for tests
}

// The default bounds of versions.
const (
	DefaultMaxFiles = 1_000_000
	DefaultMaxBytes = 100 << 30
)

// A Remote is a place in a bucket that holds versions of one directory. It has no state
// of its own: any number of programs may use one at once.
type Remote struct {
	bucket objectstore.Bucket
	files  objectstore.Bucket // for LayoutFiles
	apart  bool               // files is another bucket
	prefix string             // ends in a slash, or is ""
	opts   Options
	log    *slog.Logger
}

// New returns the place below a prefix of a bucket. The caller keeps the bucket. The
// prefix begins and ends without a slash; "" is the whole bucket.
func New(b objectstore.Bucket, prefix string, opts Options) (*Remote, error) {
	if p := strings.Trim(prefix, "/"); p != "" {
		if err := checkPath(p); err != nil {
			return nil, atoll.Errorf("sync", prefix, atoll.ErrInvalid, "prefix must be a path without %q and %q: %w", ".", "..", err)
		}
		prefix = p + "/"
	} else {
		prefix = ""
	}
	if err := CheckLayout(opts.Layout); err != nil {
		return nil, err
	}
	opts.MaxFiles = cmp.Or(opts.MaxFiles, DefaultMaxFiles)
	opts.MaxBytes = cmp.Or(opts.MaxBytes, DefaultMaxBytes)
	opts.expire = cmp.Or(opts.expire, lockExpires)
	opts.Owner = cmp.Or(opts.Owner, thisProgram())
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.step == nil {
		opts.step = func(string) {}
	}
	if opts.now == nil {
		opts.now = time.Now
	}
	r := &Remote{prefix: prefix, opts: opts, log: opts.Log}
	r.setBucket(b)
	return r, nil
}

// String returns the URL of the place.
func (r *Remote) String() string { return r.bucket.String() + "/" + strings.TrimSuffix(r.prefix, "/") }

// newError returns an error of an operation on this place.
func (r *Remote) newError(op string, kind atoll.Kind, format string, args ...any) error {
	return atoll.Errorf(op, r.String(), kind, format, args...)
}

// Keys below the prefix.
func (r *Remote) latestKey() string { return r.prefix + "latest" }
func (r *Remote) stateKey(v int64) string {
	return r.prefix + strconv.FormatInt(v, 10) + "/" + StateName
}
func (r *Remote) objectKey(name string) string { return r.prefix + "objects/" + name }

// isObject reports whether name is the name of an object: the id of a push, and a
// number.
func isObject(name string) bool {
	id, n, ok := strings.Cut(name, "/")
	if !ok || !isPush(id) || n == "" || len(n) > 9 || n[0] == '0' && n != "0" {
		return false
	}
	return strings.Trim(n, "0123456789") == ""
}

// isPush reports whether id is the id of a push.
func isPush(id string) bool { return len(id) == 32 && strings.Trim(id, "0123456789abcdef") == "" }

// Stats describe the outcome of a push or a pull.
type Stats struct {
	Version int64 `json:"version,omitempty"` // the latest version afterwards; 0 if there is none
	// Replaced is the version that was the latest before a push, if this directory
	// never pushed or pulled it: the new version lacks the changes that others made in
	// it.
	Replaced         int64         `json:"replaced,omitempty"`
	FilesDownloaded  int           `json:"files_downloaded"`
	FilesUploaded    int           `json:"files_uploaded"`
	FilesDeleted     int           `json:"files_deleted"`
	FilesSkipped     int           `json:"files_skipped"` // equal on both sides
	BytesTransferred int64         `json:"bytes_transferred"`
	Duration         time.Duration `json:"-"` // in JSON it is duration_ms
	// Fresh tells that IfStale skipped a pull.
	Fresh bool `json:"fresh,omitempty"`
	// Conflicts are files changed on both sides, or changed in the directory and never
	// pushed.
	Conflicts []Conflict `json:"conflicts,omitempty"`
	// Dropped are files that a pull wrote without their set-user-ID, set-group-ID or
	// sticky bits, since the file system of the directory does not set them.
	Dropped Paths `json:"dropped_bits,omitzero"`
	// Errors tell which files could not be read or written, and why; the other files
	// were synced. It holds at most MaxErrors.
	Errors []string `json:"errors,omitempty"`
	Failed int      `json:"failed,omitempty"` // the number of errors, listed or not
}

// statsFields is Stats without its methods.
type statsFields Stats

// wireStats is the JSON form of Stats.
type wireStats struct {
	*statsFields
	Millis int64 `json:"duration_ms"`
}

// MarshalJSON implements json.Marshaler. It writes the duration in whole milliseconds.
func (s Stats) MarshalJSON() ([]byte, error) {
	return json.Marshal(wireStats{(*statsFields)(&s), s.Duration.Milliseconds()})
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *Stats) UnmarshalJSON(b []byte) error {
	w := wireStats{statsFields: (*statsFields)(s)}
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	s.Duration = time.Duration(w.Millis) * time.Millisecond
	return nil
}

// MaxErrors is the most errors, and the most conflicts, that Stats list.
const MaxErrors = 1000

// addError records a file's error.
func (s *Stats) addError(path string, err error) {
	s.Failed++
	if len(s.Errors) < MaxErrors {
		s.Errors = append(s.Errors, path+": "+err.Error())
	}
}

// A Conflict is a file that both sides have changed.
type Conflict struct {
	Path string `json:"path"`
	Kept Policy `json:"kept"`
}

// Progress reports how far a push or a pull is.
type Progress struct {
	Files, Bytes           int64 // done
	TotalFiles, TotalBytes int64 // of the files to transfer, as far as known
}
