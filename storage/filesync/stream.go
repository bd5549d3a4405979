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

// A BadEntry is an entry of a state file that cannot be used. The others can.
type BadEntry struct {
	Index int // of the entry, from 0
	Err   error
}

// Error says which, and why.
func (e *BadEntry) Error() string {
	return fmt.Sprintf("entry %d of the state file: %v", e.Index, e.Err)
}

// Unwrap returns the cause.
func (e *BadEntry) Unwrap() error { return e.Err }

// ErrVersion is in the chain of an error about a state file of an unknown version.
var ErrVersion = errors.New("not a version of state files that this program knows")

// Parse reads a state file. Entries that cannot be used are left out and returned as
// bad; those of the State have clean paths, each another, in order. An error says
// that it is no state file, or one of another version (ErrVersion), or that r failed.
func Parse(r io.Reader) (s *State, bad []*BadEntry, err error) {
	in, err := newStateReader(r)
	if err != nil {
		return nil, nil, err
	}
	s = &State{}
	index := map[string]int{}
	for {
		f, err := in.next()
		if err == io.EOF {
			break
		}
		if b, ok := errors.AsType[*BadEntry](err); ok {
			bad = append(bad, b)
			continue
		}
		if err != nil {
			return nil, bad, err
		}
		if _, twice := index[f.Path]; twice {
			bad = append(bad, &BadEntry{in.index - 1, fmt.Errorf("%q is there twice", f.Path)})
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
		if !above.hold(&f) {
			return false
		}
		bad = append(bad, &BadEntry{index[f.Path], errBelow(f.Path)})
		return true
	})
	return s, bad, nil
}

// A nesting goes through entries in order, and finds those that are below what is no
// directory.
type nesting struct {
	files []string // that what comes may be below: each begins with the one before
}

// hold reports whether the next entry is below another file.
func (n *nesting) hold(f *File) bool {
	for len(n.files) > 0 && !strings.HasPrefix(f.Path, n.files[len(n.files)-1]) {
		n.files = n.files[:len(n.files)-1]
	}
	for _, file := range n.files {
		if f.Path[len(file)] == '/' {
			return true
		}
	}
	if f.kind() != atoll.TypeDirectory {
		n.files = append(n.files, f.Path)
	}
	return false
}

func errBelow(path string) error { return fmt.Errorf("%q is below what is no directory", path) }

// maxEntry is how many bytes of a state file may be read for one entry: paths and
// targets of 4 KiB, in text and in base64, with room for what others write beside.
const maxEntry = 256 << 10

// A stateReader reads a state file entry by entry.
type stateReader struct {
	head  State // without Files; what comes after those is known at the end
	dec   *json.Decoder
	in    *allowance
	index int    // of the next entry
	last  string // path
	above nesting
	state int // what comes next: see the constants
}

const (
	inHead = iota
	inFiles
	atEnd
)

// newStateReader reads r as far as the first entry.
func newStateReader(r io.Reader) (*stateReader, error) {
	in := &allowance{r: r}
	s := &stateReader{dec: json.NewDecoder(in), in: in}
	in.left = maxEntry
	if err := s.delim('{'); err != nil {
		return nil, err
	}
	return s, s.fields()
}

func (s *stateReader) delim(want json.Delim) error {
	t, err := s.dec.Token()
	if err != nil {
		return notJSON(err)
	}
	if t != want {
		return fmt.Errorf("no state file: %v where %v should be", t, want)
	}
	return nil
}

// notJSON explains an error of the decoder; an end comes too soon, always.
func notJSON(err error) error {
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("no state file: %w", err)
}

// fields reads fields until entries come, or the end.
func (s *stateReader) fields() error {
	for s.dec.More() {
		s.in.left = maxEntry
		key, err := s.dec.Token()
		if err != nil {
			return notJSON(err)
		}
		if key == "files" {
			return s.begin()
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
		}
		if err := s.dec.Decode(into); err != nil {
			return notJSON(err)
		}
	}
	if err := s.delim('}'); err != nil {
		return err
	}
	s.state = atEnd
	if err := s.known(); err != nil {
		return err
	}
	if _, err := s.dec.Token(); err != io.EOF {
		return errors.New("no state file: something follows it")
	}
	return nil
}

