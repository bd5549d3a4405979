package tools

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
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
	Path       string `json:"path,omitempty" jsonschema:"a directory or a file; the work directory unless given"`
	Name       string `json:"name,omitempty" jsonschema:"which files, as a pattern like *.go, src/*.go or src/**/*.go"`
	Content    string `json:"content,omitempty" jsonschema:"a regular expression (RE2) that a line must match"`
	IgnoreCase bool   `json:"ignore_case,omitempty" jsonschema:"of the content"`
	MaxResults int    `json:"max_results,omitempty"`
}

type searchMatch struct {
	Path string `json:"path" jsonschema:"absolute"`
	Type string `json:"type,omitempty" jsonschema:"file, directory, symlink or other, of a search by name alone"`
	Line int    `json:"line,omitempty" jsonschema:"counted from 1"`
	Text string `json:"text,omitempty" jsonschema:"of the line, cut if it is long"`
}

type searchOutput struct {
	Matches   []searchMatch `json:"matches"`
	Truncated bool          `json:"truncated,omitempty" jsonschema:"there may be more"`
	note
}

// What a search looks at, and gives.
const (
	defaultResults = 100
	mostResults    = 1000
	maxLine        = 500       // bytes of a line that are returned
	maxSearched    = 16 << 20  // larger files are not searched for what they hold
	binaryLook     = 8 << 10   // a file with a NUL byte at its beginning is no text
	maxExpr        = 4 << 10   // bytes of a regular expression
	maxProgram     = 10_000    // instructions that it becomes
	maxSteps       = 128 << 20 // instructions times bytes of a line: more can be broken off
)

// searchTime is how long a search may take.
const searchTime = time.Minute

func searchTools() []*Tool {
	return []*Tool{with(Tool{
		Name: "sandbox_fs_search", Title: "Search files", ReadOnly: true, Idempotent: true,
		Description: "Find files of the sandbox by name, by the lines that they hold, or both. What is in .git is left out, and what is no text.",
	}, search).limited(func(p map[string]*jsonschema.Schema) {
		p["max_results"].Minimum, p["max_results"].Maximum, p["max_results"].Default = jsonschema.Ptr(1.0), jsonschema.Ptr(float64(mostResults)), []byte("100")
	})}
}

// A wanted is what a search looks for.
type wanted struct {
	name    string
	content *regexp.Regexp // nil: any
	program int            // how many instructions that has
	most    int
}

func (in searchInput) parse() (w wanted, err error) {
	w = wanted{name: in.Name, most: in.MaxResults}
	if w.most == 0 {
		w.most = defaultResults
	}
	if w.most < 1 || w.most > mostResults {
		return w, refuse(atoll.ErrInvalid, "max_results %d: must be from 1 to %d", w.most, mostResults)
	}
	if in.Name == "" && in.Content == "" {
		return w, refuse(atoll.ErrInvalid, "say what to look for: a name like *.go, a regular expression for content, or both")
	}
	for part := range strings.SplitSeq(in.Name, "/") {
		if _, err := path.Match(part, ""); err != nil {
			return w, refuse(atoll.ErrInvalid, "name %q: no pattern; use *, **, ? and [a-z]", in.Name)
		}
	}
	if in.Content == "" {
		return w, nil
	}
	expr := in.Content
	if in.IgnoreCase {
		expr = "(?i)" + expr
	}
	w.content, w.program, err = compile(expr)
	return w, err
}

// compile compiles a regular expression, and says how many instructions it has. To
// match takes time for each of these and each byte.
func compile(expr string) (re *regexp.Regexp, instructions int, err error) {
	if len(expr) > maxExpr {
		return nil, 0, refuse(atoll.ErrInvalid, "content: the regular expression is %d bytes: it may be %d", len(expr), maxExpr)
	}
	parsed, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return nil, 0, refuse(atoll.ErrInvalid, "content: no regular expression of RE2: %w", err)
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil || len(program.Inst) > maxProgram {
		return nil, 0, refuse(atoll.ErrInvalid, "content: the regular expression repeats too much: use smaller numbers in {}, or * and +")
	}
	re, err = regexp.Compile(expr)
	return re, len(program.Inst), err
}

