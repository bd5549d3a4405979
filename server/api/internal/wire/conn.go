package wire

import (
	"io"
	"sync"
)

// copySize is the size of the buffers that copy files.
const copySize = 256 << 10

var copyBuffers = sync.Pool{New: func() any { return new([copySize]byte) }}

// CopyBuffer is io.Copy with a large buffer. It ignores io.ReaderFrom and io.WriterTo.
func CopyBuffer(dst io.Writer, src io.Reader) (int64, error) {
	buf := copyBuffers.Get().(*[copySize]byte)
	defer copyBuffers.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, buf[:])
}
