package seatbelt

import (
	"regexp"
	"strings"
	"testing"
)

// A list is a parsed expression of the language: an atom or a list.
type list struct {
	atom   string // of a string, its value
	quoted bool
	all    []list
}

// parse reads the expressions of a profile, and fails if it has anything else, such as one parenthesis too many.
func parse(t *testing.T, text string) []list {
	t.Helper()
	stack := [][]list{nil}
	add := func(l list) { stack[len(stack)-1] = append(stack[len(stack)-1], l) }
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == ' ' || c == '\n':
			i++
		case c == '(':
			stack = append(stack, nil)
			i++
		case c == ')':
			if len(stack) < 2 {
				t.Fatalf("a parenthesis too many at %q", text[i:])
			}
			l := list{all: stack[len(stack)-1]}
			stack = stack[:len(stack)-1]
			add(l)
			i++
		case c == '"' || c == '#':
			raw := c == '#' // a regular expression, without escapes
			if raw {
				i++
			}
			var value strings.Builder
			for i++; text[i] != '"'; i++ {
				if text[i] == '\\' && !raw {
					i++
				}
				value.WriteByte(text[i])
			}
			add(list{atom: value.String(), quoted: true})
			i++
		default:
			n := strings.IndexAny(text[i:], " \n()\"")
			add(list{atom: text[i : i+n]})
			i += n
		}
	}
	if len(stack) != 1 {
		t.Fatalf("%d parentheses are open", len(stack)-1)
	}
	return stack[0]
}

// A rule is (allow OPERATION... FILTER...).
type rule struct {
	action     string
	operations []string
	filters    []list
}

func parseRules(t *testing.T, text string) []rule {
	t.Helper()
	var rules []rule
	for _, l := range parse(t, text) {
		r := rule{action: l.all[0].atom}
		for _, part := range l.all[1:] {
			if part.all == nil {
				r.operations = append(r.operations, part.atom)
			} else {
				r.filters = append(r.filters, part)
			}
		}
		rules = append(rules, r)
	}
	return rules
}

// allows reports whether the rules allow an operation on a value: a path, a name or an address. As in the kernel, the last rule
// that matches decides, and nothing is allowed by default.
func allows(rules []rule, operation, value string) bool {
	allowed := false
	for _, r := range rules {
		if r.action != "allow" && r.action != "deny" || !covers(r.operations, operation) {
			continue
		}
		matches := len(r.filters) == 0
		for _, f := range r.filters {
			matches = matches || f.matches(value)
		}
		if matches {
			allowed = r.action == "allow"
		}
	}
	return allowed
}

// covers reports whether one of the names, which may end in *, is that of the operation.
func covers(names []string, operation string) bool {
	for _, name := range names {
		prefix, wild := strings.CutSuffix(name, "*")
		if name == operation || wild && strings.HasPrefix(operation, prefix) || name == "default" {
			return true
		}
	}
	return false
}

// matches reports whether a filter matches a value. A terminal that the process has made begins with "own:".
func (l list) matches(value string) bool {
	made := strings.HasPrefix(value, "own:")
	path := strings.TrimPrefix(value, "own:")
	switch kind, arg := l.all[0].atom, l.all[1]; kind {
	case "literal", "global-name", "sysctl-name", "ipc-posix-name", "socket-domain":
		return path == arg.atom
	case "subpath":
		return path == arg.atom || strings.HasPrefix(path, arg.atom+"/")
	case "sysctl-name-prefix", "ipc-posix-name-prefix":
		return strings.HasPrefix(path, arg.atom)
	case "regex":
		return regexp.MustCompile(arg.atom).MatchString(path)
	case "extension":
		return made && arg.atom == "com.apple.sandbox.pty"
	case "require-all":
		for _, f := range l.all[1:] {
			if !f.matches(value) {
				return false
			}
		}
		return true
	case "local", "remote": // (remote ip "*:*"), (remote unix-socket (subpath ...))
		if arg.atom == "ip" {
			return strings.HasPrefix(value, "ip:")
		}
		return l.all[2].matches(value)
	case "target":
		return value == arg.atom
	}
	panic("filter " + l.all[0].atom)
}