// errEnough ends a search that has found all that it may give.
var errEnough = errors.New("enough")

func search(ctx context.Context, c *call, in searchInput) (out searchOutput, err error) {
	w, err := in.parse()
	if err != nil {
		return out, err
	}
	if in.Path == "" {
		in.Path = "."
	}
	limit := min(searchTime, c.k.limits.Timeout)
	said, err := c.at(ctx, in.Path, func(_ *desk, p place) error {
		out = searchOutput{Matches: []searchMatch{}}
		within, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		begun, err := w.search(within, p, &out)
		switch k := atoll.KindOf(err); {
		case err == nil:
			return nil
		case errors.Is(err, errEnough):
		case ctx.Err() != nil || k == atoll.ErrStopped || k == atoll.ErrNotFound:
			return err
		case within.Err() != nil:
			out.Note = fmt.Sprintf("The time for a search (%s) was over: search in directories below.", limit)
		case !begun:
			return err
		default: // a file that may not be read, or that is just being changed
			out.Note = fmt.Sprintf("The search ended early (%v): search in other directories by themselves.", cause(err))
		}
		out.Truncated = true
		return nil
	})
	out.add(said)
	return out, err
}

// search adds to out what there is at p and below. begun is whether it has seen
// anything.
func (w wanted) search(ctx context.Context, p place, out *searchOutput) (begun bool, err error) {
	all, err := p.List(ctx, p.path, true)
	switch atoll.KindOf(err) {
	case "":
		files, alone := w.of(p.path, all)
		switch {
		case w.content == nil:
			return true, w.list(files, out)
		case alone:
			return true, w.each(ctx, p, files, out)
		}
	case atoll.ErrInvalid, atoll.ErrExhausted, atoll.ErrDenied: // a file, too many, or not all may be seen: a stream has what it can
	default:
		return false, err
	}
	err = p.walk(ctx, func(hdr *tar.Header, r io.Reader) error {
		begun = true
		return w.look(ctx, p.path, hdr, r, out)
	})
	return begun, err
}

// of is what is wanted, by name and size, of all that is in dir. alone says that to
// read these alone is better than a stream of all: they are few, or small beside the
// rest.
func (w wanted) of(dir string, all []atoll.FileInfo) (files []atoll.FileInfo, alone bool) {
	var size, rest int64
	for _, f := range all {
		name := strings.TrimPrefix(strings.TrimPrefix(f.Path, dir), "/")
		if inGit(name) || !w.named(dir, name) || w.content != nil && (f.Type != atoll.TypeFile || f.Size > maxSearched) {
			rest += f.Size
			continue
		}
		size += f.Size
		files = append(files, f)
	}
	return files, len(files) <= fewFiles || rest > size+muchRest
}

// When files are read one by one: when there are so few, or when so many bytes are
// not wanted.
const (
	fewFiles = 50
	muchRest = 64 << 20
)

// list adds files to out.
func (w wanted) list(files []atoll.FileInfo, out *searchOutput) error {
	for _, f := range files {
		if err := w.add(out, searchMatch{Path: f.Path, Type: string(f.Type)}); err != nil {
			return err
		}
	}
	return nil
}

// each adds to out the lines that match of files, one by one. Those that cannot be
// read are left out.
func (w wanted) each(ctx context.Context, p place, files []atoll.FileInfo, out *searchOutput) error {
	refused := 0
	for _, f := range files {
		err := w.one(ctx, p, f.Path, out)
		switch k := atoll.KindOf(err); {
		case err == nil, k == atoll.ErrNotExist:
		case k == atoll.ErrDenied, k == atoll.ErrInvalid:
			refused++
		default:
			return err
		}
	}
	if refused > 0 {
		out.Note = fmt.Sprintf("%d files may not be read, and were left out.", refused)
	}
	return nil
}

