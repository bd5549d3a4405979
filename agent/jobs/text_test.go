package jobs

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

// sizeInJSON returns the size of a string in JSON, as models read it.
func sizeInJSON(t *testing.T, text string) int {
	t.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(text); err != nil {
		t.Fatal(err)
	}
	return b.Len() - len("\"\"\n")
}

// A stream retains the beginning and the end, whole characters and sequences, within the
// limit, and the omitted bytes are counted.
func TestTextKeepsBothEnds(t *testing.T) {
	parts := []string{"a", "b", "\n", "ä", "€", "😀", "\x1b[31m", "\x1b[0m", "\x1b[38;5;12m", "\x1b]8;;http://host/x\x1b\\", "\x1b]0;title\a", "\x1b(B", "\t", "\"", "\\", "\x00", "\u2028", "\r"}
	random := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		var all []byte
		whole := map[int]bool{0: true} // positions between parts
		for n := random.IntN(200); n > 0; n-- {
			all = append(all, parts[random.IntN(len(parts))]...)
			whole[len(all)] = true
		}
		limit := 1 + random.IntN(300)
		s := NewStream(int64(limit))
		for rest := all; len(rest) > 0; {
			n := 1 + random.IntN(len(rest))
			_, _ = s.Write(rest[:n])
			rest = rest[n:]
		}
		got := s.End().Shorten(limit)
		if n := int64(len(got.Data)+len(got.End)) + got.Omitted; n != int64(len(all)) {
			t.Fatalf("%q within %d: %d bytes are %q, %q and %d omitted", all, limit, len(all), got.Data, got.End, got.Omitted)
		}
		if !bytes.HasPrefix(all, got.Data) || !bytes.HasSuffix(all, got.End) {
			t.Fatalf("%q within %d: it begins with %q, and ends with %q", all, limit, got.Data, got.End)
		}
		if size := sizeInJSON(t, string(got.Data)+string(got.End)); size > limit+6 || size != got.Size() {
			t.Fatalf("%q within %d: %q and %q have %d bytes in JSON, said to be %d", all, limit, got.Data, got.End, size, got.Size())
		}
		if got.Omitted > 0 && limit > 60 && (!whole[len(got.Data)] || !whole[len(all)-len(got.End)]) {
			t.Fatalf("%q within %d: the text is cut within a sequence: %q, %q", all, limit, got.Data, got.End)
		}
		if !utf8.ValidString(got.String()) {
			t.Fatalf("%q is not UTF-8", got)
		}
	}
}

func TestTextOfLines(t *testing.T) {
	var all strings.Builder
	for range 1000 {
		all.WriteString("a line\n")
	}
	s := NewStream(100)
	_, _ = s.Write([]byte(all.String()))
	want := strings.Repeat("a line\n", 6) + "[... 6916 bytes left out ...]\n" + strings.Repeat("a line\n", 6)
	if got := s.End().Shorten(100).String(); got != want {
		t.Errorf("it is %q, want %q", got, want)
	}
	if got := (Text{Data: []byte("x\xff\xfey"), Omitted: 7}).String(); got != "x\ufffdy\n[... 7 bytes left out ...]\n" {
		t.Errorf("what is no UTF-8 is %q", got)
	}
}

// An endless sequence does not hide the text.
func TestTextOfSequencesThatDoNotEnd(t *testing.T) {
	for _, begin := range []string{"\x1b]", "\x1b[", "\x1bP", "\x1b", "\x1b("} {
		for _, fill := range []string{"0", "a", "\x1b", "\x80", "("} {
			s := NewStream(1000)
			_, _ = s.Write([]byte(begin + strings.Repeat(fill, 100_000)))
			if got := s.End().Shorten(1000); len(got.Data)+len(got.End) < 150 || got.Size() > 1000 {
				t.Errorf("%q and many %q: it has %d and %d bytes", begin, fill, len(got.Data), len(got.End))
			}
			if n := FitStart([]byte(begin+strings.Repeat(fill, 100)), 50); n == 0 {
				t.Errorf("%q and many %q: nothing fits", begin, fill)
			}
		}
	}
}

// The overflow receives all of an input that is longer than the limit, and nothing of another.
func TestOverflow(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 1000 {
		all := make([]byte, random.IntN(200))
		for i := range all {
			all[i] = byte(random.IntN(256))
		}
		limit := 1 + random.IntN(200)
		var file bytes.Buffer
		s := NewStream(int64(limit))
		s.Overflow(&file)
		for rest := all; len(rest) > 0; {
			n := 1 + random.IntN(len(rest))
			_, _ = s.Write(rest[:n])
			rest = rest[n:]
		}
		want := all
		if len(all) <= limit {
			want = nil
		}
		if !bytes.Equal(file.Bytes(), want) {
			t.Fatalf("limit %d: the overflow has %q, want %q", limit, file.Bytes(), want)
		}
	}
	if got, want := (Text{Data: []byte("a\n"), End: []byte("b"), Omitted: 3, File: "/tmp/x"}).String(), "a\n[... 3 bytes left out; all of it is in /tmp/x ...]\nb"; got != want {
		t.Errorf("String = %q, want %q", got, want)
	}
}
