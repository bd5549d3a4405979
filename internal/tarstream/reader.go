package tarstream

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// A Header describes an entry.
type Header struct {
	*tar.Header
	// Data lists the extents of a file with holes in the format of WriteSparse; it is nil for all other entries. If it
	// is not nil, the Reader reads the data of the extents only.
	Data []Extent
	// Sparse says that the file has holes, which the Reader reads as zeros if Data is nil.
	Sparse bool
}

// A Reader reads a tar stream. It reads no byte behind the entry that it is asked for.
type Reader struct {
	in   *recorder
	tr   *tar.Reader
	body io.Reader // the rest of the data of the entry
	left int64     // of the data of extents
	pad  int64     // bytes behind that data
}

// NewReader returns a Reader of r.
func NewReader(r io.Reader) *Reader {
	in := &recorder{r: r}
	return &Reader{in: in, tr: tar.NewReader(in)}
}

// Next returns the next entry, or io.EOF at the end of the stream.
func (r *Reader) Next() (*Header, error) {
	if err := r.skipData(); err != nil {
		return nil, err
	}
	r.in.startRecording()
	h, err := r.tr.Next()
	recorded := r.in.stopRecording()
	if err != nil {
		return nil, err
	}
	entry := &Header{Header: h, Sparse: h.Typeflag == tar.TypeGNUSparse || h.PAXRecords["GNU.sparse.major"] != "" || h.PAXRecords["GNU.sparse.map"] != ""}
	r.body = r.tr
	if h.Typeflag == tar.TypeReg && h.PAXRecords["GNU.sparse.major"] == "1" && h.PAXRecords["GNU.sparse.minor"] == "0" {
		if entry.Data, err = parseExtents(recorded); err != nil {
			return nil, err
		}
		r.left = sumLengths(entry.Data)
		r.pad = padding(r.left)
		r.body, r.tr = nil, tar.NewReader(r.in) // the old one would read holes
	}
	return entry, nil
}

// Read reads the data of the entry.
func (r *Reader) Read(p []byte) (int, error) {
	if r.body != nil {
		return r.body.Read(p)
	}
	if r.left == 0 {
		return 0, io.EOF
	}
	n, err := r.in.Read(p[:min(int64(len(p)), r.left)])
	r.left -= int64(n)
	if err == io.EOF && r.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// skipBuffer is the size of the buffer for skipped data: larger than that of io.Discard, for the sake of readers that
// pass on what they read.
const skipBuffer = 128 << 10

func (r *Reader) skipData() error {
	if r.body != nil || r.left > 0 {
		if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{r}, make([]byte, skipBuffer)); err != nil {
			return err
		}
	}
	_, err := io.CopyN(io.Discard, r.in, r.pad)
	r.body, r.pad = nil, 0
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// parseExtents returns the extents of a file with holes, of which these bytes are the headers and the list. Package
// archive/tar has read and checked them.
func parseExtents(recorded []byte) ([]Extent, error) {
	for more := true; more && len(recorded) >= blockSize; {
		size := int64(0)
		switch recorded[156] {
		case tar.TypeXHeader, tar.TypeXGlobalHeader, tar.TypeGNULongName, tar.TypeGNULongLink:
			octal := strings.Trim(string(recorded[124:136]), " \x00")
			n, err := strconv.ParseInt(octal, 8, 64)
			if err != nil {
				return nil, tar.ErrHeader
			}
			size = n + padding(n)
		default:
			more = false
		}
		if size > int64(len(recorded)-blockSize) {
			return nil, tar.ErrHeader
		}
		recorded = recorded[blockSize+size:]
	}
	var numbers []int64
	for line := range bytes.Lines(recorded) {
		n, err := strconv.ParseInt(strings.TrimSuffix(string(line), "\n"), 10, 64)
		if err != nil {
			break // behind the list
		}
		numbers = append(numbers, n)
	}
	if len(numbers) == 0 || int64(len(numbers)-1) < 2*numbers[0] {
		return nil, tar.ErrHeader
	}
	data := make([]Extent, numbers[0])
	for i := range data {
		data[i] = Extent{numbers[1+2*i], numbers[2+2*i]}
	}
	return data, nil
}

// A SparseFile is a new file that gets holes.
type SparseFile interface {
	io.Writer
	io.WriterAt
	Truncate(size int64) error
}

// WriteFile writes the content of the entry h to an empty file, with its holes.
func (h *Header) WriteFile(file SparseFile, r io.Reader, buffer []byte) error {
	if !h.Sparse {
		// The plain Writer prevents io from using File.ReadFrom, which allocates a buffer of its own.
		_, err := io.CopyBuffer(struct{ io.Writer }{file}, r, buffer)
		return err
	}
	if err := file.Truncate(h.Size); err != nil {
		return err
	}
	if h.Data == nil {
		return writeNonZero(file, r, buffer)
	}
	for _, e := range h.Data {
		to := struct{ io.Writer }{io.NewOffsetWriter(file, e.Offset)}
		n, err := io.CopyBuffer(to, io.LimitReader(r, e.Length), buffer)
		if err == nil && n < e.Length {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// writeNonZero writes the blocks of r that have data.
func writeNonZero(file io.WriterAt, r io.Reader, buffer []byte) error {
	buffer = buffer[:min(len(buffer), minHole)]
	for at := int64(0); ; {
		n, err := io.ReadFull(r, buffer)
		if !isZero(buffer[:n]) {
			if _, err := file.WriteAt(buffer[:n], at); err != nil {
				return err
			}
		}
		at += int64(n)
		switch {
		case err == io.EOF, errors.Is(err, io.ErrUnexpectedEOF) && n > 0:
			return nil
		case err != nil:
			return err
		}
	}
}

// zeros is a block without data.
var zeros [4 << 10]byte

func isZero(p []byte) bool {
	for ; len(p) > len(zeros); p = p[len(zeros):] {
		if !bytes.Equal(p[:len(zeros)], zeros[:]) {
			return false
		}
	}
	return bytes.Equal(p, zeros[:len(p)])
}

// Limits of a recorder, in bytes. Package archive/tar reads up to 1 MiB each of attributes, name, target of a link and
// list of extents, and any number of them.
const (
	maxRecord  = 4<<20 + 64<<10
	keptRecord = 64 << 10 // of the buffer, between entries
)

// A recorder records the bytes that are read from r while it is on.
type recorder struct {
	r    io.Reader
	on   bool
	pos  int64
	skip int64 // bytes to the start of a block
	data []byte
}

func (c *recorder) startRecording() {
	c.on, c.skip, c.data = true, padding(c.pos), c.data[:0]
}

// stopRecording returns the whole blocks that were read.
func (c *recorder) stopRecording() []byte {
	c.on = false
	blocks := c.data[min(c.skip, int64(len(c.data))):]
	if cap(c.data) > keptRecord {
		c.data = nil
	}
	return blocks
}

// Read implements io.Reader.
func (c *recorder) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if c.on {
		if len(c.data)+n > maxRecord {
			return 0, fmt.Errorf("the headers of an entry take more than %d bytes: %w", maxRecord, tar.ErrHeader)
		}
		c.data = append(c.data, p[:n]...)
	}
	c.pos += int64(n)
	return n, err
}
