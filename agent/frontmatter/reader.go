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

// maxErrors is the most mistakes that are reported at once.
const maxErrors = 20

// Bounds of lists of packages.
const (
	maxPackages    = 200
	maxPackageName = 256
)

// A reader walks the tree of one file, and collects all errors.
type reader struct {
	name string
	errs []error
	more int // beyond maxErrors
}

func (r *reader) addErrorf(n *yaml.Node, format string, args ...any) {
	if len(r.errs) == maxErrors {
		r.more++
		return
	}
	r.errs = append(r.errs, fmt.Errorf("%s:%d: "+format, append([]any{r.name, n.Line}, args...)...))
}

func (r *reader) joinErrors() error {
	if r.more > 0 {
		return errors.Join(append(r.errs, fmt.Errorf("%s: and %d more", r.name, r.more))...)
	}
	return errors.Join(r.errs...)
}

// readAgent reads Atoll's keys of the top table.
func (r *reader) readAgent(top *yaml.Node, a *Agent) {
	var sandbox *yaml.Node
	for i := 0; i+1 < len(top.Content); i += 2 {
		k, v := resolveAlias(top.Content[i]), resolveAlias(top.Content[i+1])
		switch {
		case k.Kind != yaml.ScalarNode:
		case k.Value == "sandbox" && sandbox != nil:
			r.addErrorf(k, "sandbox is set twice, first in line %d: keep one", sandbox.Line)
		case k.Value == "sandbox":
			sandbox = k
			a.Sandbox = r.readSandbox(v)
		case k.ShortTag() == "!!merge" && mergesKey(v, "sandbox"):
			r.addErrorf(k, "sandbox: not supported in <<: write it into the front matter itself")
		case k.Value == "metadata":
			if n := childOf(v, "name"); n != nil && n.Kind == yaml.ScalarNode && !isNull(n) && strings.TrimSpace(n.Value) != "" {
				a.Name = strings.TrimSpace(n.Value)
			}
		}
	}
}

// childOf returns the value of a key of n, nil if there is none.
func childOf(n *yaml.Node, key string) *yaml.Node {
	if n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if k := resolveAlias(n.Content[i]); k.Kind == yaml.ScalarNode && k.Value == key {
			return resolveAlias(n.Content[i+1])
		}
	}
	return nil
}

// mergesKey reports whether n, the value of <<, has the key.
func mergesKey(n *yaml.Node, key string) bool {
	if n.Kind != yaml.SequenceNode {
		return childOf(n, key) != nil
	}
	return slices.ContainsFunc(n.Content, func(c *yaml.Node) bool { return childOf(resolveAlias(c), key) != nil })
}

// readSandbox returns nil if n is empty.
func (r *reader) readSandbox(n *yaml.Node) *Sandbox {
	s := &Sandbox{Mode: ModeCompute, Session: SessionWorkflow, Limits: DefaultLimits()}
	switch {
	case isNull(n), n.Kind == yaml.ScalarNode && n.Value == "":
		return nil
	case n.Kind == yaml.ScalarNode:
		r.readRuntime("sandbox", n, &s.Runtime)
	case n.Kind != yaml.MappingNode:
		r.addErrorf(n, "sandbox: a list: write a runtime like python, or keys like runtime and mode")
	default:
		r.readTable("sandbox", n, map[string]func(string, *yaml.Node){
			"runtime":       func(at string, v *yaml.Node) { r.readRuntime(at, v, &s.Runtime) },
			"mode":          func(at string, v *yaml.Node) { readChoice(r, at, v, &s.Mode, ModeCompute, ModeCode) },
			"session":       func(at string, v *yaml.Node) { readChoice(r, at, v, &s.Session, SessionWorkflow, SessionAgent) },
			"limits":        func(at string, v *yaml.Node) { r.readLimits(at, v, &s.Limits) },
			"allow_network": func(at string, v *yaml.Node) { r.readFlag(at, v, &s.AllowNetwork) },
			"pip_packages":  func(at string, v *yaml.Node) { r.readPackages(at, v, &s.PipPackages) },
			"npm_packages":  func(at string, v *yaml.Node) { r.readPackages(at, v, &s.NPMPackages) },
		})
	}
	s.normalizeRuntime()
	return s
}

func (r *reader) readLimits(at string, n *yaml.Node, l *Limits) {
	if n.Kind != yaml.MappingNode {
		r.addErrorf(n, "%s: %s: write keys like timeout_seconds below it", at, describeNode(n))
		return
	}
	r.readTable(at, n, map[string]func(string, *yaml.Node){
		"timeout_seconds": func(at string, v *yaml.Node) {
			if n, ok := r.readNumber(at, v, int64(maxTimeout/time.Second)); ok {
				l.Timeout = time.Duration(n) * time.Second
			}
		},
		"max_file_size_bytes": func(at string, v *yaml.Node) {
			if n, ok := r.readNumber(at, v, maxFileSize); ok {
				l.MaxFileSize = n
			}
		},
		"max_files": func(at string, v *yaml.Node) {
			if n, ok := r.readNumber(at, v, maxFiles); ok {
				l.MaxFiles = int(n)
			}
		},
	})
}

