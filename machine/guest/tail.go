package guest

import (
	"bytes"
	"encoding/json"

	"github.com/seed46cd37a8/atoll"
)

// A Tail is the end of the main process's output to a stream since its start, and the Report that
// its guest wrote after it, from a log. The zero value is empty.
type Tail struct {
	written int64
	data    []byte
	report  Report
}

// TailOf returns the tail of an output with that many written bytes, the last of which are in data.
func TailOf(written int64, data []byte) *Tail {
	return &Tail{written: max(written, int64(len(data))), data: data}
}

// Kept returns the last bytes that were written: at most atoll.DefaultOutputLimit. The next call of
// Write or Add may change them.
func (t *Tail) Kept() []byte { return t.data[max(0, len(t.data)-atoll.DefaultOutputLimit):] }

// Status returns the number of written bytes, and the offset of the first retained one.
func (t *Tail) Status() atoll.StreamStatus {
	return atoll.StreamStatus{Written: t.written, Oldest: t.written - int64(len(t.Kept()))}
}

// Report returns the last Report of the guest; the zero one if there was none.
func (t *Tail) Report() Report { return t.report }

// Write implements io.Writer, for output without the guest's own lines. It drops the excess only
// now and then: a log can have millions of lines.
func (t *Tail) Write(b []byte) (int, error) {
	t.data = append(t.data, b...)
	t.written += int64(len(b))
	if len(t.data) > 2*atoll.DefaultOutputLimit {
		t.data = append(t.data[:0], t.Kept()...)
	}
	return len(b), nil
}

// writeAt writes bytes at that offset of the stream: bytes in between have been dropped, as by a
// node that begins a new log.
func (t *Tail) writeAt(offset int64, b []byte) {
	if offset > t.written {
		t.data, t.written = t.data[:0], offset
	}
	_, _ = t.Write(b)
}

// Add adds a line with its end, or a part of one. A line of the guest is not part of the stream,
// nor is the line end before it; after a Report of a new run, earlier output is not either.
func (t *Tail) Add(line []byte) {
	text, ok := bytes.CutPrefix(line, []byte(ReportPrefix))
	var r Report
	if !ok || json.Unmarshal(text, &r) != nil {
		_, _ = t.Write(line)
		return
	}
	if r.Begins {
		*t = Tail{}
		return
	}
	t.report = r
	if bytes.HasSuffix(t.data, []byte("\n")) {
		t.data = t.data[:len(t.data)-1]
		t.written--
	}
}
