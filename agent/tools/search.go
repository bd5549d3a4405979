package tools

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"path"
	"regexp"
	"regexp/syntax"
	"strings"
	"sync"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/jobs"
)

type searchInput struct {
	Path       string `json:"path,omitempty" jsonschema:"a directory or a file; default is the work directory"`
	Name       string `json:"name,omitempty" jsonschema:"a pattern of file names, such as *.go, src/*.go or src/**/*.go"`
	Content    string `json:"content,omitempty" jsonschema:"a regular expression (RE2) that a line must match"`
	IgnoreCase bool   `json:"ignore_case,omitempty" jsonschema:"ignore the case of content"`
	MaxResults int    `json:"max_results,omitempty"`
	Offset     int    `json:"offset,omitempty" jsonschema:"the first match to return: next_offset of the last answer"`
	outputInput
}

type searchMatch struct {
	Path string `json:"path" jsonschema:"absolute"`
	Type string `json:"type,omitempty" jsonschema:"file, directory, symlink or other; only for a search by name alone"`
	Line int    `json:"line,omitempty" jsonschema:"counted from 1"`
	Text string `json:"text,omitempty" jsonschema:"the line, cut if it is long"`
}

type searchOutput struct {
	Matches   []searchMatch `json:"matches"`
	Truncated bool          `json:"truncated,omitempty" jsonschema:"there may be more"`
	Next      int           `json:"next_offset,omitempty" jsonschema:"the offset of the rest"`
	note
}

// Bounds of searches.
const (
	defaultResults = 100
	mostResults    = 1000
	maxLine        = 500       // bytes of a line that are returned
	maxSearched    = 16 << 20  // size in bytes up to which the content of files is searched
	binaryLook     = 8 << 10   // a file with a NUL byte in this many first bytes is binary
	maxExpr        = 4 << 10   // bytes of a regular expression
	maxProgram     = 10_000    // its instructions
	maxSteps       = 128 << 20 // instructions times bytes of a line; longer matches check the context
)

// searchTime is the most time that a search takes.
const searchTime = time.Minute

func searchTools(k *Kit) []*Tool {
	return []*Tool{newTool(Tool{
		Name: "sandbox_fs_search", Title: "Search files", ReadOnly: true, Idempotent: true,
		Description: "Find files of the sandbox by name, by the lines in them, or both. The search skips .git and binary files.",
	}, searchFiles).refineInput(func(p map[string]*jsonschema.Schema) {
		p["max_results"].Minimum, p["max_results"].Maximum, p["max_results"].Default = jsonschema.Ptr(1.0), jsonschema.Ptr(float64(mostResults)), []byte("100")
		p["offset"].Minimum = jsonschema.Ptr(0.0)
		k.describeOutput(p)
	})}
}

// A query is a parsed search.
type query struct {
	name    string
	content *regexp.Regexp // nil matches all
	program int            // its number of instructions
	most    int
	skip    *int // matches before those that are returned
	room    *int // bytes of JSON for further matches
}

func (in searchInput) parseQuery() (w query, err error) {
	w = query{name: in.Name, most: in.MaxResults}
	if w.most == 0 {
		w.most = defaultResults
	}
	if w.most < 1 || w.most > mostResults {
		return w, refusalErrorf(atoll.ErrInvalid, "max_results %d: must be from 1 to %d", w.most, mostResults)
	}
	if in.Offset < 0 {
		return w, refusalErrorf(atoll.ErrInvalid, "offset %d: use next_offset of the last answer, or 0", in.Offset)
	}
	if in.Name == "" && in.Content == "" {
		return w, refusalErrorf(atoll.ErrInvalid, "set what to look for: a name like *.go, a regular expression for content, or both")
	}
	for part := range strings.SplitSeq(in.Name, "/") {
		if _, err := path.Match(part, ""); err != nil {
			return w, refusalErrorf(atoll.ErrInvalid, "name %q is not a valid pattern: use *, **, ? and [a-z]", in.Name)
		}
	}
	if in.Content == "" {
		return w, nil
	}
	expr := in.Content
	if in.IgnoreCase {
		expr = "(?i)" + expr
	}
	w.content, w.program, err = compileRegexp(expr)
	return w, err
}

// compileRegexp compiles a regular expression, and returns its number of instructions.
// Matching takes time proportional to these times the bytes of a line.
func compileRegexp(expr string) (re *regexp.Regexp, instructions int, err error) {
	if len(expr) > maxExpr {
		return nil, 0, refusalErrorf(atoll.ErrInvalid, "content: the regular expression has %d bytes: at most %d are allowed", len(expr), maxExpr)
	}
	parsed, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return nil, 0, refusalErrorf(atoll.ErrInvalid, "content: not a regular expression of RE2: %w", err)
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil || len(program.Inst) > maxProgram {
		return nil, 0, refusalErrorf(atoll.ErrInvalid, "content: the regular expression repeats too much: use smaller numbers in {}, or * and +")
	}
	re, err = regexp.Compile(expr)
	return re, len(program.Inst), err
}

