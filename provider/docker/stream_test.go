package docker

import (
	"bufio"
	"errors"
	"strings"
	"testing"

	"github.com/moby/moby/client"
)

// stderrFlood is the output of a program that writes to stderr for ever.
type stderrFlood struct{ sent int }

func (n *stderrFlood) Read(b []byte) (int, error) {
	if n.sent > 64<<20 {
		return 0, errors.New("nobody stops reading")
	}
	piece := "\x02\x00\x00\x00\x00\x00\x01\x00" + strings.Repeat("x", 256)
	size := copy(b, strings.Repeat(piece, max(1, len(b)/len(piece))))
	n.sent += size
	return size - size%len(piece), nil
}

// readLine bounds its buffer, even if a program that replaced the shell floods stderr.
func TestReadLineAfterFlood(t *testing.T) {
	n := &stderrFlood{}
	s := newStream(client.HijackedResponse{Reader: bufio.NewReaderSize(n, 264*16)}, false)
	line, err := s.readLine()
	if !errors.Is(err, errNoise) || n.sent > maxNoise+maxNoise/8 {
		t.Errorf("readLine: %q, %v, after %d bytes; want errNoise", line, err, n.sent)
	}

	// some stderr before the line is fine
	r := strings.NewReader("\x02\x00\x00\x00\x00\x00\x00\x03abc\x01\x00\x00\x00\x00\x00\x00\x0412\nx")
	s = newStream(client.HijackedResponse{Reader: bufio.NewReader(r)}, false)
	var stdout, stderr strings.Builder
	if line, err := s.readLine(); err != nil || line != "12" {
		t.Errorf("readLine: %q, %v", line, err)
	}
	if err := s.copyOutput(&stdout, &stderr); err != nil || stdout.String() != "x" || stderr.String() != "abc" {
		t.Errorf("copyOutput: %q and %q, %v", &stdout, &stderr, err)
	}
}
