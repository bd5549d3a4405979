package filesync

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// A BadEntry is an unusable entry of a state file. The other entries are usable.
type BadEntry struct {
	Index int // of the entry, from 0
	Err   error
}

// Error names the entry and the cause.
func (e *BadEntry) Error() string {
	return fmt.Sprintf("entry %d of the state file: %v", e.Index, e.Err)
}

// Unwrap returns the cause.
func (e *BadEntry) Unwrap() error { return e.Err }

// ErrVersion is in the chain of an error about a state file of an unknown version.
var ErrVersion = errors.New("unsupported version of the state file")

// maxBad is the most unusable entries of a state file that is used.
const maxBad = 100_000

// Parse reads a state file. It omits unusable entries and returns them as bad; the
// others have clean, distinct paths, and are sorted. It returns an error for input that
// is no state file or one of another version (ErrVersion), and for errors of r.
func Parse(r io.Reader) (s *State, bad []*BadEntry, err error) {
	in, err := newStateReader(r)
	if err != nil {
		return nil, nil, err
	}
	s = &State{}
	index := map[string]int{}
	for {
		f, err := in.nextEntry()
		if err == io.EOF {
			break
		}
		if b, ok := errors.AsType[*BadEntry](err); ok {
			if bad = append(bad, b); len(bad) > maxBad {
				return nil, bad, fmt.Errorf("more than %d entries are unusable", maxBad)
			}
			continue
		}
		if err != nil {
			return nil, bad, err
		}
		if _, twice := index[f.Path]; twice {
			bad = append(bad, &BadEntry{in.index - 1, fmt.Errorf("%q occurs twice", f.Path)})
			continue
		}
		index[f.Path] = len(s.Files)
		s.Files = append(s.Files, f)
	}
	files := s.Files
	*s = in.head
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	var above nesting
	s.Sorted, s.Files = true, slices.DeleteFunc(files, func(f File) bool {
		if !above.isBelowFile(&f) {
			return false
		}
		bad = append(bad, &BadEntry{index[f.Path], errBelow(f.Path)})
		return true
	})
	return s, bad, nil
}

// A nesting detects entries below something that is not a directory; it takes the
// entries in order.
type nesting struct {
	files []string // files that the next entries may be below: each path begins with the one before
}

// isBelowFile reports whether the next entry is below another file.
func (n *nesting) isBelowFile(f *File) bool {
	for len(n.files) > 0 && !strings.HasPrefix(f.Path, n.files[len(n.files)-1]) {
		n.files = n.files[:len(n.files)-1]
	}
	for _, file := range n.files {
		if f.Path[len(file)] == '/' {
			return true
		}
	}
	if f.fileType() != atoll.TypeDirectory {
		n.files = append(n.files, f.Path)
	}
	return false
}

func errBelow(path string) error {
	return fmt.Errorf("%q is below a file that is not a directory", path)
}

// maxEntry is the most bytes of a state file that are read for one entry: paths and
// targets of 4 KiB, as text and in base64, with room for fields of other programs.
const maxEntry = 256 << 10

// A stateReader reads a state file entry by entry.
type stateReader struct {
	head  State // without Files; fields after those are set at the end
	local bool  // it is the state file of a directory
	dec   *json.Decoder
	in    *limitedReader
	index int    // of the next entry
	last  string // path
	above nesting
	state int     // one of the constants below: the next thing to read
	lists [2]bool // of files and of others that were read
}

const (
	inHead = iota
	inFiles
	atEnd
)

// newStateReader reads r up to the first entry.
func newStateReader(r io.Reader) (*stateReader, error) {
	in := &limitedReader{r: r}
	s := &stateReader{dec: json.NewDecoder(in), in: in}
	in.left = maxEntry
	if err := s.readDelim('{'); err != nil {
		return nil, err
	}
	return s, s.readFields()
}

func (s *stateReader) readDelim(want json.Delim) error {
	t, err := s.dec.Token()
	if err != nil {
		return notJSON(err)
	}
	if t != want {
		return fmt.Errorf("not a state file: found %v instead of %v", t, want)
	}
	return nil
}

// notJSON wraps an error of the decoder. io.EOF always comes too early.
func notJSON(err error) error {
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("not a state file: %w", err)
}

// readFields reads fields up to the entries, or to the end.
func (s *stateReader) readFields() error {
	for s.dec.More() {
		s.in.left = maxEntry
		key, err := s.dec.Token()
		if err != nil {
			return notJSON(err)
		}
		if key == "files" || key == "others" {
			list := &s.lists[0]
			if key == "others" {
				list = &s.lists[1]
			}
			if *list {
				return errors.New("not a state file: two lists of files")
			}
			*list = true
			return s.beginFiles()
		}
		var skipped json.RawMessage
		into := any(&skipped)
		switch key {
		case "version":
			into = &s.head.Version
		case "last_synced_at":
			into = &s.head.LastSynced
		case "last_synced_ns":
			into = &s.head.SyncedNanos
		case "push":
			into = &s.head.Push
		case "sorted":
			into = &s.head.Sorted
		case "no_modes":
			into = &s.head.NoModes
		}
		if err := s.dec.Decode(into); err != nil {
			return notJSON(err)
		}
	}
	if err := s.readDelim('}'); err != nil {
		return err
	}
	s.state = atEnd
	if err := s.checkVersion(); err != nil {
		return err
	}
	if _, err := s.dec.Token(); err != io.EOF {
		return errors.New("not a state file: trailing data")
	}
	return nil
}

