package jobs

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode/utf8"
)

// A Stream keeps the beginning and the end of its input.
type Stream struct {
	limit int64

	mu      sync.Mutex
	written int64
	head    []byte // the first limit bytes
	tail    []byte // the last bytes of everything, with those before them that show where a sequence begins
	ended   bool

	overflow io.Writer // receives all input once it is longer than the limit; may be nil
	flows    bool      // overflow has received what head has
}

// tailContext is the number of bytes of the tail besides those that End may return. The
// last line of progress is among them, also if the limit is 0.
const tailContext = maxEscape

// NewStream returns a Stream that keeps limit bytes.
func NewStream(limit int64) *Stream { return &Stream{limit: limit} }

// Overflow makes w receive the whole input, from its first byte on, if the input is longer than the
// limit. Call it before Write. The Stream ignores errors of w.
func (s *Stream) Overflow(w io.Writer) { s.overflow = w }

// Write implements io.Writer, and never fails. Only one goroutine may call it.
func (s *Stream) Write(b []byte) (int, error) {
	for _, part := range s.keepInput(b) {
		_, _ = s.overflow.Write(part)
	}
	return len(b), nil
}

// keepInput keeps b, and returns the parts of the input that the overflow receives now.
func (s *Stream) keepInput(b []byte) (over [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil // End was called
	}
	if s.overflow != nil && s.written+int64(len(b)) > s.limit {
		if !s.flows {
			over = append(over, s.head) // all input before b
		}
		over, s.flows = append(over, b), true
	}
	s.written += int64(len(b))
	s.head = append(s.head, b[:max(0, min(int64(len(b)), s.limit-int64(len(s.head))))]...)
	keep := int(s.limit/2) + tailContext
	s.tail = append(s.tail, b[max(0, len(b)-keep):]...)
	if more := len(s.tail) - keep; more > keep { // not at each write, which may be a byte
		s.tail = append(s.tail[:0], s.tail[more:]...)
	}
	return over
}

// lastLine returns the last non-empty line.
func (s *Stream) lastLine() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := s.tail[max(0, len(s.tail)-maxLastLine):]
	lines := strings.Split(strings.TrimRight(strings.ToValidUTF8(string(end), ""), "\r\n"), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

// maxLastLine is the most bytes of the line that Reporting reports.
const maxLastLine = 200

// End returns the input, without its middle if it is longer than the limit, and stops
// keeping input.
func (s *Stream) End() Text {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if s.written <= s.limit {
		return Text{Data: s.head}
	}
	t := Text{Data: s.head[:safeEnd(s.head, int(s.limit/2))], End: s.tail[safeStart(s.tail, len(s.tail)-int(s.limit/2)):]}
	t.Omitted = s.written - int64(len(t.Data)) - int64(len(t.End))
	return t
}

// Beginning returns the first bytes of the input, up to the limit, and stops keeping
// input.
func (s *Stream) Beginning() Text {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	return Text{Data: s.head, Omitted: s.written - int64(len(s.head))}
}

// A Text is output whose middle, or end, may be missing.
type Text struct {
	Data    []byte `json:"data,omitempty"`    // the beginning
	End     []byte `json:"end,omitempty"`     // what follows the omitted bytes
	Omitted int64  `json:"omitted,omitempty"` // the number of bytes between Data and End

	// File is the file in the sandbox that has the whole text, "" if there is none.
	File string `json:"file,omitempty"`
}

// Size returns the size of the text in JSON.
func (t Text) Size() int { return jsonSize(t.Data) + jsonSize(t.End) }

// Shorten removes more from the middle of the text, if its JSON has more than limit
// bytes. No part begins or ends within a character or an escape sequence of terminals,
// and if possible not within a line.
func (t Text) Shorten(limit int) Text {
	if t.Size() > limit {
		all := int64(len(t.Data)+len(t.End)) + t.Omitted
		end := t.End
		if t.Omitted == 0 {
			end = t.Data
		}
		t.Data = t.Data[:FitStart(t.Data, limit/2)]
		t.End = end[fitEnd(end, limit-limit/2):]
		t.Omitted = all - int64(len(t.Data)) - int64(len(t.End))
	}
	if t.Omitted == 0 {
		return t
	}
	whole := t
	if i := bytes.LastIndexByte(t.Data, '\n'); i >= len(t.Data)/2 {
		whole.Data = t.Data[:i+1]
	}
	if i := bytes.IndexByte(t.End, '\n'); i >= 0 && i < len(t.End)/2 {
		whole.End = t.End[i+1:]
	}
	whole.Omitted += int64(len(t.Data) - len(whole.Data) + len(t.End) - len(whole.End))
	return whole
}

// String returns the text as UTF-8, with invalid bytes replaced. A line of its own tells
// the number of omitted bytes, and the file that has the whole text.
func (t Text) String() string {
	head, tail := strings.ToValidUTF8(string(t.Data), "\ufffd"), strings.ToValidUTF8(string(t.End), "\ufffd")
	if t.Omitted == 0 {
		return head + tail
	}
	if head != "" && !strings.HasSuffix(head, "\n") {
		head += "\n"
	}
	file := ""
	if t.File != "" {
		file = "; all of it is in " + t.File
	}
	return fmt.Sprintf("%s[... %d bytes left out%s ...]\n%s", head, t.Omitted, file, tail)
}

// Whole returns the length of data without an incomplete character at its end.
func Whole(data []byte) int {
	for i := 1; i <= min(utf8.UTFMax, len(data)); i++ {
		if b := data[len(data)-i]; utf8.RuneStart(b) {
			if !utf8.FullRune(data[len(data)-i:]) {
				return len(data) - i
			}
			break
		}
	}
	return len(data)
}

// FitStart returns the length of the longest beginning of data whose JSON has at most
// limit bytes, and that does not end within a character or an escape sequence. It is
// not 0 unless data begins with an incomplete one or is empty.
func FitStart(data []byte, limit int) int {
	n := 0
	for size := 0; n < len(data); {
		r, width := utf8.DecodeRune(data[n:])
		if size += runeSize(r); size > limit && n > 0 {
			break
		}
		n += width
	}
	return cmp.Or(safeEnd(data, n), Whole(data[:n]))
}

// fitEnd returns the start of the longest end of data whose JSON has at most limit
// bytes, and that does not begin within a character or an escape sequence.
func fitEnd(data []byte, limit int) int {
	n := len(data)
	for size := 0; n > 0; {
		r, width := utf8.DecodeLastRune(data[:n])
		if size += runeSize(r); size > limit {
			break
		}
		n -= width
	}
	return safeStart(data, n)
}

// jsonSize returns the size of data as a JSON string, without quotes.
func jsonSize(data []byte) (size int) {
	for len(data) > 0 {
		r, width := utf8.DecodeRune(data)
		size += runeSize(r)
		data = data[width:]
	}
	return size
}

// runeSize returns the size of a character in JSON; an invalid byte is U+FFFD.
func runeSize(r rune) int {
	switch {
	case r == '"', r == '\\', r == '\n', r == '\r', r == '\t', r == '\b', r == '\f':
		return len(`\n`)
	case r < ' ', r == '\u2028', r == '\u2029':
		return len(`\u0000`)
	}
	return utf8.RuneLen(r)
}
