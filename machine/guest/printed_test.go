package guest

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/seed46cd37a8/atoll"
)

// The guest's log has the output of a main process and how it ended; and the part before an error
// of the log.
func TestReadPrinted(t *testing.T) {
	var log bytes.Buffer
	for _, f := range []Frame{
		{FrameReport, 0, []byte(`{"begins":true}`)}, {FrameStdout, 0, []byte("one ")}, {FrameStderr, 0, []byte("error")}, {FrameStdout, 4, []byte("two")},
		{FrameReport, 15, []byte(`{"main":{"code":3},"reason":"why"}`)}, {FrameReport, 49, []byte("not JSON")},
	} {
		if err := WriteFrame(&log, f); err != nil {
			t.Fatal(err)
		}
	}
	out, err := ReadPrinted(bytes.NewReader(log.Bytes()))
	if err != nil || string(out.Stdout.Kept()) != "one two" || string(out.Stderr.Kept()) != "error" {
		t.Errorf("it printed %q and %q, %v", out.Stdout.Kept(), out.Stderr.Kept(), err)
	}
	if r := out.Report; r.Main == nil || r.Main.Code != 3 || r.Reason != "why" || r.Begins {
		t.Errorf("the report is %+v", r)
	}
	lost := errors.New("lost")
	half := log.Bytes()[:bytes.Index(log.Bytes(), []byte("two"))]
	out, err = ReadPrinted(io.MultiReader(bytes.NewReader(half), iotest.ErrReader(lost)))
	if !errors.Is(err, lost) || string(out.Stdout.Kept()) != "one " || out.Report != (Report{}) {
		t.Errorf("half of the log says %q, %+v, %v", out.Stdout.Kept(), out.Report, err)
	}
}

// Parts of a log that a node has dropped are missing, and counted.
func TestReadPrintedInPart(t *testing.T) {
	var log bytes.Buffer
	for _, f := range []Frame{{FrameStdout, 0, []byte("old")}, {FrameStderr, 70, []byte("error")}, {FrameStdout, 100, []byte("one ")}, {FrameStdout, 104, []byte("two")}} {
		if err := WriteFrame(&log, f); err != nil {
			t.Fatal(err)
		}
	}
	out, err := ReadPrinted(&log)
	if err != nil || string(out.Stdout.Kept()) != "one two" || string(out.Stderr.Kept()) != "error" {
		t.Errorf("what is left is %q and %q, %v", out.Stdout.Kept(), out.Stderr.Kept(), err)
	}
	if got, want := out.Stdout.Status(), (atoll.StreamStatus{Written: 107, Oldest: 100}); got != want {
		t.Errorf("it is %+v, want %+v", got, want)
	}
}

// Packed bytes unpack, only the last of them if there is no room for all.
func TestPack(t *testing.T) {
	noise := make([]byte, 100<<10) // which cannot be compressed
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	for _, tt := range []struct {
		what  string
		text  string
		limit int
		all   bool
	}{
		{"nothing", "", 0, true},
		{"a word", "word", 0, true},
		{"a word in much room", "word", 1 << 10, true},
		{"text", strings.Repeat("a line\n", 10<<10), 4 << 10, true},
		{"noise", string(noise), 0, true},
		{"noise in little room", string(noise), 10 << 10, false},
		{"noise in none", string(noise), 1, false},
	} {
		packed, err := TailOf(1<<20, []byte(tt.text)).Pack(tt.limit)
		if err != nil || tt.limit > 0 && len(packed) > tt.limit || tt.text == "" && packed != nil {
			t.Errorf("%s: %d bytes, %v", tt.what, len(packed), err)
		}
		out := UnpackTail(1<<20, packed)
		got := string(out.Kept())
		if !strings.HasSuffix(tt.text, got) || tt.all && got != tt.text {
			t.Errorf("%s: %d bytes come back of %d", tt.what, len(got), len(tt.text))
		}
		if want := (atoll.StreamStatus{Written: 1 << 20, Oldest: 1<<20 - int64(len(got))}); out.Status() != want {
			t.Errorf("%s: %+v, want %+v", tt.what, out.Status(), want)
		}
	}
	if got := UnpackTail(7, []byte("not packed")); len(got.Kept()) != 0 || got.Status().Written != 7 {
		t.Errorf("what is lost is %q, %+v", got.Kept(), got.Status())
	}
}
