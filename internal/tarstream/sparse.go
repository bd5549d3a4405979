// Package tarstream adds two things to the tar streams of package archive/tar: holes of files, in the format that GNU
// tar calls PAX 1.0, which package archive/tar reads but does not write; and notes on what a stream leaves out.
package tarstream

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
)

// An Extent is a part of a file that has data. The rest of the file is holes.
type Extent struct{ Offset, Length int64 }

// blockSize is the size of the blocks of a tar stream.
const blockSize = 512

// padding returns the number of bytes from size to the end of its block.
func padding(size int64) int64 { return -size & (blockSize - 1) }

// sumLengths returns the number of bytes of data.
func sumLengths(data []Extent) (sum int64) {
	for _, e := range data {
		sum += e.Length
	}
	return sum
}

// maxExtents limits the extents of a file: package archive/tar reads no list of more than 1 MiB, and each extent takes
// up to 40 bytes.
const maxExtents = 16 << 10

// limitExtents returns at most that many extents, which cover all of data: it fills the smallest holes.
func limitExtents(data []Extent, most int) []Extent {
	for gap := int64(minHole); len(data) > most; gap *= 2 {
		merged := data[:1:1]
		for _, e := range data[1:] {
			last := &merged[len(merged)-1]
			if e.Offset-(last.Offset+last.Length) <= gap {
				last.Length = e.Offset + e.Length - last.Offset
				continue
			}
			merged = append(merged, e)
		}
		data = merged
	}
	return data
}

// The keys of a file with holes. Package archive/tar refuses to write them, so Write writes others of the same length,
// which sort the same, and replaces them.
var sparseKeys = []struct{ written, key string }{
	{"GNU_sparse.major", "GNU.sparse.major"},
	{"GNU_sparse.minor", "GNU.sparse.minor"},
	{"GNU_sparse.realsize", "GNU.sparse.realsize"},
}

// WriteSparse writes a regular file of h.Size bytes that has data in these extents only, which are in order, do not
// overlap, and begin and end between blocks or at the end of the file: GNU tar reads others wrongly. content yields the data of all extents, one after the other. w must be at the start of a block: flush the
// tar.Writer first. WriteSparse leaves extended attributes out.
func WriteSparse(w io.Writer, h *tar.Header, data []Extent, content io.Reader) error {
	if last := len(data) - 1; last < 0 || data[last].Offset+data[last].Length < h.Size {
		data = append(slices.Clip(data), Extent{h.Size, 0}) // GNU tar takes the end of the last extent for the size
	}
	var list bytes.Buffer
	fmt.Fprintf(&list, "%d\n", len(data))
	for _, e := range data {
		fmt.Fprintf(&list, "%d\n%d\n", e.Offset, e.Length)
	}
	list.Write(make([]byte, padding(int64(list.Len()))))

	size := sumLengths(data)
	stored := *h
	stored.Typeflag, stored.Format, stored.Size = tar.TypeReg, tar.FormatPAX, int64(list.Len())+size
	stored.PAXRecords = map[string]string{
		sparseKeys[0].written: "1", sparseKeys[1].written: "0", sparseKeys[2].written: strconv.FormatInt(h.Size, 10),
	}
	var head bytes.Buffer
	if err := tar.NewWriter(&head).WriteHeader(&stored); err != nil {
		return err
	}
	records := head.Bytes()[blockSize:] // behind the header of the records; ours come first, in the order of their keys
	for _, k := range sparseKeys {
		i := bytes.Index(records, []byte(k.written))
		copy(records[i:], k.key)
	}
	for _, part := range []io.Reader{&head, &list, io.LimitReader(content, size), bytes.NewReader(make([]byte, padding(size)))} {
		n, err := io.Copy(w, part)
		if err != nil {
			return err
		}
		if _, limited := part.(*io.LimitedReader); limited && n < size {
			return io.ErrUnexpectedEOF
		}
	}
	return nil
}
