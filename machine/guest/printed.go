package guest

import (
	"bytes"
	"compress/flate"
	"encoding/json"
	"io"
)

// Printed is what a main process has printed, and how its guest says that it has ended.
type Printed struct {
	Stdout, Stderr *Tail
	Report         Report
}

// NothingPrinted is that of one that has printed nothing.
func NothingPrinted() *Printed { return &Printed{Stdout: &Tail{}, Stderr: &Tail{}} }

// ReadPrinted reads a log of Frames to its end. With an error it is what came before that.
func ReadPrinted(log io.Reader) (*Printed, error) {
	out := NothingPrinted()
	err := ReadFrames(log, func(f Frame) {
		switch f.Stream {
		case FrameStdout:
			out.Stdout.writeAt(f.Offset, f.Data)
		case FrameStderr:
			out.Stderr.writeAt(f.Offset, f.Data)
		case FrameReport:
			var r Report
			if json.Unmarshal(f.Data, &r) == nil && !r.Begins {
				out.Report = r
			}
		}
	})
	return out, err
}

// Pack compresses what is kept: as much of its end as there is room for in limit bytes, or
// all of it if that is 0. It is nil if there is nothing.
func (t *Tail) Pack(limit int) ([]byte, error) {
	text := t.Kept()
	for len(text) > 0 {
		packed, err := deflate(text)
		if err != nil || limit == 0 || len(packed) <= limit {
			return packed, err
		}
		text = text[max(1, len(text)/8):]
	}
	return nil, nil
}

// UnpackTail is the tail of an output of which so many bytes were written, and the last of
// them packed; or nothing is left of those.
func UnpackTail(written int64, packed []byte) *Tail {
	text, err := io.ReadAll(flate.NewReader(bytes.NewReader(packed)))
	if err != nil {
		text = nil // it was never there, or is lost
	}
	return TailOf(written, text)
}

func deflate(text []byte) ([]byte, error) {
	var packed bytes.Buffer
	w, err := flate.NewWriter(&packed, flate.DefaultCompression)
	if err != nil {
		return nil, err
	}
	if _, err = w.Write(text); err == nil {
		err = w.Close()
	}
	return packed.Bytes(), err
}