// readTable passes each value of n to its key's function, with the key's full name. It
// ignores a key without a value.
func (r *reader) readTable(at string, n *yaml.Node, keys map[string]func(at string, v *yaml.Node)) {
	first := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := resolveAlias(n.Content[i]), resolveAlias(n.Content[i+1])
		if k.Kind != yaml.ScalarNode {
			r.addErrorf(k, "%s: a key must be a word", at)
			continue
		}
		if line, twice := first[k.Value]; twice {
			r.addErrorf(k, "%s.%.60s is set twice, first in line %d: keep one", at, k.Value, line)
			continue
		}
		first[k.Value] = k.Line
		take, known := keys[k.Value]
		switch {
		case !known:
			r.addErrorf(k, "%s: unknown key %.60q: %s", at, k.Value, keyHint(at, k, slices.Sorted(maps.Keys(keys))))
		case !isNull(v):
			take(at+"."+k.Value, v)
		}
	}
}

// keyHint suggests a replacement for an unknown key of the table at.
func keyHint(at string, k *yaml.Node, known []string) string {
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

// readText reads a string; want describes it in errors. It returns false without one.
func (r *reader) readText(at string, v *yaml.Node, want string) (string, bool) {
	if v.Kind != yaml.ScalarNode || v.ShortTag() != "!!str" {
		r.addErrorf(v, "%s: %s: write %s", at, describeNode(v), want)
		return "", false
	}
	return v.Value, v.Value != ""
}

func (r *reader) readRuntime(at string, v *yaml.Node, p *string) {
	const want = "linux, python, node, bash or an image like golang:1.22"
	text, ok := r.readText(at, v, want+"; for no sandbox leave the key sandbox out")
	if !ok {
		return
	}
	switch strings.ToLower(text) {
	case string(ModeCompute), string(ModeCode):
		r.addErrorf(v, "%s: %q is a mode: write \"mode: %s\" below sandbox", at, text, strings.ToLower(text))
		return
	case "true", "false", "yes", "no", "on", "off", "none", "null":
		r.addErrorf(v, "%s: %q: write %s; for no sandbox leave the key sandbox out", at, text, want)
		return
	}
	if err := checkReference(text); err != nil {
		r.addErrorf(v, "%s: %.60q: %w", at, text, err)
		return
	}
	*p = text
}

func readChoice[T ~string](r *reader, at string, v *yaml.Node, p *T, one, other T) {
	want := fmt.Sprintf("%s or %s", one, other)
	text, ok := r.readText(at, v, want)
	switch {
	case !ok:
	case T(text) != one && T(text) != other:
		r.addErrorf(v, "%s: %.60q: write %s", at, text, want)
	default:
		*p = T(text)
	}
}

func (r *reader) readFlag(at string, v *yaml.Node, p *bool) {
	b, err := strconv.ParseBool(v.Value)
	if err != nil || v.ShortTag() != "!!bool" {
		r.addErrorf(v, "%s: %s: write true or false, without quotes", at, describeNode(v))
		return
	}
	*p = b
}

// readNumber accepts whole numbers from 1 to most, in decimal notation only, since 010
// is 8 in YAML.
func (r *reader) readNumber(at string, v *yaml.Node, most int64) (int64, bool) {
	n, err := strconv.ParseInt(v.Value, 10, 64)
	plain := err == nil && v.ShortTag() == "!!int" && strconv.FormatInt(n, 10) == v.Value
	if !plain || n < 1 || n > most {
		r.addErrorf(v, "%s: %s: write a whole number from 1 to %d, without unit or quotes", at, describeNode(v), most)
		return 0, false
	}
	return n, true
}

func (r *reader) readPackages(at string, n *yaml.Node, p *[]string) {
	if n.Kind != yaml.SequenceNode {
		r.addErrorf(n, "%s: %s: write a list, like [first, second]", at, describeNode(n))
		return
	}
	if len(n.Content) > maxPackages {
		r.addErrorf(n, "%s: %d packages: at most %d; make an image that has them", at, len(n.Content), maxPackages)
		return
	}
	for i, c := range n.Content {
		at, c := fmt.Sprintf("%s[%d]", at, i), resolveAlias(c)
		if c.Kind != yaml.ScalarNode || c.ShortTag() != "!!str" || !validPackage(c.Value) {
			r.addErrorf(c, "%s: %s: write the name of a package, in quotes if need be; options are not allowed", at, describeNode(c))
			continue
		}
		*p = append(*p, c.Value)
	}
}

// validPackage rejects names that the installer would take for an option, and those
// with line breaks.
func validPackage(text string) bool {
	return text != "" && text[0] != '-' && len(text) <= maxPackageName && strings.TrimSpace(text) == text &&
		!strings.ContainsFunc(text, unicode.IsControl)
}

// describeNode formats a value for errors.
func describeNode(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a table"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	}
	return fmt.Sprintf("%.60q", n.Value)
}

// resolveAlias resolves an alias; the result has the line of the alias.
func resolveAlias(n *yaml.Node) *yaml.Node {
	if n.Kind != yaml.AliasNode {
		return n
	}
	c := *n.Alias
	c.Line = n.Line
	return &c
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }
