package docker

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"

	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/guest"
)

// A tail is the end of what the main process has written to a stream since it
// was started, and the report that its guest wrote after it.
type tail struct {
	written int64
	data    []byte
	report  guest.Report
}

// kept is what is told of it.
func (t *tail) kept() []byte { return t.data[max(0, len(t.data)-atoll.DefaultOutputLimit):] }

func (t *tail) status() atoll.StreamStatus {
	return atoll.StreamStatus{Written: t.written, Kept: t.written - int64(len(t.kept()))}
}

// Write implements io.Writer, for what no guest has written. What is over is dropped
// now and then only: a log can have millions of lines.
func (t *tail) Write(b []byte) (int, error) {
	t.data = append(t.data, b...)
	t.written += int64(len(b))
	if len(t.data) > 2*atoll.DefaultOutputLimit {
		t.data = append(t.data[:0], t.kept()...)
	}
	return len(b), nil
}

// add adds a line, or a part of one. A guest's own is no part of the stream, nor
// is the end of line before it, nor what was written before it was started.
func (t *tail) add(line []byte) {
	text, ok := bytes.CutPrefix(line, []byte(guest.ReportPrefix))
	var r guest.Report
	if !ok || json.Unmarshal(text, &r) != nil {
		_, _ = t.Write(line)
		return
	}
	if r.Begins {
		*t = tail{}
		return
	}
	t.report = r
	if bytes.HasSuffix(t.data, []byte("\n")) {
		t.data = t.data[:len(t.data)-1]
		t.written--
	}
}

// logs reads a container's log: that of a guest, or what the options select of it.
func (p *Provider) logs(ctx context.Context, container string, opts client.ContainerLogsOptions) (stdout, stderr *tail, err error) {
	opts.ShowStdout, opts.ShowStderr = true, true
	r, err := p.engine.ContainerLogs(ctx, container, opts)
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	stdout, stderr = &tail{}, &tail{}
	for {
		var header [8]byte // of each line: which stream it is of, and its length
		if _, err := io.ReadFull(r, header[:]); errors.Is(err, io.EOF) {
			return stdout, stderr, nil
		} else if err != nil {
			return nil, nil, err
		}
		line := make([]byte, binary.BigEndian.Uint32(header[4:]))
		if _, err := io.ReadFull(r, line); err != nil {
			return nil, nil, err
		}
		if header[0] == 1 {
			stdout.add(line)
		} else {
			stderr.add(line)
		}
	}
}

// report reads the last line of a container's log, if it is its guest's: whichever
// output the engine has read last, it is there.
func (p *Provider) report(ctx context.Context, op, id, container string) (r guest.Report, err error) {
	stdout, stderr, err := p.logs(ctx, container, client.ContainerLogsOptions{Tail: "1"})
	if err != nil {
		return r, p.failed(ctx, op, id, err)
	}
	if stdout.report != (guest.Report{}) {
		return stdout.report, nil
	}
	return stderr.report, nil
}
