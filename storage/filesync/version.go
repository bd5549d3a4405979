package filesync

import (
	"bufio"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"iter"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// An Info describes a version as far as the bucket's list tells.
type Info struct {
	Version int64     `json:"version"`
	Latest  bool      `json:"latest,omitempty"`
	Pushed  time.Time `json:"pushed"`     // by the bucket's clock
	Size    int64     `json:"state_size"` // of its state file, in bytes
}

// Versions yields the versions, the oldest first. An error is the last pair.
func (r *Remote) Versions(ctx context.Context) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		l, err := r.readNewest(ctx)
		if err != nil {
			yield(Info{}, err)
			return
		}
		for v, err := range r.listVersions(ctx) {
			if err == nil && v.Size > 0 && v.Version > l.Version {
				var foreign bool
				if foreign, err = r.isForeign(ctx, v.Version); err == nil && !foreign {
					continue // incomplete
				}
			}
			if err != nil {
				yield(Info{}, err)
				return
			}
			if v.Size == 0 {
				continue // void
			}
			v.Latest = v.Version == l.newestNumber()
			if !yield(v, nil) {
				return
			}
		}
	}
}

// listVersions yields everything that looks like a version, in the order of the keys'
// digits.
func (r *Remote) listVersions(ctx context.Context) iter.Seq2[Info, error] {
	if seq, ok := r.listFolders(ctx); ok {
		return seq
	}
	return func(yield func(Info, error) bool) {
		for o, err := range r.bucket.List(ctx, r.prefix) {
			if err != nil {
				yield(Info{}, err)
				return
			}
			key := strings.TrimPrefix(o.Key, r.prefix)
			if key > "9~" { // other names follow: digits sort first
				return
			}
			digits, ok := strings.CutSuffix(key, "/"+StateName)
			v, isNumber := parseNumber(digits)
			if !ok || !isNumber {
				continue
			}
			if !yield(Info{Version: v, Pushed: o.Modified, Size: o.Size}, nil) {
				return
			}
		}
	}
}

// A version is the state of a version, held in a temporary file.
type version struct {
	spool *spool
	head  State
	files int
	bytes int64 // of all files
	bad   []*BadEntry
	each  func(*File) // called with each entry while it is checked, unless nil
}

func (v *version) closeSpool() { v.spool.Close() }

// openCursor returns a cursor at the first entry. Only one cursor can be in use at a
// time.
func (v *version) openCursor() (*cursor, error) {
	if _, err := v.spool.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	in, err := newStateReader(bufio.NewReader(v.spool))
	if err != nil {
		return nil, err
	}
	return newCursor(in.head, in.nextEntry), nil
}

// pushOf returns the id of the push that made version n. Versions of other programs have
// none, so that their number stands for it.
func pushOf(n int64, head *State) string {
	if head.Push != "" {
		return head.Push
	}
	return "version-" + strconv.FormatInt(n, 10)
}

// fetchState reads the state of a version; sum is its checksum in hexadecimal, or "".
// The returned state is complete, sorted and within bounds. Meanwhile fetchState calls
// each with each entry, unless it is nil.
func (r *Remote) fetchState(ctx context.Context, n int64, sum string, each func(*File)) (*version, error) {
	body, err := r.openObject(ctx, r.stateKey(n), 0, -1)
	if atoll.KindOf(err) == atoll.ErrNotExist {
		return nil, r.newError("sync", atoll.ErrNotExist, "no version %d", n)
	}
	if err != nil {
		return nil, err
	}
	defer body.Close()
	file, err := r.newSpool()
	if err != nil {
		return nil, err
	}
	v := &version{spool: file, each: each}
	if err := r.fillVersion(v, n, sum, body); err != nil {
		v.closeSpool()
		return nil, err
	}
	return v, nil
}

