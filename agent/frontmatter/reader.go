package frontmatter

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// maxErrors is how many mistakes are told of at once.
const maxErrors = 20

// Bounds of lists of packages.
const (
	maxPackages    = 200
	maxPackageName = 256
)

// A reader walks the tree of one file, and collects all that is wrong.
type reader struct {
	name string
	errs []error
	more int // beyond maxErrors
}

func (r *reader) badf(n *yaml.Node, format string, args ...any) {
	if len(r.errs) == maxErrors {
		r.more++
		return
	}
	r.errs = append(r.errs, fmt.Errorf("%s:%d: "+format, append([]any{r.name, n.Line}, args...)...))
}

func (r *reader) join() error {
	if r.more > 0 {
		return errors.Join(append(r.errs, fmt.Errorf("%s: and %d more", r.name, r.more))...)
	}
	return errors.Join(r.errs...)
}

// agent takes what is ours of the table at the top.
func (r *reader) agent(top *yaml.Node, a *Agent) {
	var sandbox *yaml.Node
	for i := 0; i+1 < len(top.Content); i += 2 {
		k, v := follow(top.Content[i]), follow(top.Content[i+1])
		switch {
		case k.Kind != yaml.ScalarNode:
		case k.Value == "sandbox" && sandbox != nil:
			r.badf(k, "sandbox is set twice, first in line %d: keep one", sandbox.Line)
		case k.Value == "sandbox":
			sandbox = k
			a.Sandbox = r.sandbox(v)
		case k.ShortTag() == "!!merge" && merges(v, "sandbox"):
			r.badf(k, "sandbox: not taken from <<: write it into the front matter itself")
		case k.Value == "metadata":
			if n := child(v, "name"); n != nil && n.Kind == yaml.ScalarNode && !isNull(n) && strings.TrimSpace(n.Value) != "" {
				a.Name = strings.TrimSpace(n.Value)
			}
		}
	}
}

// child is the value of a key of n, nil when there is none.
func child(n *yaml.Node, key string) *yaml.Node {
	if n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if k := follow(n.Content[i]); k.Kind == yaml.ScalarNode && k.Value == key {
			return follow(n.Content[i+1])
		}
	}
	return nil
}

// merges reports whether n, the value of <<, has the key.
func merges(n *yaml.Node, key string) bool {
	if n.Kind != yaml.SequenceNode {
		return child(n, key) != nil
	}
	return slices.ContainsFunc(n.Content, func(c *yaml.Node) bool { return child(follow(c), key) != nil })
}

// sandbox is nil when there is nothing in n.
func (r *reader) sandbox(n *yaml.Node) *Sandbox {
	s := &Sandbox{Mode: ModeCompute, Session: SessionWorkflow, Limits: DefaultLimits()}
	switch {
	case isNull(n), n.Kind == yaml.ScalarNode && n.Value == "":
		return nil
	case n.Kind == yaml.ScalarNode:
		r.runtime("sandbox", n, &s.Runtime)
	case n.Kind != yaml.MappingNode:
		r.badf(n, "sandbox: a list: write a runtime like python, or keys like runtime and mode")
	default:
		r.table("sandbox", n, map[string]func(string, *yaml.Node){
			"runtime":       func(at string, v *yaml.Node) { r.runtime(at, v, &s.Runtime) },
			"mode":          func(at string, v *yaml.Node) { oneOf(r, at, v, &s.Mode, ModeCompute, ModeCode) },
			"session":       func(at string, v *yaml.Node) { oneOf(r, at, v, &s.Session, SessionWorkflow, SessionAgent) },
			"limits":        func(at string, v *yaml.Node) { r.limits(at, v, &s.Limits) },
			"allow_network": func(at string, v *yaml.Node) { r.flag(at, v, &s.AllowNetwork) },
			"pip_packages":  func(at string, v *yaml.Node) { r.packages(at, v, &s.PipPackages) },
			"npm_packages":  func(at string, v *yaml.Node) { r.packages(at, v, &s.NPMPackages) },
		})
	}
	s.settle()
	return s
}

func (r *reader) limits(at string, n *yaml.Node, l *Limits) {
	if n.Kind != yaml.MappingNode {
		r.badf(n, "%s: %s: write keys like timeout_seconds below it", at, show(n))
		return
	}
	r.table(at, n, map[string]func(string, *yaml.Node){
		"timeout_seconds": func(at string, v *yaml.Node) {
			if n, ok := r.number(at, v, int64(maxTimeout/time.Second)); ok {
				l.Timeout = time.Duration(n) * time.Second
			}
		},
		"max_file_size_bytes": func(at string, v *yaml.Node) {
			if n, ok := r.number(at, v, maxFileSize); ok {
				l.MaxFileSize = n
			}
		},
		"max_files": func(at string, v *yaml.Node) {
			if n, ok := r.number(at, v, maxFiles); ok {
				l.MaxFiles = int(n)
			}
		},
	})
}

