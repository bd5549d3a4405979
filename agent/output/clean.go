package output

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// trimObject returns the JSON object in a line, without escape sequences of a terminal
// around it; nil if there is none. It doesn't check the syntax.
func trimObject(line []byte) []byte {
	line = bytes.TrimSpace(trimEscapes(line))
	if len(line) == 0 || line[0] != '{' {
		return nil
	}
	end := bytes.LastIndexByte(line, '}')
	if end < 0 || len(bytes.TrimSpace(trimEscapes(line[end+1:]))) > 0 {
		return nil
	}
	return line[:end+1]
}

// trimEscapes cuts escape sequences, space and control characters off the front.
func trimEscapes(b []byte) []byte {
	for len(b) > 0 {
		if n := escapeLen(b); n > 0 {
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

// escapeLen returns the length of the escape sequence at the start of b; 0 if there is
// none. An unterminated one extends as far as its bytes are valid.
func escapeLen(b []byte) int {
	if len(b) < 2 || b[0] != 0x1b {
		return 0
	}
	switch b[1] {
	case '[': // CSI: parameters and a final byte
		for i := 2; i < len(b); i++ {
			if b[i] >= 0x40 && b[i] <= 0x7e {
				return i + 1
			}
			if b[i] < 0x20 || b[i] > 0x7e {
				return i
			}
		}
		return len(b)
	case ']', 'P', '^', '_', 'X': // a string, up to BEL or ST
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
		return 2 // unterminated: don't drop the rest of the line
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

// plainText returns the visible text of b: without escape sequences, and without
// control characters except tab and line ends.
func plainText(b []byte) string {
	var out strings.Builder
	for len(b) > 0 {
		if n := escapeLen(b); n > 0 {
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
	if isClean(out.String()) {
		return out.String()
	}
	return strings.Map(func(r rune) rune {
		if isControl(r) {
			return -1
		}
		return r
	}, out.String())
}

// cleanText replaces invalid UTF-8 and control characters, except tab and line ends, so
// that the text is safe to print on a terminal.
func cleanText(s string) string {
	if isClean(s) {
		return s
	}
	return strings.Map(func(r rune) rune {
		if isControl(r) {
			return utf8.RuneError
		}
		return r // also for an invalid byte
	}, s)
}

func isClean(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, isControl) < 0
}

func isControl(r rune) bool {
	return r < 0x20 && r != '\t' && r != '\n' && r != '\r' || r >= 0x7f && r < 0xa0
}

// cutHead returns at most the first n bytes of s, without splitting a character.
func cutHead(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// cutTail returns at most the last n bytes of s, without splitting a character.
func cutTail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	s = s[len(s)-n:]
	for s != "" && !utf8.RuneStart(s[0]) {
		s = s[1:]
	}
	return s
}
