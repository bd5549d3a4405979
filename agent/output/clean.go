package output

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// object returns the JSON object that a line is, without what a terminal puts around
// it; nil if it is none. Whether it is well formed, its reader finds out.
func object(line []byte) []byte {
	line = bytes.TrimSpace(unescape(line))
	if len(line) == 0 || line[0] != '{' {
		return nil
	}
	end := bytes.LastIndexByte(line, '}')
	if end < 0 || len(bytes.TrimSpace(unescape(line[end+1:]))) > 0 {
		return nil
	}
	return line[:end+1]
}

// unescape cuts escape sequences, space and controls off the front.
func unescape(b []byte) []byte {
	for len(b) > 0 {
		if n := sequence(b); n > 0 {
			b = b[n:]
			continue
		}
		if b[0] > ' ' {
			return b
		}
		b = b[1:]
	}
	return b
}

// sequence is the length of the escape sequence that b begins with; 0 if it begins with
// none. One that does not end is as long as what could be one.
func sequence(b []byte) int {
	if len(b) < 2 || b[0] != 0x1b {
		return 0
	}
	switch b[1] {
	case '[': // CSI: parameters, then one byte that ends it
		for i := 2; i < len(b); i++ {
			if b[i] >= 0x40 && b[i] <= 0x7e {
				return i + 1
			}
			if b[i] < 0x20 || b[i] > 0x7e {
				return i
			}
		}
		return len(b)
	case ']', 'P', '^', '_', 'X': // a string, until BEL or ST
		for i := 2; i < len(b); i++ {
			switch {
			case b[i] == 0x07:
				return i + 1
			case b[i] == 0x1b && i+1 < len(b) && b[i+1] == '\\':
				return i + 2
			case b[i] < 0x20:
				return i
			}
		}
		return 2 // without an end it would take the rest of the line along
	}
	n := 1
	for n < len(b) && b[n] >= 0x20 && b[n] <= 0x2f {
		n++ // like ESC ( B
	}
	if n < len(b) && b[n] >= 0x30 && b[n] <= 0x7e {
		return n + 1
	}
	return n
}

// plain is what b shows: without the escape sequences of a terminal, and without
// controls but for tab and the ends of lines.
func plain(b []byte) string {
	var out strings.Builder
	for len(b) > 0 {
		if n := sequence(b); n > 0 {
			b = b[n:]
			continue
		}
		next := bytes.IndexByte(b[1:], 0x1b) + 1
		if next == 0 {
			next = len(b)
		}
		out.Write(b[:next])
		b = b[next:]
	}
	if clean(out.String()) {
		return out.String()
	}
	return strings.Map(func(r rune) rune {
		if control(r) {
			return -1
		}
		return r
	}, out.String())
}

// scrub replaces what is not UTF-8, and control characters but for tab and the ends of
// lines: whoever prints it on a terminal is safe.
func scrub(s string) string {
	if clean(s) {
		return s
	}
	return strings.Map(func(r rune) rune {
		if control(r) {
			return utf8.RuneError
		}
		return r // also for a byte that is not UTF-8
	}, s)
}

func clean(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, control) < 0
}

func control(r rune) bool {
	return r < 0x20 && r != '\t' && r != '\n' && r != '\r' || r >= 0x7f && r < 0xa0
}

// cut is s up to n bytes, without half a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// tail is the end of s, at most n bytes of it, without half a character.
func tail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	s = s[len(s)-n:]
	for s != "" && !utf8.RuneStart(s[0]) {
		s = s[1:]
	}
	return s
}