// table hands each value of n to its key's function, with the key's whole name.
// A key without a value counts as not written.
func (r *reader) table(at string, n *yaml.Node, keys map[string]func(at string, v *yaml.Node)) {
	first := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := follow(n.Content[i]), follow(n.Content[i+1])
		if k.Kind != yaml.ScalarNode {
			r.badf(k, "%s: a key must be a word", at)
			continue
		}
		if line, twice := first[k.Value]; twice {
			r.badf(k, "%s.%.60s is set twice, first in line %d: keep one", at, k.Value, line)
			continue
		}
		first[k.Value] = k.Line
		take, known := keys[k.Value]
		switch {
		case !known:
			r.badf(k, "%s: unknown key %.60q: %s", at, k.Value, instead(at, k, slices.Sorted(maps.Keys(keys))))
		case !isNull(v):
			take(at+"."+k.Value, v)
		}
	}
}

// instead says what to write in place of a key that the table at does not have.
func instead(at string, k *yaml.Node, known []string) string {
	top := at == "sandbox"
	switch {
	case k.ShortTag() == "!!merge":
		return "write the keys out"
	case top && k.Value == "image":
		return "write the image as runtime"
	case top && (k.Value == "timeout_seconds" || k.Value == "max_file_size_bytes" || k.Value == "max_files"):
		return "it belongs below limits"
	}
	return "the known ones are " + strings.Join(known, ", ")
}

// text takes a word or sentence; what it should be is said by want. Without one
// it answers false.
func (r *reader) text(at string, v *yaml.Node, want string) (string, bool) {
	if v.Kind != yaml.ScalarNode || v.ShortTag() != "!!str" {
		r.badf(v, "%s: %s: write %s", at, show(v), want)
		return "", false
	}
	return v.Value, v.Value != ""
}

func (r *reader) runtime(at string, v *yaml.Node, p *string) {
	const want = "linux, python, node, bash or an image like golang:1.22"
	text, ok := r.text(at, v, want+"; for no sandbox leave the key sandbox out")
	if !ok {
		return
	}
	switch strings.ToLower(text) {
	case string(ModeCompute), string(ModeCode):
		r.badf(v, "%s: %q is a mode: write \"mode: %s\" below sandbox", at, text, strings.ToLower(text))
		return
	case "true", "false", "yes", "no", "on", "off", "none", "null":
		r.badf(v, "%s: %q: write %s; for no sandbox leave the key sandbox out", at, text, want)
		return
	}
	if err := checkReference(text); err != nil {
		r.badf(v, "%s: %.60q: %w", at, text, err)
		return
	}
	*p = text
}

func oneOf[T ~string](r *reader, at string, v *yaml.Node, p *T, one, other T) {
	want := fmt.Sprintf("%s or %s", one, other)
	text, ok := r.text(at, v, want)
	switch {
	case !ok:
	case T(text) != one && T(text) != other:
		r.badf(v, "%s: %.60q: write %s", at, text, want)
	default:
		*p = T(text)
	}
}

func (r *reader) flag(at string, v *yaml.Node, p *bool) {
	b, err := strconv.ParseBool(v.Value)
	if err != nil || v.ShortTag() != "!!bool" {
		r.badf(v, "%s: %s: write true or false, without quotes", at, show(v))
		return
	}
	*p = b
}

// number takes whole numbers from 1 to most, in decimal only: YAML has more
// ways to write one, in which 010 is 8.
func (r *reader) number(at string, v *yaml.Node, most int64) (int64, bool) {
	n, err := strconv.ParseInt(v.Value, 10, 64)
	plain := err == nil && v.ShortTag() == "!!int" && strconv.FormatInt(n, 10) == v.Value
	if !plain || n < 1 || n > most {
		r.badf(v, "%s: %s: write a whole number from 1 to %d, without unit or quotes", at, show(v), most)
		return 0, false
	}
	return n, true
}

func (r *reader) packages(at string, n *yaml.Node, p *[]string) {
	if n.Kind != yaml.SequenceNode {
		r.badf(n, "%s: %s: write a list, like [first, second]", at, show(n))
		return
	}
	if len(n.Content) > maxPackages {
		r.badf(n, "%s: %d packages: at most %d; make an image that has them", at, len(n.Content), maxPackages)
		return
	}
	for i, c := range n.Content {
		at, c := fmt.Sprintf("%s[%d]", at, i), follow(c)
		if c.Kind != yaml.ScalarNode || c.ShortTag() != "!!str" || !validPackage(c.Value) {
			r.badf(c, "%s: %s: write the name of a package, in quotes if need be; options are not taken", at, show(c))
			continue
		}
		*p = append(*p, c.Value)
	}
}

// validPackage refuses what the installer would take for an option, and what
// ends a line.
func validPackage(text string) bool {
	return text != "" && text[0] != '-' && len(text) <= maxPackageName && strings.TrimSpace(text) == text &&
		!strings.ContainsFunc(text, unicode.IsControl)
}

// show is a value in an error.
func show(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a table"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	}
	return fmt.Sprintf("%.60q", n.Value)
}

// follow gives what an alias stands for, in the line of the alias.
func follow(n *yaml.Node) *yaml.Node {
	if n.Kind != yaml.AliasNode {
		return n
	}
	c := *n.Alias
	c.Line = n.Line
	return &c
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }
