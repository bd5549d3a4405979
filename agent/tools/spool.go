package tools

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"path"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/jobs"
)

// spoolDir is the directory in a sandbox for the files with output that is too long for an answer.
const spoolDir = "/tmp/atoll-output"

// Bounds of these files.
const (
	maxSpool  = 64 << 20 // bytes of a file; longer output has none
	maxSpools = 20       // files of a session; the next one replaces the oldest
)

// A spool writes all output of a stream to a file in the sandbox. Writing fails silently: the answer then
// names no file.
type spool struct {
	ctx  context.Context
	fs   atoll.FS
	name string

	pipe    *io.PipeWriter // nil before the first write
	result  chan error     // of writing the file; closed after that
	written int64
}

// Write implements io.Writer. It blocks until the sandbox has taken b, and never fails.
func (s *spool) Write(b []byte) (int, error) {
	if s.pipe == nil {
		r, w := io.Pipe()
		s.pipe, s.result = w, make(chan error, 1)
		go func() { // ends with the pipe
			_, err := s.fs.Write(s.ctx, s.name, r, atoll.WriteOptions{Mode: 0o600})
			r.CloseWithError(io.ErrClosedPipe)
			s.result <- err
			close(s.result)
		}()
	}
	if s.written += int64(len(b)); s.written > maxSpool {
		s.pipe.CloseWithError(io.ErrShortBuffer)
		return len(b), nil
	}
	_, _ = s.pipe.Write(b)
	return len(b), nil
}

// finishFile completes the file, and returns its name, or "" if there is none.
func (s *spool) finishFile() string {
	if s.pipe == nil {
		return ""
	}
	s.pipe.Close()
	if err := <-s.result; err != nil {
		return ""
	}
	return s.name
}

// spools are the files for the output of a command.
type spools struct {
	d              *sandboxState
	stdout, stderr *spool
}

// newSpools returns files for the output of one command. They exist only if the output is long.
func (d *sandboxState) newSpools(ctx context.Context) *spools {
	id := strings.ToLower(rand.Text()[:8])
	fs := atoll.Files(d.sandbox)
	return &spools{
		d, &spool{ctx: ctx, fs: fs, name: path.Join(spoolDir, id+"-stdout.txt")},
		&spool{ctx: ctx, fs: fs, name: path.Join(spoolDir, id+"-stderr.txt")},
	}
}

// keepOutput sets the files of output that does not fit into limit bytes.
func (s *spools) keepOutput(r *jobs.Ran, limit int) {
	one, other := splitLimit(limit, r.Stdout.Size(), r.Stderr.Size())
	s.keepText(s.stdout, &r.Stdout, one)
	s.keepText(s.stderr, &r.Stderr, other)
}

// keepText sets the file of a text that is longer than limit bytes.
func (s *spools) keepText(file *spool, t *jobs.Text, limit int) {
	if t.Omitted == 0 && t.Size() <= limit {
		return
	}
	if file.pipe == nil && t.Omitted == 0 { // only both streams together are too long
		_, _ = io.Copy(file, bytes.NewReader(t.Data))
	}
	if t.File = file.finishFile(); t.File != "" {
		s.d.rememberSpool(file)
	}
}

// closeFiles discards the files that keepOutput did not complete.
func (s *spools) closeFiles() {
	for _, file := range []*spool{s.stdout, s.stderr} {
		if file.pipe != nil {
			file.pipe.CloseWithError(context.Canceled) // has no effect on a complete file
			<-file.result
		}
	}
}

// rememberSpool counts a file, and removes the oldest if there are too many.
func (d *sandboxState) rememberSpool(file *spool) {
	d.mu.Lock()
	d.spools = append(d.spools, file.name)
	oldest := ""
	if len(d.spools) > maxSpools {
		oldest, d.spools = d.spools[0], d.spools[1:]
	}
	d.mu.Unlock()
	if oldest != "" {
		_ = file.fs.Remove(file.ctx, oldest, false) // it may be gone already
	}
}
