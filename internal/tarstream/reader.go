package tarstream

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
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
	end  int64     // position of the end of an entry whose holes the tar.Reader reads as zeros; 0 for others
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
	r.body, r.end = r.tr, 0
	if entry.Sparse {
		block, _, err := lastHeader(recorded)
		if err != nil {
			return nil, err
		}
		size, err := storedSize(h, block)
		if err != nil {
			return nil, err
		}
		r.end = r.in.pos + size + padding(size)
	}
	if h.Typeflag == tar.TypeReg && h.PAXRecords["GNU.sparse.major"] == "1" && h.PAXRecords["GNU.sparse.minor"] == "0" {
		if entry.Data, err = parseExtents(recorded); err != nil {
			return nil, err
		}
		r.left = sumLengths(entry.Data)
		r.pad = padding(r.left)
		r.body, r.tr, r.end = nil, tar.NewReader(r.in), 0 // the old one would read holes
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
	if r.end > 0 { // there may be far more zeros than data
		r.body, r.tr, r.pad, r.end = nil, tar.NewReader(r.in), r.end-r.in.pos, 0
	}
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

// lastHeader returns the block of these headers that describes the file, and what is behind it. Package archive/tar has
// read and checked them.
func lastHeader(recorded []byte) (block, rest []byte, err error) {
	for len(recorded) >= blockSize {
		block, rest = recorded[:blockSize], recorded[blockSize:]
		switch block[156] {
		case tar.TypeXHeader, tar.TypeXGlobalHeader, tar.TypeGNULongName, tar.TypeGNULongLink:
		default:
			return block, rest, nil
		}
		size, err := parseSize(block)
		if err != nil || size+padding(size) > int64(len(rest)) {
			return nil, nil, tar.ErrHeader
		}
		recorded = rest[size+padding(size):]
	}
	return nil, nil, tar.ErrHeader
}

// storedSize returns the number of bytes of the entry h in the stream; block is its header.
func storedSize(h *tar.Header, block []byte) (int64, error) {
	text := h.PAXRecords["size"]
	if text == "" {
		return parseSize(block)
	}
	size, err := strconv.ParseInt(text, 10, 64)
	if err != nil || size < 0 || size > maxSize {
		return 0, tar.ErrHeader
	}
	return size, nil
}

// maxSize limits the numbers of bytes in headers, so that positions do not overflow.
const maxSize = 1 << 62

// parseSize returns the size in a header, an octal number, or a binary one if its first bit is set.
func parseSize(block []byte) (int64, error) {
	field := block[124:136]
	var size uint64
	var err error
	if field[0] == 0x80 && bytes.Equal(field[1:4], zeros[:3]) {
		size = binary.BigEndian.Uint64(field[4:])
	} else {
		size, err = strconv.ParseUint("0"+strings.Trim(string(field), " \x00"), 8, 64)
	}
	if err != nil || size > maxSize {
		return 0, tar.ErrHeader
	}
	return int64(size), nil
}

// parseExtents returns the extents of a file with holes, of which these bytes are the headers and the list.
func parseExtents(recorded []byte) ([]Extent, error) {
	_, recorded, err := lastHeader(recorded)
	if err != nil {
		return nil, err
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

// maxZeros is the size from which CheckSize refuses a file: to look for data in that many zeros takes minutes.
const maxZeros = 4 << 40

// CheckSize refuses a large file of which the extents are not known: the stream can have a few bytes of data, and zeros
// for years.
func (h *Header) CheckSize() error {
	if h.Sparse && h.Data == nil && h.Size > maxZeros {
		return fmt.Errorf("a file with holes of %d bytes in an old format, pack it with tar --format=posix: %w", h.Size, tar.ErrHeader)
	}
	return nil
}

// WriteFile writes the content of the entry h to an empty file, with its holes.
func (h *Header) WriteFile(file SparseFile, r io.Reader, buffer []byte) error {
	if !h.Sparse {
		// The plain Writer prevents io from using File.ReadFrom, which allocates a buffer of its own.
		_, err := io.CopyBuffer(struct{ io.Writer }{file}, r, buffer)
		return err
	}
	if err := h.CheckSize(); err != nil {
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
