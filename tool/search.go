package tool

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"path"
	"regexp"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/seed46cd37a8/atoll"
)

type searchInput struct {
	Path       string `json:"path,omitempty" jsonschema:"a directory or a file; the work directory unless given"`
	Name       string `json:"name,omitempty" jsonschema:"which files, as a pattern like *.go, or src/*.go"`
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
	Truncated bool          `json:"truncated,omitempty" jsonschema:"there are more"`
	note
}

// What a search looks at, and gives.
const (
	defaultResults = 100
	mostResults    = 1000
	maxLine        = 500      // bytes of a line that are returned
	maxSearched    = 16 << 20 // larger files are not searched for what they hold
	binaryLook     = 8 << 10  // a file with a NUL byte at its beginning is no text
)

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
	if _, err := path.Match(in.Name, ""); err != nil {
		return w, refuse(atoll.ErrInvalid, "name %q: no pattern; use *, ? and [a-z]", in.Name)
	}
	if in.Content != "" {
		expr := in.Content
		if in.IgnoreCase {
			expr = "(?i)" + expr
		}
		if w.content, err = regexp.Compile(expr); err != nil {
			return w, refuse(atoll.ErrInvalid, "content: no regular expression of RE2: %w", err)
		}
	}
	return w, nil
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
	said, err := c.at(ctx, in.Path, func(_ *desk, p place) error {
		out.Matches, out.Truncated = []searchMatch{}, false
		err := p.walk(ctx, func(hdr *tar.Header, r io.Reader) error { return w.look(p.path, hdr, r, &out) })
		if errors.Is(err, errEnough) {
			out.Truncated, err = true, nil
		}
		return err
	})
	out.add(said)
	return out, err
}

// walk calls visit with all below p, in one stream.
func (p place) walk(ctx context.Context, visit func(hdr *tar.Header, r io.Reader) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := p.WriteTar(ctx, p.path, w)
		w.CloseWithError(err)
		packed <- err
	}()
	err := func() error {
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
				return err
			}
		}
	}()
	cancel()
	r.CloseWithError(io.ErrClosedPipe)
	if sent := <-packed; err == nil && sent != nil && ctx.Err() == nil {
		err = sent
	}
	return err
}

// look adds to out what is wanted of one file below dir.
func (w wanted) look(dir string, hdr *tar.Header, r io.Reader, out *searchOutput) error {
	name := path.Clean(strings.TrimPrefix(hdr.Name, "./"))
	if inGit(name) {
		return nil
	}
	if w.name != "" && !w.named(dir, name) {
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
	return w.grep(full, r, out)
}

// named reports whether a file's name matches, or its path does if the pattern has a
// slash.
func (w wanted) named(dir, name string) bool {
	if name == "." {
		name = path.Base(dir)
	}
	subject := path.Base(name)
	if strings.Contains(w.name, "/") {
		subject = name
	}
	ok, _ := path.Match(w.name, subject) // the pattern is a good one
	return ok
}

func (w wanted) grep(name string, r io.Reader, out *searchOutput) error {
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
		if (len(text) > 0 || err == nil) && w.content.Match(text) {
			if err := w.add(out, searchMatch{Path: name, Line: line, Text: excerpt(text)}); err != nil {
				return err
			}
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
		return text{line[:maxLine], true}.string() + "..."
	}
	return text{data: line}.string()
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
