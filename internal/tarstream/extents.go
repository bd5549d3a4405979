package tarstream

import (
	"context"
	"errors"
	"io"
	"os"
)

// minHole is the length from which zeros become a hole if the file system does not know the holes of a file.
const minHole = 64 << 10

// errUnknown says that the file system does not know the holes of a file.
var errUnknown = errors.New("the file system does not know its holes")

// FindExtents returns the extents of the first size bytes of a file; whole says that there are no holes. It asks the
// file system, and if that does not know the holes, as in gVisor, it reads the file and looks for zeros. The position
// in the file is at its beginning again then.
func FindExtents(ctx context.Context, file *os.File, size int64) (data []Extent, whole bool, err error) {
	if size < minHole {
		return nil, true, nil
	}
	data, err = seekExtents(file, size)
	if errors.Is(err, errUnknown) {
		data, err = scanExtents(ctx, io.NewSectionReader(file, 0, size))
	}
	if err != nil {
		return nil, false, err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, false, err
	}
	data = limitExtents(alignExtents(data, size), maxExtents)
	return data, len(data) == 1 && data[0] == Extent{0, size}, nil
}

// alignExtents widens extents to whole blocks.
func alignExtents(data []Extent, size int64) (aligned []Extent) {
	for _, e := range data {
		start := e.Offset &^ (blockSize - 1)
		end := e.Offset + e.Length
		end = min(end+padding(end), size)
		if last := len(aligned) - 1; last >= 0 && start <= aligned[last].Offset+aligned[last].Length {
			aligned[last].Length = end - aligned[last].Offset
			continue
		}
		aligned = append(aligned, Extent{start, end - start})
	}
	return aligned
}

// scanExtents looks for zeros.
func scanExtents(ctx context.Context, r io.Reader) ([]Extent, error) {
	var data []Extent
	buffer := make([]byte, minHole)
	for at := int64(0); ; {
		if ctx.Err() != nil { // the file may have zeros for years
			return nil, context.Cause(ctx)
		}
		n, err := io.ReadFull(r, buffer)
		if n > 0 && !isZero(buffer[:n]) {
			if last := len(data) - 1; last >= 0 && data[last].Offset+data[last].Length == at {
				data[last].Length += int64(n)
			} else {
				data = append(data, Extent{at, int64(n)})
			}
		}
		at += int64(n)
		switch {
		case err == io.EOF, err == io.ErrUnexpectedEOF:
			return data, nil
		case err != nil:
			return nil, err
		}
	}
}

// ReadExtents returns a reader of the data of these extents.
func ReadExtents(file io.ReaderAt, data []Extent) io.Reader {
	parts := make([]io.Reader, len(data))
	for i, e := range data {
		parts[i] = io.NewSectionReader(file, e.Offset, e.Length)
	}
	return io.MultiReader(parts...)
}