func (s *stateReader) checkVersion() error {
	if s.head.Version != Version {
		return fmt.Errorf("%w: %.40q", ErrVersion, s.head.Version)
	}
	return nil
}

// beginFiles starts reading the entries. Files may come before the version field.
func (s *stateReader) beginFiles() error {
	if s.head.Version != "" {
		if err := s.checkVersion(); err != nil {
			return err
		}
	}
	t, err := s.dec.Token()
	if err != nil {
		return notJSON(err)
	}
	switch t {
	case nil: // null is an empty list
		return s.readFields()
	case json.Delim('['):
		s.state = inFiles
		return nil
	}
	return fmt.Errorf("not a state file: its files are %v", t)
}

// nextEntry returns the next entry, or a *BadEntry for an unusable one, after which
// others follow, or io.EOF; any other error is the last.
func (s *stateReader) nextEntry() (f File, err error) {
	if s.state == inFiles && !s.dec.More() {
		s.state = inHead
		s.in.left = maxEntry
		if err := s.readDelim(']'); err != nil {
			return f, err
		}
		if err := s.readFields(); err != nil {
			return f, err
		}
	}
	if s.state != inFiles {
		return f, io.EOF
	}
	s.in.left = maxEntry
	var w wireFile // not a File, whose own decoding would parse each byte twice
	err = s.dec.Decode(&w)
	if err != nil && !isEntry(err) {
		return f, notJSON(err)
	}
	s.index++
	if err == nil {
		err = f.fromWire(&w)
	}
	if err != nil {
		return f, &BadEntry{s.index - 1, err}
	}
	if !s.local {
		f.clearLocal()
	}
	if s.head.Sorted && s.index > 1 && f.Path <= s.last {
		return f, fmt.Errorf("not a state file: %q is out of order", f.Path)
	}
	s.last = f.Path
	if f.mark.isGone() {
		return f, nil // no file of the version
	}
	if s.head.Sorted && s.above.isBelowFile(&f) {
		return f, &BadEntry{s.index - 1, errBelow(f.Path)}
	}
	return f, nil
}

// isEntry reports whether the decoder's error is about a JSON value that is no entry:
// the decoder can continue behind it.
func isEntry(err error) bool {
	_, kind := errors.AsType[*json.UnmarshalTypeError](err)
	_, bytes := errors.AsType[base64.CorruptInputError](err)
	return kind || bytes
}

// A limitedReader fails after it has read left bytes.
type limitedReader struct {
	r    io.Reader
	left int
}

var errEntrySize = fmt.Errorf("entry is larger than %d KiB", maxEntry>>10)

func (a *limitedReader) Read(p []byte) (int, error) {
	if a.left <= 0 {
		return 0, errEntrySize
	}
	n, err := a.r.Read(p[:min(len(p), a.left)])
	a.left -= n
	return n, err
}

// A stateWriter writes a state file entry by entry.
type stateWriter struct {
	w     *bufio.Writer
	wrote bool
	err   error
}

// newStateWriter writes the head of a state file. The caller adds entries in order.
func newStateWriter(w io.Writer, head State) *stateWriter {
	head.Sorted = true
	return newListWriter(w, head)
}

// newListWriter is newStateWriter for entries in any order, unless head says otherwise.
func newListWriter(w io.Writer, head State) *stateWriter {
	head.Version, head.Files = Version, nil
	s := &stateWriter{w: bufio.NewWriterSize(w, 64<<10)}
	b, err := json.Marshal(&head)
	s.err = err
	text, ok := strings.CutSuffix(string(b), "null}")
	if !ok && err == nil {
		s.err = errors.New("the files are not the last field of a state")
	}
	s.writeText(text + "[")
	return s
}

func (s *stateWriter) writeText(text string) {
	if s.err == nil {
		_, s.err = s.w.WriteString(text)
	}
}

// writeEntry writes the next entry.
func (s *stateWriter) writeEntry(f *File) error {
	b, err := f.MarshalJSON()
	if s.err == nil {
		s.err = err
	}
	if s.wrote {
		s.writeText(",")
	}
	s.wrote = true
	s.writeText("\n")
	s.writeText(string(b))
	return s.err
}

// finishState writes the end and flushes the buffer.
func (s *stateWriter) finishState() error {
	s.writeText("\n]}\n")
	if s.err == nil {
		s.err = s.w.Flush()
	}
	return s.err
}

// WriteTo writes the state, sorted, as a state file. The paths must be distinct.
func (s *State) WriteTo(w io.Writer) (int64, error) {
	files := slices.Clone(s.Files)
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	n := &counter{w: w}
	out := newStateWriter(n, *s)
	for i := range files {
		if err := checkPath(files[i].Path); err != nil {
			return n.n, err
		}
		if i > 0 && files[i].Path == files[i-1].Path {
			return n.n, fmt.Errorf("%q occurs twice", files[i].Path)
		}
		if err := out.writeEntry(&files[i]); err != nil {
			return n.n, err
		}
	}
	return n.n, out.finishState()
}

// A counter counts the bytes written through it.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
