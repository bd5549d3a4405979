package docker

import (
	"bufio"
	"errors"
	"strings"
	"testing"

	"github.com/moby/moby/client"
)

// noise is what the engine sends of a program that prints on stderr for ever.
type noise struct{ sent int }

func (n *noise) Read(b []byte) (int, error) {
	if n.sent > 64<<20 {
		return 0, errors.New("nobody stops reading")
	}
	piece := "\x02\x00\x00\x00\x00\x00\x01\x00" + strings.Repeat("x", 256)
	size := copy(b, strings.Repeat(piece, max(1, len(b)/len(piece))))
	n.sent += size
	return size - size%len(piece), nil
}

// What stands in for a shell inside, and prints something else than one does, takes no
// more room here than it is given.
func TestLineBesideNoise(t *testing.T) {
	n := &noise{}
	s := newStream(client.HijackedResponse{Reader: bufio.NewReaderSize(n, 264*16)}, false)
	line, err := s.readLine()
	if !errors.Is(err, errNoise) || n.sent > maxNoise+maxNoise/8 {
		t.Errorf("line = %q, %v, after %d bytes; want it to give up", line, err, n.sent)
	}

	// Some of it may come before the line.
	r := strings.NewReader("\x02\x00\x00\x00\x00\x00\x00\x03abc\x01\x00\x00\x00\x00\x00\x00\x0412\nx")
	s = newStream(client.HijackedResponse{Reader: bufio.NewReader(r)}, false)
	var stdout, stderr strings.Builder
	if line, err := s.readLine(); err != nil || line != "12" {
		t.Errorf("line = %q, %v", line, err)
	}
	if err := s.copyOutput(&stdout, &stderr); err != nil || stdout.String() != "x" || stderr.String() != "abc" {
		t.Errorf("then %q and %q: %v", &stdout, &stderr, err)
	}
}
