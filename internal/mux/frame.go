package mux

import (
	"encoding/binary"
	"io"
)

// frames is a connection for yamux, which writes the header of a frame and its body separately:
// frames joins them into one write, which wakes the other side once. yamux writes from one
// goroutine.
type frames struct {
	io.ReadWriteCloser
	held []byte // a header whose body comes next
}

// See yamux's specification: version, type, flags, stream, and length in the last
// four bytes; only data has a body.
const (
	headerSize = 12
	typeData   = 0
)

func (f *frames) Write(b []byte) (int, error) {
	if len(f.held) == 0 && len(b) == headerSize && b[1] == typeData && binary.BigEndian.Uint32(b[8:]) > 0 {
		f.held = append(f.held, b...)
		return len(b), nil
	}
	if len(f.held) == 0 {
		return f.ReadWriteCloser.Write(b)
	}
	f.held = append(f.held, b...)
	n, err := f.ReadWriteCloser.Write(f.held)
	f.held = f.held[:0]
	return max(n-headerSize, 0), err
}
