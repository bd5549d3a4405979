package docker

import (
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"sync"

	"github.com/moby/moby/client"
)

// A stream is what a process prints, as the engine sends it, and the way to its
// stdin.
type stream struct {
	conn client.HijackedResponse
	tty  bool // it is one output, and sent as it is

	unread  int       // of the piece that is being read
	stderr  bool      // what that is of
	pending [2][]byte // of stdout and of stderr, read and not yet delivered

	closing sync.Once
}

func newStream(conn client.HijackedResponse, tty bool) *stream { return &stream{conn: conn, tty: tty} }

// close ends it, and whoever reads it. A second call does nothing.
func (s *stream) close() { s.closing.Do(s.conn.Close) }

// readPiece reads what comes next, and says whether it is of stderr. In the engine's
// stream each piece of output has a header before it: what it is of, and its length.
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

// maxLine is how long a line of ours may be, and what the engine says.
const maxLine = 4 << 10

// maxNoise is how much of stderr may come before a line of stdout: a busy engine is late
// with the one, and sends what a program floods it with of the other.
const maxNoise = 32 << 20

// maxAhead is how much of both may come when nothing but the engine's or our own words is
// to.
const maxAhead = 1 << 20

// errNoise is that of a shell which does not say the line that it is to.
var errNoise = errors.New("the image's shell prints something else than it was told to")

// readLine reads one line of stdout, without its end. What else has come is kept. One
// that ends with the stream is a line too.
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

// readAhead reads some of what comes ahead.
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

// readRest reads both outputs to their end, or as much as nobody has to say, and returns
// the beginning of that.
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

// copyOutput delivers both outputs to their end, or until they break off. It does not stop
// when a writer fails, which would hold the process up.
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
