package vm

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"sync"
)

// Frames returns a connection on which each Read and Write is one Ethernet frame. On the stream
// each frame is preceded by its length in two bytes, big-endian. Close closes the stream. Reads and
// writes may run at the same time.
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

// Read implements io.Reader. It drops the part of a frame that does not fit into b.
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
	if err == io.EOF { // a frame was due
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Write implements io.Writer.
func (f *frames) Write(b []byte) (int, error) {
	if len(b) > math.MaxUint16 {
		return 0, fmt.Errorf("frame of %d bytes is too long: at most %d", len(b), math.MaxUint16)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.out = append(binary.BigEndian.AppendUint16(f.out[:0], uint16(len(b))), b...)
	n, err := f.stream.Write(f.out)
	return max(n-frameHead, 0), err
}

func (f *frames) Close() error { return f.stream.Close() }
