package guest

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func collect(t *testing.T, log []byte) (got []Frame) {
	t.Helper()
	if err := ReadFrames(iotest.OneByteReader(bytes.NewReader(log)), func(f Frame) { got = append(got, Frame{f.Stream, f.Offset, bytes.Clone(f.Data)}) }); err != nil {
		t.Fatal(err)
	}
	return got
}

// ReadFrames reads every frame that was written, whatever it holds and whatever is before it.
func TestFrames(t *testing.T) {
	draw := rand.New(rand.NewPCG(1, 2))
	bytesOf := func(alphabet string, most int) []byte {
		b := make([]byte, draw.IntN(most))
		for i := range b {
			b[i] = alphabet[draw.IntN(len(alphabet))]
		}
		return b
	}
	for range 200 {
		var log bytes.Buffer
		log.Write(bytesOf("\x1b\x1b_;1 x\n", 40))
		var want []Frame
		for range draw.IntN(5) {
			f := Frame{[]FrameStream{FrameStdout, FrameStderr, FrameReport}[draw.IntN(3)], draw.Int64(), append(bytesOf("\x00\xff\n\x1b_atoll;1;0;2\\", 3000), '.')}
			if err := WriteFrame(&log, f); err != nil {
				t.Fatal(err)
			}
			want = append(want, f)
		}
		if got := collect(t, log.Bytes()); !slices.EqualFunc(got, want, func(a, b Frame) bool {
			return a.Stream == b.Stream && a.Offset == b.Offset && bytes.Equal(a.Data, b.Data)
		}) {
			t.Fatalf("%q has the frames %+v, want %+v", log.Bytes(), got, want)
		}
	}
}

// A log that was cut at its beginning or its end gives what is whole of it.
func TestCutFrames(t *testing.T) {
	var log bytes.Buffer
	for _, text := range []string{"first", "second \x1b_atoll;1;0;3\x1b\\ not a frame", "third"} {
		if err := WriteFrame(&log, Frame{FrameStdout, 0, []byte(text)}); err != nil {
			t.Fatal(err)
		}
	}
	got := collect(t, log.Bytes()[3:log.Len()-2])
	if len(got) != 2 || !strings.HasPrefix(string(got[0].Data), "second") || string(got[1].Data) != "thi" {
		t.Errorf("frames are %+v", got)
	}
	log.Reset()
	if err := WriteFrame(&log, Frame{FrameReport, 0, []byte(`{"kind":"internal"}`)}); err != nil {
		t.Fatal(err)
	}
	if got := collect(t, log.Bytes()[:log.Len()-1]); len(got) != 0 {
		t.Errorf("half a report is %+v", got)
	}
}
