package filesync

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// An Info is what is known of a version without reading it.
type Info struct {
	Version int64     `json:"version"`
	Latest  bool      `json:"latest,omitempty"`
	Pushed  time.Time `json:"pushed"`     // by the bucket's clock
	Size    int64     `json:"state_size"` // of its state file, in bytes
}

// Versions yields the versions, the oldest first. An error is the last pair.
func (r *Remote) Versions(ctx context.Context) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		l, err := r.readLatest(ctx)
		if err != nil {
			yield(Info{}, err)
			return
		}
		for v, err := range r.versions(ctx) {
			if err != nil {
				yield(Info{}, err)
				return
			}
			if v.Version > l.Version || v.Size == 0 {
				continue // being made, or void
			}
			v.Latest = v.Version == l.Version
			if !yield(v, nil) {
				return
			}
		}
	}
}

// versions yields all that look like versions.
func (r *Remote) versions(ctx context.Context) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		for o, err := range r.bucket.List(ctx, r.prefix) {
			if err != nil {
				yield(Info{}, err)
				return
			}
			key := strings.TrimPrefix(o.Key, r.prefix)
			if key > "9~" { // what follows has other names: digits come first
				return
			}
			digits, ok := strings.CutSuffix(key, "/"+StateName)
			v, err := strconv.ParseInt(digits, 10, 64)
			if !ok || err != nil || v <= 0 || strconv.FormatInt(v, 10) != digits {
				continue
			}
			if !yield(Info{Version: v, Pushed: o.Modified, Size: o.Size}, nil) {
				return
			}
		}
	}
}

// A version is the state of one, held in a file.
type version struct {
	spool *spool
	head  State
	files int
	bytes int64 // of all files
	bad   []*BadEntry
	each  func(*File) // called with each entry while it is checked, unless nil
}

func (v *version) close() { v.spool.Close() }

// cursor goes through it from its beginning. One at a time can.
func (v *version) cursor() (*cursor, error) {
	if _, err := v.spool.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	in, err := newStateReader(bufio.NewReader(v.spool))
	if err != nil {
		return nil, err
	}
	return newCursor(in.head, in.next), nil
}

// fetch reads the state of a version; sum is its checksum in hexadecimal, or "". It is
// whole, in order, and within bounds when fetch returns. Meanwhile each is called with
// each entry, unless it is nil.
func (r *Remote) fetch(ctx context.Context, n int64, sum string, each func(*File)) (*version, error) {
	body, _, err := r.bucket.Get(ctx, r.stateKey(n), 0, -1)
	if atoll.KindOf(err) == atoll.ErrNotExist {
		return nil, r.fail("sync", atoll.ErrNotExist, "there is no version %d", n)
	}
	if err != nil {
		return nil, err
	}
	defer body.Close()
	file, err := r.spool()
	if err != nil {
		return nil, err
	}
	v := &version{spool: file, each: each}
	if err := r.fill(v, n, sum, body); err != nil {
		v.close()
		return nil, err
	}
	return v, nil
}

// fill reads a state file into v, and checks it.
func (r *Remote) fill(v *version, n int64, sum string, body io.Reader) error {
	hash := sha256.New()
	size, err := io.Copy(io.MultiWriter(v.spool, hash), io.LimitReader(body, maxState+1))
	switch {
	case err != nil:
		return err
	case size == 0:
		return r.fail("sync", atoll.ErrNotExist, "there is no version %d", n)
	case size > maxState:
		return r.fail("sync", atoll.ErrExhausted, "the state file of version %d has more than %d MiB", n, maxState>>20)
	case sum != "" && SHA256(hash.Sum(nil)).String() != sum:
		return r.damaged(n, errors.New("its checksum is another one"))
	}
	if err := v.check(); err != nil {
		return r.damaged(n, err)
	}
	if v.files > r.opts.MaxFiles || v.bytes > r.opts.MaxBytes {
		return r.fail("sync", atoll.ErrExhausted, "version %d has %d files of %d bytes, more than %d or %d bytes, which are the bounds",
			n, v.files, v.bytes, r.opts.MaxFiles, r.opts.MaxBytes)
	}
	return nil
}

// maxState is how many bytes the state file of a version may have.
const maxState = 4 << 30

// ErrDamaged is in the chain of an error about a version whose state file is not whole.
var ErrDamaged = errors.New("the state file is damaged")

func (r *Remote) damaged(n int64, err error) error {
	return r.fail("sync", atoll.ErrInternal, "version %d: %w: %w", n, ErrDamaged, err)
}

// check goes through all of it, once, and sorts one that is in no order.
func (v *version) check() error {
	if _, err := v.spool.Seek(0, io.SeekStart); err != nil {
		return err
	}
	in, err := newStateReader(bufio.NewReader(v.spool))
	if err != nil {
		return err
	}
	if !in.head.Sorted || in.head.Version == "" {
		return v.sort()
	}
	v.head = in.head
	for {
		f, err := in.next()
		if b, ok := errors.AsType[*BadEntry](err); ok {
			v.note(b)
			continue
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		v.count(&f)
	}
}

// count notes an entry that can be used.
func (v *version) count(f *File) {
	v.files, v.bytes = v.files+1, add(v.bytes, f.Size)
	if v.each != nil {
		v.each(f)
	}
}

func (v *version) note(b *BadEntry) {
	if len(v.bad) < MaxErrors {
		v.bad = append(v.bad, b)
	}
}

// sort writes it anew, in order.
func (v *version) sort() error {
	if _, err := v.spool.Seek(0, io.SeekStart); err != nil {
		return err
	}
	s, bad, err := Parse(io.LimitReader(v.spool, maxForeign))
	if err != nil {
		return err
	}
	for _, b := range bad {
		v.note(b)
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
		v.count(&s.Files[i])
	}
	return nil
}
