// Package printable makes text from a sandbox safe to show: a terminal executes control characters, and characters
// that change the direction of text, or that are invisible, make a person read something else than what is there.
package printable

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// IsUnsafe reports whether r is a control character, changes the direction of text, separates lines, or is an
// invisible character that no language needs.
func IsUnsafe(r rune) bool {
	switch {
	case unicode.IsControl(r), unicode.Is(unicode.Bidi_Control, r):
		return true
	case r == '\u2028', r == '\u2029': // line and paragraph separators
		return true
	case '\ufff9' <= r && r <= '\ufffb', r == '\ufeff', r == '\u2060', 0xE0000 <= r && r <= 0xE007F: // annotations, no-break spaces without width, tags
		return true
	}
	return false
}

// Escape replaces the unsafe characters of s, except for those in keep, and bytes that are not UTF-8, by \x1b or
// \u202e.
func Escape(s, keep string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, IsUnsafe) {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case !IsUnsafe(r) || strings.ContainsRune(keep, r):
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	return b.String()
}

// EscapeJSON replaces the unsafe characters in the strings of a JSON text by their escapes, so that the values are the
// same. It retains the white space between values.
func EscapeJSON(text []byte) []byte {
	if !bytes.ContainsFunc(text, isUnsafeInJSON) {
		return text
	}
	var b bytes.Buffer
	for _, r := range string(text) {
		switch {
		case !isUnsafeInJSON(r):
			b.WriteRune(r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			high, low := (r-0x10000)>>10+0xd800, (r-0x10000)&0x3ff+0xdc00
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		}
	}
	return b.Bytes()
}

// isUnsafeInJSON leaves white space alone, which JSON has between its values only.
func isUnsafeInJSON(r rune) bool { return IsUnsafe(r) && r != '\n' && r != '\t' && r != '\r' }
