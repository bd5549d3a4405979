package guest

import (
	"bytes"
	"compress/flate"
	"encoding/json"
	"io"
)

// Printed is the output of a main process, and its guest's Report of the end.
type Printed struct {
	Stdout, Stderr *Tail
	Report         Report
}

// NothingPrinted returns the Printed of a process without output.
func NothingPrinted() *Printed { return &Printed{Stdout: &Tail{}, Stderr: &Tail{}} }

// ReadPrinted reads a log of Frames to its end. With an error it returns the part before that.
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

// Pack compresses the retained bytes: as much of their end as fits into limit bytes, or all if
// limit is 0. It returns nil if there are none.
func (t *Tail) Pack(limit int) ([]byte, error) {
	text := t.Kept()
	for len(text) > 0 {
		packed, err := compressText(text)
		if err != nil || limit == 0 || len(packed) <= limit {
			return packed, err
		}
		text = text[max(1, len(text)/8):]
	}
	return nil, nil
}

// UnpackTail returns the tail of an output with that many written bytes, whose last bytes are
// packed, or lost.
func UnpackTail(written int64, packed []byte) *Tail {
	text, err := io.ReadAll(flate.NewReader(bytes.NewReader(packed)))
	if err != nil {
		text = nil // missing or damaged
	}
	return TailOf(written, text)
}

func compressText(text []byte) ([]byte, error) {
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
