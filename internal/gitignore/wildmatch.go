package gitignore

import "strings"

// special holds the bytes of a pattern that do not always stand for themselves.
const special = `*?[\`

// outcome is the result of an attempt to match.
type outcome int

const (
	matches outcome = iota
	differs         // another attempt, with more of the text below a star, may match
	endsAll         // no attempt can match
	endsDir         // only a "**" can match more
)

// matchPattern reports whether a pattern matches the text. If slashes is set, only "**"
// matches a slash.
func matchPattern(pattern, text string, slashes bool) bool {
	m := matcher{pattern: pattern, text: text, slashes: slashes}
	if strings.Count(pattern, "*") > 1 { // one star makes each attempt once
		m.failed = map[[2]int]outcome{}
	}
	return m.matchFrom(0, 0, 0) == matches
}

// A matcher matches one pattern. It remembers failed attempts, so that its time is
// bounded by the product of both lengths.
type matcher struct {
	pattern, text string
	slashes       bool
	failed        map[[2]int]outcome // nil if no attempt is made twice
}

// byteAt returns byte i of s; 0 behind its end.
func byteAt(s string, i int) byte {
	if i < len(s) {
		return s[i]
	}
	return 0
}

// matchFrom matches the pattern from p with the text from t. begin is the position at
// which this attempt has begun: a "**" there counts as one behind a slash.
func (m *matcher) matchFrom(begin, p, t int) outcome {
	for ; p < len(m.pattern); p, t = p+1, t+1 {
		c := m.pattern[p]
		if t >= len(m.text) && c != '*' {
			return endsAll
		}
		switch c {
		case '?':
			if m.slashes && m.text[t] == '/' {
				return differs
			}
		case '*':
			result, next, skip := m.matchStar(begin, p, t)
			if !skip {
				return result
			}
			p, t = next, t+strings.IndexByte(m.text[t:], '/') // the loop consumes the slash
		case '[':
			in, end := m.matchClass(p, m.text[t])
			if end < 0 {
				return endsAll
			}
			if !in || m.slashes && m.text[t] == '/' {
				return differs
			}
			p = end
		case '\\':
			p++
			if byteAt(m.pattern, p) != m.text[t] {
				return differs
			}
		default:
			if c != m.text[t] {
				return differs
			}
		}
	}
	if t < len(m.text) {
		return differs
	}
	return matches
}

// matchStar matches the pattern from a star at p. If skip is set, the star matches up to
// the next slash, and the pattern continues at next, with a slash, too.
func (m *matcher) matchStar(begin, p, t int) (result outcome, next int, skip bool) {
	first := p
	for p++; byteAt(m.pattern, p) == '*'; p++ {
	}
	deep := !m.slashes
	if m.slashes && p-first > 1 && (first == begin || m.pattern[first-1] == '/') {
		after := m.pattern[p:]
		deep = after == "" || after[0] == '/' || strings.HasPrefix(after, `\/`)
		if deep && after != "" && after[0] == '/' && m.tryFrom(p+1, t) == matches {
			return matches, 0, false // it stands for no directory
		}
	}
	slash := strings.IndexByte(m.text[t:], '/')
	switch {
	case p == len(m.pattern) && (deep || slash < 0):
		return matches, 0, false
	case p == len(m.pattern):
		return differs, 0, false
	case !deep && m.pattern[p] == '/' && slash < 0:
		return differs, 0, false
	case !deep && m.pattern[p] == '/':
		return differs, p, true
	}
	for ; t < len(m.text); t++ {
		switch got := m.tryFrom(p, t); {
		case got == differs && !deep && m.text[t] == '/':
			return endsDir, 0, false
		case got != differs && (!deep || got != endsDir):
			return got, 0, false
		}
	}
	return endsAll, 0, false
}

// tryFrom is matchFrom for a new attempt at p.
func (m *matcher) tryFrom(p, t int) outcome {
	if got, ok := m.failed[[2]int{p, t}]; ok {
		return got
	}
	got := m.matchFrom(p, p, t)
	if got != matches && m.failed != nil {
		m.failed[[2]int{p, t}] = got
	}
	return got
}

// matchClass reports whether a byte is in the class that begins at p, and where that
// ends; -1 if it doesn't end, or is invalid.
func (m *matcher) matchClass(p int, c byte) (in bool, end int) {
	s := m.pattern
	p++
	negated := byteAt(s, p) == '!' || byteAt(s, p) == '^'
	if negated {
		p++
	}
	var last byte // the byte that may begin a range; 0 if there is none
	for begin := p; p == begin || byteAt(s, p) != ']'; p++ {
		b := byteAt(s, p)
		switch {
		case p >= len(s):
			return false, -1
		case b == '\\':
			if p++; p >= len(s) {
				return false, -1
			}
			b = s[p]
			in = in || c == b
		case b == '-' && last != 0 && p+1 < len(s) && s[p+1] != ']':
			if p++; s[p] == '\\' {
				if p++; p >= len(s) {
					return false, -1
				}
			}
			in = in || last <= c && c <= s[p]
			b = 0
		case b == '[' && byteAt(s, p+1) == ':':
			n := strings.IndexByte(s[p+2:], ']')
			if n < 0 {
				return false, -1
			}
			if n == 0 || s[p+2+n-1] != ':' {
				in = in || c == '['
				break
			}
			is, ok := classes[s[p+2:p+2+n-1]]
			if !ok {
				return false, -1
			}
			in = in || is(c)
			p, b = p+2+n, 0
		default:
			in = in || c == b
		}
		last = b
	}
	return in != negated, p
}

// classes are the named classes of bytes.
var classes = map[string]func(c byte) bool{
	"alnum":  func(c byte) bool { return isAlpha(c) || isDigit(c) },
	"alpha":  isAlpha,
	"blank":  func(c byte) bool { return c == ' ' || c == '\t' },
	"cntrl":  func(c byte) bool { return c < ' ' || c == 0x7f },
	"digit":  isDigit,
	"graph":  isGraph,
	"lower":  isLower,
	"print":  func(c byte) bool { return c == ' ' || isGraph(c) },
	"punct":  func(c byte) bool { return isGraph(c) && !isAlpha(c) && !isDigit(c) },
	"space":  func(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' },
	"upper":  func(c byte) bool { return isAlpha(c) && !isLower(c) },
	"xdigit": func(c byte) bool { return isDigit(c) || 'a' <= c|0x20 && c|0x20 <= 'f' },
}

func isAlpha(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }
func isDigit(c byte) bool { return '0' <= c && c <= '9' }
func isGraph(c byte) bool { return '!' <= c && c <= '~' }
func isLower(c byte) bool { return 'a' <= c && c <= 'z' }