// fillVersion reads a state file into v, and checks it.
func (r *Remote) fillVersion(v *version, n int64, sum string, body io.Reader) error {
	hash := sha256.New()
	size, err := io.Copy(io.MultiWriter(v.spool, hash), io.LimitReader(body, maxState+1))
	switch {
	case err != nil:
		return err
	case size == 0:
		return r.newError("sync", atoll.ErrNotExist, "no version %d", n)
	case size > maxState:
		return r.newError("sync", atoll.ErrExhausted, "the state file of version %d is larger than %d MiB", n, maxState>>20)
	case sum != "" && SHA256(hash.Sum(nil)).String() != sum:
		return r.damagedError(n, errors.New("checksum mismatch"))
	}
	if err := v.checkState(); err != nil {
		return r.damagedError(n, err)
	}
	if v.files > r.opts.MaxFiles || v.bytes > r.opts.MaxBytes {
		return r.newError("sync", atoll.ErrExhausted, "version %d has %d files of %d bytes, more than the limits of %d files and %d bytes",
			n, v.files, v.bytes, r.opts.MaxFiles, r.opts.MaxBytes)
	}
	return nil
}

// maxState is the most bytes of the state file of a version.
const maxState = 4 << 30

// ErrDamaged is in the chain of an error about a version with a damaged state file.
var ErrDamaged = errors.New("the state file is damaged")

func (r *Remote) damagedError(n int64, err error) error {
	return r.newError("sync", atoll.ErrInternal, "version %d: %w: %w", n, ErrDamaged, err)
}

// checkState reads the state file once, and sorts it if needed.
func (v *version) checkState() error {
	if _, err := v.spool.Seek(0, io.SeekStart); err != nil {
		return err
	}
	in, err := newStateReader(bufio.NewReader(v.spool))
	if err != nil {
		return err
	}
	if !in.head.Sorted || in.head.Version == "" || in.head.Push == "" {
		return v.rewriteSorted()
	}
	v.head = in.head
	for {
		f, err := in.nextEntry()
		if b, ok := errors.AsType[*BadEntry](err); ok {
			v.addBad(b)
			continue
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		v.addEntry(&f)
	}
}

// addEntry counts a usable entry.
func (v *version) addEntry(f *File) {
	v.files, v.bytes = v.files+1, addSizes(v.bytes, f.Size)
	if v.each != nil {
		v.each(f)
	}
}

func (v *version) addBad(b *BadEntry) {
	if len(v.bad) < MaxErrors {
		v.bad = append(v.bad, b)
	}
}

// rewriteSorted sorts the entries and writes the file again.
func (v *version) rewriteSorted() error {
	if _, err := v.spool.Seek(0, io.SeekStart); err != nil {
		return err
	}
	s, bad, err := Parse(io.LimitReader(v.spool, maxUnsorted))
	if err != nil {
		return err
	}
	for _, b := range bad {
		v.addBad(b)
	}
	if s.Push == "" {
		if err := s.addDirs(); err != nil {
			return err
		}
	}
	if err := v.spool.Truncate(0); err != nil {
		return err
	}
	if _, err := v.spool.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if _, err := s.WriteTo(v.spool); err != nil {
		return err
	}
	v.head = *s
	v.head.Files = nil
	for i := range s.Files {
		v.addEntry(&s.Files[i])
	}
	return nil
}

// The most directories that addDirs adds, and the bytes of their paths.
const (
	maxAddedDirs  = DefaultMaxFiles
	maxAddedBytes = 64 << 20
)

// addDirs adds the directories above the files, which other programs do not list.
func (s *State) addDirs() error {
	added, size := 0, 0
	known := map[string]bool{".": true}
	for i := range s.Files {
		if s.Files[i].fileType() == atoll.TypeDirectory {
			known[s.Files[i].Path] = true
		}
	}
	for _, f := range s.Files {
		for dir := path.Dir(f.Path); !known[dir]; dir = path.Dir(dir) {
			if added, size = added+1, size+len(dir); added > maxAddedDirs || size > maxAddedBytes {
				return fmt.Errorf("the files are in more than %d directories, or in too deep ones", maxAddedDirs)
			}
			known[dir] = true
			s.Files = append(s.Files, File{Path: dir, Type: atoll.TypeDirectory, Mode: unknownMode, Nanos: unknownNanos, Checksum: md5.Sum(nil)})
		}
	}
	slices.SortFunc(s.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return nil
}
