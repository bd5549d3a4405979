// Package seatbelt writes profiles of Seatbelt, the sandbox of the kernel of macOS, for /usr/bin/sandbox-exec. A profile is a wall
// around a process and its descendants, which none of them can take down.
//
// Apple documents neither the language nor its rules. The rules here rest on what others have observed, and decision 83 names the
// facts that matter: without a rule that allows it, a profile that begins with (deny default) denies an operation; of the rules
// that match a path, the last one decides; and the kernel compares paths without symbolic links.
package seatbelt

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

// A Policy says what the programs behind a wall can do. Its paths are those that Resolve returns.
type Policy struct {
	Write   []string // directories whose files they can read, change and execute
	Read    []string // files and directories that they can read and execute, in addition to those of the system
	Hidden  []string // what they cannot read, even if it is below one of Read
	Network bool     // they have the network of the machine; without it, they have none, not even loopback
}

// Profile returns the text of a profile. It fails if a path is not absolute, or if it has a character that the text cannot have.
func (p Policy) Profile() (string, error) {
	for _, path := range slices.Concat(p.Write, p.Read, p.Hidden) {
		if err := checkPath(path); err != nil {
			return "", err
		}
	}
	var b profile
	b.addLine("(version 1)")
	b.addLine("(deny default)")
	b.addProcesses()
	b.addKernel()
	b.addServices(p.Network)
	b.addDevices()
	b.addFiles(p)
	b.addSockets(p)
	return b.String(), nil
}

// checkPath refuses paths that are not absolute and clean, and those with control characters: which escapes the language has for
// them is not known. It refuses the root directory, which would open everything.
func checkPath(path string) error {
	control := func(r rune) bool { return r < ' ' || r == 0x7f }
	switch {
	case !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/":
		return fmt.Errorf("path %q: must be absolute, clean and other than /", path)
	case !utf8.ValidString(path) || strings.ContainsFunc(path, control):
		return fmt.Errorf("path %q: rename it: a profile cannot name it", path)
	}
	return nil
}

// Resolve returns a path as the kernel knows it: without symbolic links, such as /tmp on macOS. Its last elements need not exist.
// Names that exist have to be spelt as they are on the disk, although macOS opens them in other spellings, too.
func Resolve(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	rest := ""
	for dir := path; ; dir = filepath.Dir(dir) {
		real, err := filepath.EvalSymlinks(dir)
		if err == nil {
			return filepath.Join(real, rest), nil
		}
		if !errors.Is(err, fs.ErrNotExist) || dir == "/" {
			return "", err
		}
		rest = filepath.Join(filepath.Base(dir), rest)
	}
}

// A profile is the text of a profile.
type profile struct{ strings.Builder }

func (b *profile) addLine(text string) { b.WriteString(text + "\n") }

// addRule adds a rule for operations with filters, of which one has to match. Without a filter it adds nothing, since such a rule
// would match everything.
func (b *profile) addRule(action, operations string, filters ...[]string) {
	all := slices.Concat(filters...)
	if len(all) > 0 {
		b.addLine("(" + action + " " + operations + "\n  " + strings.Join(all, "\n  ") + ")")
	}
}

// newFilters returns a filter of the kind for each value.
func newFilters(kind string, values ...string) []string {
	all := make([]string, len(values))
	for i, v := range values {
		all[i] = "(" + kind + " " + quoteString(v) + ")"
	}
	return all
}

// newPattern returns a filter of a regular expression, in the syntax of the language. The expression has no quotes.
func newPattern(expression string) []string { return []string{`(regex #"` + expression + `")`} }

// quoteString returns a string in the syntax of the language.
func quoteString(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// listAncestors returns the directories above paths, each once.
func listAncestors(paths ...string) []string {
	var all []string
	for _, path := range paths {
		for dir := filepath.Dir(path); dir != "/"; dir = filepath.Dir(dir) {
			all = append(all, dir)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
