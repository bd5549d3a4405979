package docker

import (
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"sync"

	"github.com/moby/moby/client"
)

// A stream is a connection to a process: the engine sends its output, and forwards its stdin.
type stream struct {
	conn client.HijackedResponse
	tty  bool // there is one output, sent without frames

	unread  int       // bytes of the current frame
	stderr  bool      // the current frame is of stderr
	pending [2][]byte // stdout and stderr, read but not yet delivered

	closing sync.Once
}

func newStream(conn client.HijackedResponse, tty bool) *stream { return &stream{conn: conn, tty: tty} }

// close closes the connection, and ends reads. A second call does nothing.
func (s *stream) close() { s.closing.Do(s.conn.Close) }

// readPiece reads the next bytes, and reports whether they are stderr. Without a terminal, each
// frame has a header with the number of its output and its length.
func (s *stream) readPiece(b []byte) (n int, stderr bool, err error) {
	if s.tty {
		n, err = s.conn.Reader.Read(b)
		return n, false, err
	}
	for s.unread == 0 {
		var header [8]byte
		if _, err := io.ReadFull(s.conn.Reader, header[:]); err != nil {
			return 0, false, err
		}
		s.stderr = header[0] == 2
		s.unread = int(binary.BigEndian.Uint32(header[4:]))
	}
	n, err = s.conn.Reader.Read(b[:min(len(b), s.unread)])
	s.unread -= n
	return n, s.stderr, err
}

// maxLine is the maximum length in bytes of a line of the launcher, or of a message of the
// engine.
const maxLine = 4 << 10

// maxNoise is the maximum number of bytes of stderr before a line of stdout: a busy engine may
// deliver the line late, and first a flood of stderr.
const maxNoise = 32 << 20

// maxAhead is the maximum number of bytes that readRest reads, of both outputs together.
const maxAhead = 1 << 20

// errNoise is the error for a shell that does not print the expected line.
var errNoise = errors.New("the image's shell did not print the expected line")

// readLine reads one line of stdout, without its end. The last line needs no newline. Other
// output is buffered in pending.
func (s *stream) readLine() (string, error) {
	for {
		if line, rest, ok := strings.Cut(string(s.pending[0]), "\n"); ok || len(s.pending[0]) > maxLine {
			s.pending[0] = []byte(rest)
			return strings.TrimSuffix(line, "\r"), nil
		}
		if len(s.pending[1]) > maxNoise {
			return "", errNoise
		}
		err := s.readAhead()
		if err == io.EOF && len(s.pending[0]) > 0 {
			s.pending[0] = append(s.pending[0], '\n')
			continue
		}
		if err != nil {
			return "", err
		}
	}
}

// readAhead reads some output into pending.
func (s *stream) readAhead() error {
	var b [1 << 10]byte
	n, stderr, err := s.readPiece(b[:])
	of := 0
	if stderr {
		of = 1
	}
	s.pending[of] = append(s.pending[of], b[:n]...)
	if n > 0 {
		return nil
	}
	return err
}

// readRest reads both outputs to their end, or until maxAhead, and returns the beginning, up to
// maxLine.
func (s *stream) readRest() string {
	var text []byte
	for read := 0; ; {
		for i := range s.pending {
			read += len(s.pending[i])
			text = append(text, s.pending[i]...)
			s.pending[i] = nil
		}
		text = text[:min(len(text), maxLine)]
		if read > maxAhead || s.readAhead() != nil {
			return string(text)
		}
	}
}

// copyOutput copies both outputs until they end or the connection breaks. It goes on if a writer
// fails, because otherwise the process would block.
func (s *stream) copyOutput(stdout, stderr io.Writer) error {
	outs := [2]io.Writer{stdout, stderr}
	for i, b := range s.pending {
		_, _ = outs[i].Write(b)
	}
	b := make([]byte, 32<<10)
	for {
		n, isErr, err := s.readPiece(b)
		out := stdout
		if isErr {
			out = stderr
		}
		_, _ = out.Write(b[:n])
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
