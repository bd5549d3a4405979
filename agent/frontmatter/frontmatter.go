// Package frontmatter parses agent files: Markdown that begins with YAML between two
// lines ---. Its key sandbox configures the sandbox that runs the agent's commands.
//
//	---
//	model: openai/gpt-4o
//	metadata:
//	  name: "Code Developer"
//	sandbox:
//	  mode: code
//	  runtime: linux
//	---
//
//	You are a developer with access to a full Linux sandbox.
//
// The value of sandbox is a runtime, as in "sandbox: python", which means a table with
// that runtime, or a table:
//
//	runtime        linux, bash, shell, python, node or an image; see below
//	mode           compute (a fresh sandbox for each call) or code (one that stays); compute
//	session        workflow (shared by its steps) or agent (one for each run), in mode code; workflow
//	allow_network  true or false; false
//	pip_packages   a list, for python
//	npm_packages   a list, for node
//	limits         a table: timeout_seconds (300), max_file_size_bytes (10485760), max_files (100)
//
// In mode compute, programs can use no other runtime than the named one, and need not
// name it; without one they can use any, and python is the default. They run in this
// machine's own programs if a provider can show these, and the file names neither an
// image nor packages. In mode code, the runtime is the image of the sandbox, and without
// one it is the default image.
//
// Below sandbox all keys must be known and valid. Other keys belong to other programs,
// and may hold any YAML.
//
// [Images] maps runtimes to images, and checks which are allowed.
package frontmatter

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/seed46cd37a8/atoll"
)

// maxFile is the most bytes of a file, far more than any sensible one has.
const maxFile = 1 << 20

// An Agent is the content of an agent file.
type Agent struct {
	Name    string   // metadata.name, else the file's name without directory and extension
	Sandbox *Sandbox // nil if the key sandbox is missing or empty
	Body    string   // the text behind the front matter, unchanged; without front matter the whole file
}

// Load parses the file at path. A missing file is ErrNotExist.
func Load(path string) (*Agent, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, atoll.E("agent", "", atoll.KindOf(err), err)
	}
	defer f.Close()
	if fi, err := f.Stat(); err == nil && fi.IsDir() {
		return nil, atoll.Errorf("agent", "", atoll.ErrInvalid, "%s is a directory: use a file in it", path)
	}
	return Parse(path, f)
}

// Parse reads an agent file from r; name is its name in errors. Any error of the file
// is ErrInvalid, and all errors below sandbox are reported at once, each with its line.
//
// A file whose first non-blank line isn't --- has no front matter. An error of r is
// returned with its own kind.
func Parse(name string, r io.Reader) (*Agent, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, atoll.Errorf("agent", "", atoll.KindOf(err), "%s: %w", name, err)
	}
	a, err := parseFile(name, data)
	if err != nil {
		return nil, atoll.E("agent", "", atoll.ErrInvalid, err)
	}
	return a, nil
}

func parseFile(name string, data []byte) (*Agent, error) {
	if len(data) > maxFile {
		return nil, fmt.Errorf("%s: larger than %d bytes: keep what the agent works on in files of their own", name, maxFile)
	}
	data = bytes.TrimPrefix(data, []byte("\uFEFF"))
	if !utf8.Valid(data) {
		return nil, fmt.Errorf("%s:%d: not UTF-8: save the file in that encoding", name, 1+strings.Count(validPart(data), "\n"))
	}
	head, body, open, err := splitFile(string(data))
	if err != nil {
		return nil, fmt.Errorf("%s:%d: %w", name, open, err)
	}
	base := filepath.Base(name)
	a := &Agent{Name: cmp.Or(strings.TrimSuffix(base, filepath.Ext(base)), base), Body: body}
	if open == 0 {
		return a, nil
	}
	top, err := decodeHead(name, head, open)
	if err != nil || top == nil {
		return a, err
	}
	rd := &reader{name: name}
	rd.readAgent(top, a)
	return a, rd.joinErrors()
}

// validPart returns the part before the first byte that is not UTF-8.
func validPart(data []byte) string {
	n := 0
	for n < len(data) {
		r, size := utf8.DecodeRune(data[n:])
		if r == utf8.RuneError && size == 1 {
			break
		}
		n += size
	}
	return string(data[:n])
}

