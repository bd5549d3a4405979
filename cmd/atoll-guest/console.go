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

// console is what whoever reads the container's log is told by.
var console = log{written: map[guest.FrameStream]int64{}}

// A log is written to stdout and stderr, or as frames to stdout alone.
type log struct {
	framed  bool
	lines   bool   // of base64
	outcome string // a file that the last report is in, too

	mu      sync.Mutex
	written map[guest.FrameStream]int64 // how much of each stream is in frames
}

// report says something about the guest itself.
func (l *log) report(r guest.Report) {
	text, _ := json.Marshal(r) // never fails
	if l.outcome != "" && !r.Begins {
		_ = os.WriteFile(l.outcome, text, 0o666) // what is in the log will have to do
	}
	if l.framed {
		_, _ = frames{l, guest.FrameReport}.Write(text)
		return
	}
	for _, output := range []*os.File{os.Stdout, os.Stderr} {
		fmt.Fprintf(output, "\n%s%s\n", guest.ReportPrefix, text)
	}
}

// ended says how the main process has ended, where the code of this program's end is
// not all that is known.
func (l *log) ended(exit atoll.Exit) {
	if l.framed {
		l.report(guest.Report{Main: &exit})
	}
}

func (l *log) stdout() io.Writer {
	if l.framed {
		return frames{l, guest.FrameStdout}
	}
	return os.Stdout
}

func (l *log) stderr() io.Writer {
	if l.framed {
		return frames{l, guest.FrameStderr}
	}
	return os.Stderr
}

// frames writes one stream of a log.
type frames struct {
	log    *log
	stream guest.FrameStream
}

// frameSize is how much is written at once.
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
