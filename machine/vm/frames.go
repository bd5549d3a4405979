package vm

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"sync"
)

// Frames makes one Ethernet frame of each Read and Write, over a stream on which each is
// preceded by its length, in two bytes of which the greater is first. Close closes the
// stream. One may read while others write.
func Frames(stream io.ReadWriteCloser) io.ReadWriteCloser {
	return &frames{stream: stream, in: bufio.NewReaderSize(stream, frameHead+math.MaxUint16)}
}

type frames struct {
	stream io.ReadWriteCloser
	in     *bufio.Reader

	mu  sync.Mutex
	out []byte // guarded by mu
}

const frameHead = 2

// Read implements io.Reader. What of a frame has no room in b is lost.
func (f *frames) Read(b []byte) (int, error) {
	head := make([]byte, frameHead)
	if _, err := io.ReadFull(f.in, head); err != nil {
		return 0, err
	}
	size := int(binary.BigEndian.Uint16(head))
	n := min(size, len(b))
	_, err := io.ReadFull(f.in, b[:n])
	if err == nil {
		_, err = f.in.Discard(size - n)
	}
	if err == io.EOF { // it was to be a frame
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Write implements io.Writer.
func (f *frames) Write(b []byte) (int, error) {
	if len(b) > math.MaxUint16 {
		return 0, fmt.Errorf("a frame of %d bytes: there are %d at most", len(b), math.MaxUint16)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.out = append(binary.BigEndian.AppendUint16(f.out[:0], uint16(len(b))), b...)
	n, err := f.stream.Write(f.out)
	return max(n-frameHead, 0), err
}

func (f *frames) Close() error { return f.stream.Close() }