func (s *stateReader) known() error {
	if s.head.Version != Version {
		return fmt.Errorf("%w: %.40q", ErrVersion, s.head.Version)
	}
	return nil
}

// begin begins the entries. Whoever writes them first has no version yet.
func (s *stateReader) begin() error {
	if s.index > 0 {
		return errors.New("no state file: two lists of files")
	}
	if s.head.Version != "" {
		if err := s.known(); err != nil {
			return err
		}
	}
	t, err := s.dec.Token()
	if err != nil {
		return notJSON(err)
	}
	switch t {
	case nil: // no list is an empty one
		return s.fields()
	case json.Delim('['):
		s.state = inFiles
		return nil
	}
	return fmt.Errorf("no state file: its files are %v", t)
}

// next returns the next entry, a *BadEntry instead of one that cannot be used, after
// which others follow, or io.EOF; any other error is the last.
func (s *stateReader) next() (f File, err error) {
	if s.state == inFiles && !s.dec.More() {
		s.state = inHead
		s.in.left = maxEntry
		if err := s.delim(']'); err != nil {
			return f, err
		}
		if err := s.fields(); err != nil {
			return f, err
		}
	}
	if s.state != inFiles {
		return f, io.EOF
	}
	s.in.left = maxEntry
	var w wireFile // not a File, whose own decoding would look at each byte twice
	err = s.dec.Decode(&w)
	if err != nil && !isEntry(err) {
		return f, notJSON(err)
	}
	s.index++
	if err == nil {
		err = f.of(&w)
	}
	if err != nil {
		return f, &BadEntry{s.index - 1, err}
	}
	if s.head.Sorted && s.index > 1 && f.Path <= s.last {
		return f, fmt.Errorf("no state file: %q is out of order", f.Path)
	}
	s.last = f.Path
	if s.head.Sorted && s.above.hold(&f) {
		return f, &BadEntry{s.index - 1, errBelow(f.Path)}
	}
	return f, nil
}

// isEntry reports whether the decoder's error is about JSON that makes no entry: it goes
// on behind that.
func isEntry(err error) bool {
	_, kind := errors.AsType[*json.UnmarshalTypeError](err)
	_, bytes := errors.AsType[base64.CorruptInputError](err)
	return kind || bytes
}

// An allowance reads no more than is left of it.
type allowance struct {
	r    io.Reader
	left int
}

var errEntry = fmt.Errorf("an entry of more than %d KiB", maxEntry>>10)

func (a *allowance) Read(p []byte) (int, error) {
	if a.left <= 0 {
		return 0, errEntry
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

// newStateWriter writes the head of a state file, whose entries follow in order.
func newStateWriter(w io.Writer, head State) *stateWriter {
	head.Version, head.Sorted, head.Files = Version, true, nil
	s := &stateWriter{w: bufio.NewWriterSize(w, 64<<10)}
	b, err := json.Marshal(&head)
	s.err = err
	text, ok := strings.CutSuffix(string(b), "null}")
	if !ok && err == nil {
		s.err = errors.New("the files of a state are not its last field")
	}
	s.write(text + "[")
	return s
}

func (s *stateWriter) write(text string) {
	if s.err == nil {
		_, s.err = s.w.WriteString(text)
	}
}

// put writes the next entry.
func (s *stateWriter) put(f *File) error {
	b, err := f.MarshalJSON()
	if s.err == nil {
		s.err = err
	}
	if s.wrote {
		s.write(",")
	}
	s.wrote = true
	s.write("\n")
	s.write(string(b))
	return s.err
}

// close writes the end, and what is buffered.
func (s *stateWriter) close() error {
	s.write("\n]}\n")
	if s.err == nil {
		s.err = s.w.Flush()
	}
	return s.err
}

// WriteTo writes the state, sorted, as a state file. The paths must be each another.
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
			return n.n, fmt.Errorf("%q is there twice", files[i].Path)
		}
		if err := out.put(&files[i]); err != nil {
			return n.n, err
		}
	}
	return n.n, out.close()
}

// A counter counts what is written through it.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
