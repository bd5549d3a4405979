package jobs

import (
	"bytes"
	"unicode/utf8"
)

// The most bytes of an escape sequence that is kept whole: of one with text, as the title
// of a window, and of others.
const (
	maxEscape  = 4 << 10
	maxControl = 64
)

const esc = 0x1b

// safeEnd returns the greatest position up to n at which data can end: not within a
// character or an escape sequence of terminals.
func safeEnd(data []byte, n int) int {
	if start, _ := escapeAround(data, n); start >= 0 {
		return start
	}
	start, _ := runeAround(data, n)
	return start
}

// safeStart returns the least position from n on at which data can start.
func safeStart(data []byte, n int) int {
	if _, end := escapeAround(data, n); end >= 0 {
		return end
	}
	_, end := runeAround(data, n)
	return end
}

// escapeAround returns the escape sequence that begins before n and ends behind it, -1
// if there is none.
func escapeAround(data []byte, n int) (start, end int) {
	for at := max(0, n-maxEscape); at < n; {
		i := bytes.IndexByte(data[at:n], esc)
		if i < 0 {
			break
		}
		at += i
		size := escapeLen(data[at:min(len(data), at+maxEscape)])
		if at+size > n {
			return at, min(at+size, len(data))
		}
		at += size
	}
	return -1, -1
}

// escapeLen returns the length of the escape sequence at the start of data, more than
// len(data) if it is incomplete.
func escapeLen(data []byte) int {
	if len(data) < 2 {
		return len(data) + 1
	}
	longest := maxControl
	switch data[1] {
	case '[': // parameters, and a final byte
		for i := 2; i < min(len(data), longest); i++ {
			if b := data[i]; b < 0x20 || b > 0x3f {
				return i + 1
			}
		}
	case ']', 'P', 'X', '^', '_': // text, up to BEL or ESC \
		longest = maxEscape
		for i := 2; i < len(data); i++ {
			switch {
			case data[i] == '\a':
				return i + 1
			case data[i] == '\n':
				return i // no such text has line ends
			case data[i] == esc && i+1 < len(data):
				return i + 2
			}
		}
	default: // intermediate bytes, and a final byte
		for i := 1; i < min(len(data), longest); i++ {
			if b := data[i]; b < 0x20 || b > 0x2f {
				return i + 1
			}
		}
	}
	if len(data) >= longest {
		return 2 // sequences are shorter
	}
	return len(data) + 1
}

// runeAround returns the character that begins before n and ends behind it, or n twice.
func runeAround(data []byte, n int) (start, end int) {
	for i := 1; i < utf8.UTFMax && i <= n; i++ {
		if !utf8.RuneStart(data[n-i]) {
			continue
		}
		if !utf8.FullRune(data[n-i:]) {
			return n - i, len(data)
		}
		if _, width := utf8.DecodeRune(data[n-i:]); width > i {
			return n - i, n - i + width
		}
		break
	}
	return n, n
}