// errEnough ends a search that has found its maximum of results.
var errEnough = errors.New("enough")

func searchFiles(ctx context.Context, c *call, in searchInput) (out searchOutput, err error) {
	w, err := in.parseQuery()
	if err != nil {
		return out, err
	}
	most, err := c.k.outputLimit(in.MaxOutput)
	if err != nil {
		return out, err
	}
	if in.Path == "" {
		in.Path = "."
	}
	c.reads = true
	limit := min(searchTime, c.k.limits.Timeout)
	said, err := c.withFile(ctx, in.Path, func(_ *sandboxState, p fileRef) error {
		out = searchOutput{Matches: []searchMatch{}}
		skip, room := in.Offset, most
		w.skip, w.room = &skip, &room
		within, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		begun, err := w.searchTree(within, p, &out)
		switch k := atoll.KindOf(err); {
		case err == nil:
			return nil
		case errors.Is(err, errEnough):
			out.Next = in.Offset + len(out.Matches)
			out.appendNote("There are more matches: offset %d returns them. Or search in a directory below, or for less.", out.Next)
		case ctx.Err() != nil || k == atoll.ErrStopped || k == atoll.ErrNotFound:
			return err
		case within.Err() != nil:
			out.appendNote("The time for a search (%s) was over: search in directories below.", limit)
		case !begun:
			return err
		default: // an unreadable file, or one that is changing
			out.appendNote("The search ended early (%v): search in other directories by themselves.", errorCause(err))
		}
		out.Truncated = true
		return nil
	})
	out.addNote(said)
	return out, err
}

// searchTree adds the matches at p and below to out. begun tells whether it has seen
// any file.
func (w query) searchTree(ctx context.Context, p fileRef, out *searchOutput) (begun bool, err error) {
	all, err := p.List(ctx, p.path, true)
	switch atoll.KindOf(err) {
	case "":
		files, alone := w.selectFiles(p.path, all)
		switch {
		case w.content == nil:
			return true, w.addFiles(files, out)
		case alone:
			return true, w.grepFiles(ctx, p, files, out)
		}
	case atoll.ErrInvalid, atoll.ErrExhausted, atoll.ErrDenied: // a single file, too many files, or unreadable ones: a tar stream contains the readable ones
	default:
		return false, err
	}
	err = p.walkTar(ctx, func(hdr *tar.Header, r io.Reader) error {
		begun = true
		return w.matchEntry(ctx, p.path, hdr, r, out)
	})
	return begun, err
}

// selectFiles returns the files in all that match by name and size. alone tells that
// reading only these is better than a stream of everything: they are few, or small
// compared with the rest.
func (w query) selectFiles(dir string, all []atoll.FileInfo) (files []atoll.FileInfo, alone bool) {
	var size, rest int64
	for _, f := range all {
		name := strings.TrimPrefix(strings.TrimPrefix(f.Path, dir), "/")
		if inGit(name) || !w.matchName(dir, name) || w.content != nil && (f.Type != atoll.TypeFile || f.Size > maxSearched) {
			rest += f.Size
			continue
		}
		size += f.Size
		files = append(files, f)
	}
	return files, len(files) <= fewFiles || rest > size+muchRest
}

// Files are read one by one if they are few, or if the rest has many bytes.
const (
	fewFiles = 50
	muchRest = 64 << 20
)

// addFiles adds files to out.
func (w query) addFiles(files []atoll.FileInfo, out *searchOutput) error {
	for _, f := range files {
		if err := w.addMatch(out, searchMatch{Path: f.Path, Type: string(f.Type)}); err != nil {
			return err
		}
	}
	return nil
}

// grepFiles adds matching lines of files to out. It skips unreadable files.
func (w query) grepFiles(ctx context.Context, p fileRef, files []atoll.FileInfo, out *searchOutput) error {
	refused := 0
	for _, f := range files {
		err := w.grepFile(ctx, p, f.Path, out)
		switch k := atoll.KindOf(err); {
		case err == nil, k == atoll.ErrNotExist:
		case k == atoll.ErrDenied, k == atoll.ErrInvalid:
			refused++
		default:
			return err
		}
	}
	if refused > 0 {
		out.appendNote("%d files may not be read, and were left out.", refused)
	}
	return nil
}

func (w query) grepFile(ctx context.Context, p fileRef, name string, out *searchOutput) error {
	ctx, cancel := context.WithCancel(ctx) // don't wait for the rest
	defer cancel()
	r, _, err := p.Read(ctx, name, 0)
	if err != nil {
		return err
	}
	defer r.Close()
	return w.grepReader(ctx, name, io.LimitReader(r, maxSearched), out)
}

