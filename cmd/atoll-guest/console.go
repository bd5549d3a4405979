//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/guest"
)

// console writes to the readers of the container's log.
var console = log{written: map[guest.FrameStream]int64{}}

// A log writes to stdout and stderr, or as frames to stdout alone.
type log struct {
	framed  bool
	lines   bool   // frames are lines of base64
	outcome string // a file that gets the last report, too

	mu      sync.Mutex
	written map[guest.FrameStream]int64 // the number of bytes of each stream in frames
}

// writeReport reports something about the guest itself.
func (l *log) writeReport(r guest.Report) {
	text, _ := json.Marshal(r) // never fails
	if l.outcome != "" && !r.Begins {
		_ = os.WriteFile(l.outcome, text, 0o666) // otherwise the log has it
	}
	if l.framed {
		_, _ = frames{l, guest.FrameReport}.Write(text)
		return
	}
	for _, output := range []*os.File{os.Stdout, os.Stderr} {
		fmt.Fprintf(output, "\n%s%s\n", guest.ReportPrefix, text)
	}
}

// reportExit reports how the main process ended, on a framed log: without frames this program's
// exit code says it.
func (l *log) reportExit(exit atoll.Exit) {
	if l.framed {
		l.writeReport(guest.Report{Main: &exit})
	}
}

// stdoutWriter returns the writer for the main process's stdout.
func (l *log) stdoutWriter() io.Writer {
	if l.framed {
		return frames{l, guest.FrameStdout}
	}
	return os.Stdout
}

// stderrWriter returns the writer for the main process's stderr.
func (l *log) stderrWriter() io.Writer {
	if l.framed {
		return frames{l, guest.FrameStderr}
	}
	return os.Stderr
}

// frames writes one stream of a log as frames.
type frames struct {
	log    *log
	stream guest.FrameStream
}

// frameSize is the most bytes in one frame.
const frameSize = 64 << 10

func (f frames) Write(b []byte) (int, error) {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	var out io.Writer = os.Stdout
	if f.log.lines {
		out = guest.Lines(out)
	}
	for piece := range slices.Chunk(b, frameSize) {
		if err := guest.WriteFrame(out, guest.Frame{Stream: f.stream, Offset: f.log.written[f.stream], Data: piece}); err != nil {
			return 0, err
		}
		f.log.written[f.stream] += int64(len(piece))
	}
	return len(b), nil
}