func (w wanted) one(ctx context.Context, p place, name string, out *searchOutput) error {
	ctx, cancel := context.WithCancel(ctx) // what is not read is not waited for
	defer cancel()
	r, _, err := p.Read(ctx, name, 0)
	if err != nil {
		return err
	}
	defer r.Close()
	return w.grep(ctx, name, io.LimitReader(r, maxSearched), out)
}

// walk calls visit with all below p, in one stream.
func (p place) walk(ctx context.Context, visit func(hdr *tar.Header, r io.Reader) error) error {
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
		if err == nil {
			err = visit(hdr, in)
		}
		if err != nil {
			cancel()
			return err
		}
	}
}

// look adds to out what is wanted of one file below dir.
func (w wanted) look(ctx context.Context, dir string, hdr *tar.Header, r io.Reader, out *searchOutput) error {
	name := path.Clean(strings.TrimPrefix(hdr.Name, "./"))
	if inGit(name) || !w.named(dir, name) {
		return nil
	}
	full := path.Join(dir, name)
	if w.content == nil {
		if name == "." && hdr.Typeflag == tar.TypeDir {
			return nil
		}
		return w.add(out, searchMatch{Path: full, Type: typeOf(hdr)})
	}
	if hdr.Typeflag != tar.TypeReg || hdr.Size > maxSearched {
		return nil
	}
	return w.grep(ctx, full, r, out)
}

// named reports whether a file's name matches, or its path does if the pattern has a
// slash.
func (w wanted) named(dir, name string) bool {
	if w.name == "" {
		return true
	}
	if name == "." {
		name = path.Base(dir)
	}
	if !strings.Contains(w.name, "/") {
		name = path.Base(name)
	}
	return globbed(strings.Split(w.name, "/"), strings.Split(name, "/"))
}

// globbed is path.Match for the parts of a path, of which a part ** of the pattern
// matches any number.
func globbed(pattern, parts []string) bool {
	var after, from []string // where the last ** is tried with one part more
	again := false
	for len(pattern) > 0 || len(parts) > 0 {
		if len(pattern) > 0 && pattern[0] == "**" {
			pattern = pattern[1:]
			after, from, again = pattern, parts, true
			continue
		}
		if len(pattern) > 0 && len(parts) > 0 {
			if ok, _ := path.Match(pattern[0], parts[0]); ok { // the pattern is a good one
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

// matches reports whether a line matches. It gives up a long one when ctx ends.
func (w wanted) matches(ctx context.Context, line []byte) bool {
	if len(line) <= maxSteps/w.program {
		return w.content.Match(line)
	}
	// What is cut short may match where the whole line does not.
	return w.content.MatchReader(&runes{Reader: bytes.NewReader(line), ctx: ctx}) && ctx.Err() == nil
}

// runes are those of a line, as long as ctx has not ended.
type runes struct {
	*bytes.Reader
	ctx context.Context
	n   int
}

func (r *runes) ReadRune() (c rune, size int, err error) {
	if r.n++; r.n%64 == 0 && r.ctx.Err() != nil {
		return 0, 0, io.EOF
	}
	return r.Reader.ReadRune()
}

func (w wanted) grep(ctx context.Context, name string, r io.Reader, out *searchOutput) error {
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
		if (len(text) > 0 || err == nil) && w.matches(ctx, text) {
			if err := w.add(out, searchMatch{Path: name, Line: line, Text: excerpt(text)}); err != nil {
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

func (w wanted) add(out *searchOutput, m searchMatch) error {
	if len(out.Matches) == w.most {
		return errEnough
	}
	m.Path = strings.ToValidUTF8(m.Path, "\ufffd")
	out.Matches = append(out.Matches, m)
	return nil
}

func excerpt(line []byte) string {
	if len(line) > maxLine {
		return jobs.Text{Data: line[:maxLine], Cut: true}.String() + "..."
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