// walkTar calls visit with everything below p, in one stream.
func (p fileRef) walkTar(ctx context.Context, visit func(hdr *tar.Header, r io.Reader) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, w := io.Pipe()
	var packing sync.WaitGroup
	defer packing.Wait()
	defer r.CloseWithError(io.ErrClosedPipe)
	packing.Go(func() { w.CloseWithError(p.WriteTar(ctx, p.path, w)) })
	in := tar.NewReader(r)
	for {
		hdr, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && hdr.Typeflag != tar.TypeXGlobalHeader { // which is about a file that is not in the stream
			err = visit(hdr, in)
		}
		if err != nil {
			cancel()
			return err
		}
	}
}

// matchEntry adds the matches of one tar entry below dir to out.
func (w query) matchEntry(ctx context.Context, dir string, hdr *tar.Header, r io.Reader, out *searchOutput) error {
	name := path.Clean(strings.TrimPrefix(hdr.Name, "./"))
	if inGit(name) || !w.matchName(dir, name) {
		return nil
	}
	full := path.Join(dir, name)
	if w.content == nil {
		if name == "." && hdr.Typeflag == tar.TypeDir {
			return nil
		}
		return w.addMatch(out, searchMatch{Path: full, Type: typeOf(hdr)})
	}
	if hdr.Typeflag != tar.TypeReg || hdr.Size > maxSearched {
		return nil
	}
	return w.grepReader(ctx, full, r, out)
}

// matchName reports whether a file's name matches, or its path if the pattern has a
// slash.
func (w query) matchName(dir, name string) bool {
	if w.name == "" {
		return true
	}
	if name == "." {
		name = path.Base(dir)
	}
	if !strings.Contains(w.name, "/") {
		name = path.Base(name)
	}
	return matchGlob(strings.Split(w.name, "/"), strings.Split(name, "/"))
}

// matchGlob is path.Match for the elements of a path; an element ** of the pattern
// matches any number of elements.
func matchGlob(pattern, parts []string) bool {
	var after, from []string // where the last ** resumes, with one more element
	again := false
	for len(pattern) > 0 || len(parts) > 0 {
		if len(pattern) > 0 && pattern[0] == "**" {
			pattern = pattern[1:]
			after, from, again = pattern, parts, true
			continue
		}
		if len(pattern) > 0 && len(parts) > 0 {
			if ok, _ := path.Match(pattern[0], parts[0]); ok { // the pattern is valid
				pattern, parts = pattern[1:], parts[1:]
				continue
			}
		}
		if !again || len(from) == 0 {
			return false
		}
		from = from[1:]
		pattern, parts = after, from
	}
	return true
}

// matchLine reports whether a line matches. It gives up on a long line when ctx ends.
func (w query) matchLine(ctx context.Context, line []byte) bool {
	if len(line) <= maxSteps/w.program {
		return w.content.Match(line)
	}
	// A truncated line may match although the whole line doesn't.
	return w.content.MatchReader(&lineReader{Reader: bytes.NewReader(line), ctx: ctx}) && ctx.Err() == nil
}

// A lineReader reads the runes of a line until ctx ends.
type lineReader struct {
	*bytes.Reader
	ctx context.Context
	n   int
}

func (r *lineReader) ReadRune() (c rune, size int, err error) {
	if r.n++; r.n%64 == 0 && r.ctx.Err() != nil {
		return 0, 0, io.EOF
	}
	return r.Reader.ReadRune()
}

func (w query) grepReader(ctx context.Context, name string, r io.Reader, out *searchOutput) error {
	in := bufio.NewReaderSize(r, 64<<10)
	if head, _ := in.Peek(binaryLook); bytes.IndexByte(head, 0) >= 0 {
		return nil
	}
	for line := 1; ; line++ {
		text, err := in.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		text = bytes.TrimRight(text, "\r\n")
		if (len(text) > 0 || err == nil) && w.matchLine(ctx, text) {
			if err := w.addMatch(out, searchMatch{Path: name, Line: line, Text: cutLine(text)}); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return nil
		}
	}
}

func (w query) addMatch(out *searchOutput, m searchMatch) error {
	if *w.skip > 0 {
		*w.skip--
		return nil
	}
	m.Path = strings.ToValidUTF8(m.Path, "\ufffd")
	*w.room -= sizeInList(m)
	if len(out.Matches) == w.most || *w.room < 0 && len(out.Matches) > 0 {
		return errEnough
	}
	out.Matches = append(out.Matches, m)
	return nil
}

func cutLine(line []byte) string {
	if len(line) > maxLine {
		return jobs.Text{Data: line[:jobs.FitStart(line, maxLine)]}.String() + "..."
	}
	return jobs.Text{Data: line}.String()
}

// inGit reports whether a name is in a directory .git.
func inGit(name string) bool {
	return name == ".git" || strings.HasPrefix(name, ".git/") || strings.Contains(name, "/.git/") || strings.HasSuffix(name, "/.git")
}

func typeOf(hdr *tar.Header) string {
	switch hdr.Typeflag {
	case tar.TypeReg, tar.TypeLink:
		return string(atoll.TypeFile)
	case tar.TypeDir:
		return string(atoll.TypeDirectory)
	case tar.TypeSymlink:
		return string(atoll.TypeSymlink)
	}
	return string(atoll.TypeOther)
}
