// Package gitignore matches paths against rules in the syntax of .gitignore, exactly as
// git does. The rules of git are in its dir.c and wildmatch.c; a test compares both with
// an installed git.
package gitignore

import (
	"slices"
	"strings"
)

// Rules are the rules of one or more files, the last of which has the last word. A nil
// *Rules ignores nothing. Its methods are not safe for concurrent use.
type Rules struct {
	rules []rule
	dirs  map[string]bool // the answers for directories
}

// Parse returns the rules of files. All input is valid: a rule that makes no sense
// matches nothing.
func Parse(files ...string) *Rules {
	r := &Rules{dirs: map[string]bool{}}
	for _, text := range files {
		r.addRules(strings.TrimPrefix(text, "\ufeff"))
	}
	return r
}

// addRules adds the rules of a file.
func (r *Rules) addRules(text string) {
	for line := range strings.SplitSeq(text, "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		line, _, _ = strings.Cut(strings.TrimSuffix(line, "\r"), "\x00")
		if rule := parseRule(trimSpaces(line)); rule.pattern != "" {
			r.rules = append(r.rules, rule)
		}
	}
}

// Match reports whether the rules ignore a path, or a directory above it: nothing below
// an ignored directory can be included again. The path is relative, clean and has
// slashes; dir tells whether it is a directory.
func (r *Rules) Match(path string, dir bool) bool {
	if r == nil || len(r.rules) == 0 {
		return false
	}
	if ignored, ok := r.dirs[path]; ok && dir {
		return ignored
	}
	ignored := false
	if i := strings.LastIndexByte(path, '/'); i > 0 {
		ignored = r.Match(path[:i], true)
	}
	if !ignored {
		ignored = r.matchLast(path, dir)
	}
	if dir {
		r.dirs[path] = ignored
	}
	return ignored
}

// matchLast reports what the last rule that matches the path says, without a look at the
// directories above it.
func (r *Rules) matchLast(path string, dir bool) bool {
	for _, rule := range slices.Backward(r.rules) {
		if rule.matchPath(path, dir) {
			return !rule.negative
		}
	}
	return false
}

// A rule is one line.
type rule struct {
	pattern  string // without the signs that the fields below tell
	literal  int    // number of bytes at its start that stand for themselves
	negative bool   // it includes what earlier rules ignore
	dirOnly  bool   // it matches directories only
	baseOnly bool   // it has no slash, and matches names in any directory
}

// trimSpaces removes spaces from the end of a line. A backslash retains the space behind
// it.
func trimSpaces(line string) string {
	end := 0 // of the part that stays
	for i := 0; i < len(line); i++ {
		if line[i] == '\\' {
			if i++; i == len(line) {
				return line
			}
		} else if line[i] == ' ' {
			continue
		}
		end = i + 1
	}
	return line[:end]
}

func parseRule(text string) rule {
	var r rule
	text, r.negative = strings.CutPrefix(text, "!")
	text, r.dirOnly = strings.CutSuffix(text, "/")
	r.baseOnly = !strings.Contains(text, "/")
	if r.literal = strings.IndexAny(text, special); r.literal < 0 {
		r.literal = len(text)
	}
	if !r.baseOnly && text[0] == '/' {
		text = text[1:]
		r.literal--
	}
	r.pattern = text
	return r
}

func (r *rule) matchPath(path string, dir bool) bool {
	if r.dirOnly && !dir {
		return false
	}
	if r.baseOnly {
		name := path[strings.LastIndexByte(path, '/')+1:]
		if r.literal == len(r.pattern) {
			return name == r.pattern
		}
		return matchPattern(r.pattern, name, false)
	}
	rest, ok := strings.CutPrefix(path, r.pattern[:r.literal])
	if !ok {
		return false
	}
	// The match begins behind the literal part, so that ** may follow it at once.
	return matchPattern(r.pattern[r.literal:], rest, true)
}
