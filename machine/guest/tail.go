package guest

import (
	"bytes"
	"encoding/json"

	"github.com/seed46cd37a8/atoll"
)

// A Tail is the end of what the main process has written to a stream since it was
// started, and the Report that its guest wrote after it, as a log has them. The zero
// value is that of nothing.
type Tail struct {
	written int64
	data    []byte
	report  Report
}

// TailOf is that of an output of which so many bytes were written, the last of which are
// in data.
func TailOf(written int64, data []byte) *Tail {
	return &Tail{written: max(written, int64(len(data))), data: data}
}

// Kept is the last of what was written, as much as is told of it: at most
// atoll.DefaultOutputLimit bytes. The next call of Write or Add may change them.
func (t *Tail) Kept() []byte { return t.data[max(0, len(t.data)-atoll.DefaultOutputLimit):] }

// Status says how much was written, and from where on it is kept.
func (t *Tail) Status() atoll.StreamStatus {
	return atoll.StreamStatus{Written: t.written, Kept: t.written - int64(len(t.Kept()))}
}

// Report is the last one of the guest; the zero one if there was none.
func (t *Tail) Report() Report { return t.report }

// Write implements io.Writer, for what no guest has written. What is over is dropped
// now and then only: a log can have millions of lines.
func (t *Tail) Write(b []byte) (int, error) {
	t.data = append(t.data, b...)
	t.written += int64(len(b))
	if len(t.data) > 2*atoll.DefaultOutputLimit {
		t.data = append(t.data[:0], t.Kept()...)
	}
	return len(b), nil
}

// writeAt is Write of what is at that offset of the stream: what there was between has been
// dropped, as by a node that begins a new log.
func (t *Tail) writeAt(offset int64, b []byte) {
	if offset > t.written {
		t.data, t.written = t.data[:0], offset
	}
	_, _ = t.Write(b)
}

// Add adds a line with its end, or a part of one. A guest's own is no part of the
// stream, nor is the end of line before it, nor what was written before it was
// started.
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