// splitFile cuts text at the two lines ---. The head begins with empty lines in place
// of the lines before it, so that its line numbers are those of the file. open is the
// line of the first ---, 0 if there is no front matter.
func splitFile(text string) (head, body string, open int, err error) {
	start, line := 0, 0
	for at := 0; at < len(text); {
		line++
		end := len(text)
		if i := strings.IndexByte(text[at:], '\n'); i >= 0 {
			end = at + i + 1
		}
		switch found := strings.TrimRight(text[at:end], " \t\r\n"); {
		case open > 0 && found == "---":
			return strings.Repeat("\n", open) + text[start:at], text[end:], open, nil
		case open > 0 || found == "":
		case found == "---":
			open, start = line, end
		default:
			return "", text, 0, nil
		}
		at = end
	}
	if open > 0 {
		return "", "", open, errors.New("the front matter is not closed: put a line --- between it and the text")
	}
	return "", text, 0, nil
}

// decodeHead returns the table at the top of head, nil if there is none.
func decodeHead(name, head string, open int) (*yaml.Node, error) {
	dec := yaml.NewDecoder(strings.NewReader(head))
	var doc, more yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, syntaxError(name, head, open, err)
	}
	if err := dec.Decode(&more); err == nil {
		return nil, fmt.Errorf("%s:%d: a second document begins here: keep one, between two lines ---", name, more.Line)
	} else if !errors.Is(err, io.EOF) {
		return nil, syntaxError(name, head, open, err)
	}
	top := resolveAlias(doc.Content[0])
	switch {
	case isNull(top):
		return nil, nil
	case top.Kind != yaml.MappingNode:
		return nil, fmt.Errorf("%s:%d: the front matter is not a table: write it as lines like \"sandbox: python\"", name, top.Line)
	}
	return top, nil
}

// syntaxError tells where the YAML library stopped. It adds hints for errors that the
// library explains badly: a tab, which editors hide, or an early end.
func syntaxError(name, head string, open int, err error) error {
	line, text := splitMessage(err)
	switch {
	case strings.HasPrefix(text, "did not find expected ',' or"):
		line++ // the start of the brackets, counted from 0
	case line == 0, strings.HasPrefix(text, "did not find expected"):
		line = cmp.Or(findError(head, text), open) // otherwise it is the start of the whole table
	}
	hint := ""
	for i, l := range strings.Split(head, "\n") {
		indent := l[:len(l)-len(strings.TrimLeft(l, " \t"))]
		if strings.Contains(indent, "\t") {
			hint = fmt.Sprintf("; line %d is indented with a tab: use spaces", i+1)
			break
		}
		if strings.TrimRight(l, " \t\r") == "..." {
			hint = fmt.Sprintf("; line %d ends it: take it out", i+1)
			break
		}
	}
	return fmt.Errorf("%s:%d: the front matter is not YAML: %s%s", name, line, text, hint)
}

// splitMessage returns the YAML library's message, and its line; 0 if unknown.
func splitMessage(err error) (line int, text string) {
	text = strings.TrimPrefix(err.Error(), "yaml: ")
	if _, bad := fmt.Sscanf(text, "line %d:", &line); bad == nil {
		_, text, _ = strings.Cut(text, ": ")
	}
	return line, text
}

// Bounds of the search for a mistake in a head: each step parses it from its start.
const (
	maxSearched      = 16 << 10
	maxSearchedLines = 300
)

// findError returns the first line of head for which the library reports text, 0 if
// there is none.
func findError(head, text string) int {
	if len(head) > maxSearched {
		return 0
	}
	line := 0
	for end := 0; end < len(head) && line < maxSearchedLines; {
		line++
		if i := strings.IndexByte(head[end:], '\n'); i >= 0 {
			end += i + 1
		} else {
			end = len(head)
		}
		dec := yaml.NewDecoder(strings.NewReader(head[:end]))
		var doc yaml.Node
		err := dec.Decode(&doc)
		if err == nil {
			err = dec.Decode(&doc)
		}
		if err == nil || errors.Is(err, io.EOF) {
			continue
		}
		if _, said := splitMessage(err); said == text {
			return line
		}
	}
	return 0
}
