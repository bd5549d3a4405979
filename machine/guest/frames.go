package guest

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"strconv"
)

// A Frame is a piece of the output of a guest with one log for all streams, such as that of a pod.
// Its header is a sequence that terminals do not show, an application program command: ESC _
// atoll;STREAM;OFFSET;LENGTH ESC \
type Frame struct {
	Stream FrameStream
	Offset int64 // of Data in its stream: earlier data may have been dropped
	Data   []byte
}

// A FrameStream is the stream of a Frame.
type FrameStream byte

// The streams of a guest.
const (
	FrameStdout FrameStream = '1' // the main process's stdout
	FrameStderr FrameStream = '2'
	FrameReport FrameStream = 'r' // a Report as JSON, in one piece
)

const (
	frameBegin = "\x1b_atoll;"
	frameEnd   = "\x1b\\"
)

// WriteFrame writes a Frame in one call.
func WriteFrame(w io.Writer, f Frame) error {
	b := fmt.Appendf(nil, "%s%c;%d;%d%s", frameBegin, f.Stream, f.Offset, len(f.Data), frameEnd)
	_, err := w.Write(append(b, f.Data...))
	return err
}

// frameLimit is the longest Frame that ReadFrames accepts: writers write less at once.
const frameLimit = 1 << 20

// ReadFrames calls each with every Frame of a log until the log ends; each must not retain the
// Data. It skips other text, such as the rest of a Frame where the beginning of a log has been
// dropped.
func ReadFrames(log io.Reader, each func(Frame)) error {
	r := bufio.NewReaderSize(log, 64<<10)
	for {
		f, size, err := nextFrame(r)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		f.Data = make([]byte, size)
		n, err := io.ReadFull(r, f.Data)
		if f.Data = f.Data[:n]; n > 0 && (err == nil || f.Stream != FrameReport) {
			each(f)
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF { // its writer was killed
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// nextFrame reads up to the end of the next header.
func nextFrame(r *bufio.Reader) (f Frame, size int, err error) {
	for {
		if _, err := r.ReadSlice(frameBegin[0]); err == bufio.ErrBufferFull {
			continue
		} else if err != nil {
			return f, 0, err
		}
		head, err := r.Peek(len(frameBegin) - 1 + len("1;9223372036854775807;1048576") + len(frameEnd))
		if err != nil && err != io.EOF {
			return f, 0, err
		}
		rest, ok := bytes.CutPrefix(head, []byte(frameBegin[1:]))
		fields, _, ends := bytes.Cut(rest, []byte(frameEnd))
		if !ok || !ends || len(fields) < 3 || fields[1] != ';' {
			continue
		}
		offset, length, _ := bytes.Cut(fields[2:], []byte{';'})
		size, err = strconv.Atoi(string(length))
		if err != nil || size < 0 || size > frameLimit {
			continue
		}
		f.Offset, err = strconv.ParseInt(string(offset), 10, 64)
		if err != nil || f.Offset < 0 {
			continue
		}
		f.Stream = FrameStream(fields[0])
		_, err = r.Discard(len(frameBegin) - 1 + len(fields) + len(frameEnd))
		return f, size, err
	}
}

// Lines returns a writer that writes each Write as one line of base64, in one call: for a log that
// takes text only.
func Lines(w io.Writer) io.Writer { return lines{w} }

type lines struct{ w io.Writer }

func (l lines) Write(b []byte) (int, error) {
	line := append(base64.StdEncoding.AppendEncode(nil, b), '\n')
	if _, err := l.w.Write(line); err != nil {
		return 0, err
	}
	return len(b), nil
}

// FromLines returns the data written to Lines, from its output. It skips other lines, and an
// incomplete last one.
func FromLines(r io.Reader) io.Reader {
	return &fromLines{r: bufio.NewReader(r)}
}

type fromLines struct {
	r    *bufio.Reader
	text []byte
}

func (l *fromLines) Read(b []byte) (int, error) {
	for len(l.text) == 0 {
		line, err := l.r.ReadBytes('\n')
		if err != nil {
			return 0, err
		}
		if l.text, err = base64.StdEncoding.AppendDecode(nil, bytes.TrimSpace(line)); err != nil {
			l.text = nil
		}
	}
	n := copy(b, l.text)
	l.text = l.text[n:]
	return n, nil
}
