//go:build linux

// Package overlay reads and writes the changes that a stopped sandbox retains of its root
// file system: the upper layer of gVisor's overlay, as a tar stream with the conventions of
// overlayfs. A character device 0,0 marks a removed file, and the attribute
// trusted.overlay.opaque a directory that hides what is below it.
//
// Pack writes such a stream on the host, from what gVisor reports about the layer and from
// the file that holds the data. Unpack applies it inside, to the original root file system.
// Neither holds a file in memory.
package overlay

import (
	"archive/tar"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

const (
	// xattrPrefix begins the names of extended attributes in PAX records, as in
	// every tar program.
	xattrPrefix = "SCHILY.xattr."
	// opaqueXattr hides a directory's content in the lower layers.
	opaqueXattr = "trusted.overlay.opaque"
	// sparseRecord holds the size of a file with holes. The stream contains
	// its extents: their number, where each begins and how long it is,
	// in 64 bits each, little-endian; then their data, one after the other.
	sparseRecord = "ATOLL.sparse"
	// endRecord is in a global header at the end: without it, a stream that was
	// cut off between two entries would look whole.
	endRecord = "ATOLL.end"
)

// An extent is a part of a file that has data.
type extent struct{ Off, Len int64 }

// ErrLimit says that the layer has more data than the limit of Pack.
var ErrLimit = errors.New("more data than the disk limit allows")

// Pack writes the layer to w. index is gVisor's own checkpoint of it: a tar stream in which
// a regular file is a list of the positions of its parts in store. Pack trusts neither, and
// returns ErrLimit for more than limit bytes of data.
func Pack(w io.Writer, index io.Reader, store io.ReaderAt, limit int64) error {
	p := packer{in: tar.NewReader(index), out: tar.NewWriter(w), store: store, left: limit}
	for {
		h, err := p.in.Next()
		if err == io.EOF {
			end := &tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "end", PAXRecords: map[string]string{endRecord: "1"}}
			return errors.Join(p.out.WriteHeader(end), p.out.Close())
		}
		if err == nil {
			err = p.packEntry(h)
		}
		if err != nil {
			return fmt.Errorf("save the root file system: %w", err)
		}
	}
}

type packer struct {
	in    *tar.Reader
	out   *tar.Writer
	store io.ReaderAt
	left  int64
}

// packEntry writes one entry of the index to the stream.
func (p *packer) packEntry(h *tar.Header) error {
	out := &tar.Header{
		Typeflag: h.Typeflag, Name: h.Name, Linkname: h.Linkname, Mode: h.Mode, Uid: h.Uid, Gid: h.Gid, ModTime: h.ModTime,
		Devmajor: h.Devmajor, Devminor: h.Devminor, PAXRecords: map[string]string{}, Format: tar.FormatPAX,
	}
	for key, value := range h.PAXRecords {
		if strings.HasPrefix(key, xattrPrefix) {
			out.PAXRecords[key] = value
		}
	}
	if h.Typeflag == tar.TypeReg {
		return p.packFile(h, out)
	}
	return p.out.WriteHeader(out)
}

// A segment is a part of a regular file in gVisor's format: the bytes from Start to End are
// in the store at At.
type segment struct{ Start, End, At uint64 }

const segmentSize = 24 // bytes

// packFile writes a regular file with the data of its segments.
func (p *packer) packFile(h, out *tar.Header) error {
	size, segments, err := readSegments(p.in, h.Size)
	if err != nil {
		return fmt.Errorf("%s: %w", h.Name, err)
	}
	extents := extentsOf(segments)
	var data int64
	for _, e := range extents {
		data += e.Len
	}
	if p.left -= data; p.left < 0 {
		return ErrLimit
	}
	out.Size = data
	sparse := data != size
	if sparse {
		out.PAXRecords[sparseRecord] = strconv.FormatInt(size, 10)
		out.Size += 8 + 16*int64(len(extents))
	}
	if err := p.out.WriteHeader(out); err != nil {
		return err
	}
	if sparse {
		if err := writeExtents(p.out, extents); err != nil {
			return err
		}
	}
	for _, s := range segments {
		n := int64(s.End - s.Start)
		if _, err := io.CopyN(p.out, io.NewSectionReader(p.store, int64(s.At), n), n); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
	return nil
}

// readSegments reads gVisor's description of a regular file: its size, and its parts, in
// order, none of which is empty or beyond the end.
func readSegments(r io.Reader, n int64) (size int64, segments []segment, err error) {
	var usize uint64
	if n < 8 || (n-8)%segmentSize != 0 {
		return 0, nil, fmt.Errorf("%d bytes are not a list of segments", n)
	}
	if err := binary.Read(r, binary.LittleEndian, &usize); err != nil {
		return 0, nil, err
	}
	if usize > math.MaxInt64 {
		return 0, nil, fmt.Errorf("size %d is out of range", usize)
	}
	end := uint64(0)
	for range (n - 8) / segmentSize {
		var s segment
		if err := binary.Read(r, binary.LittleEndian, &s); err != nil {
			return 0, nil, err
		}
		if s.Start < end || s.End < s.Start || s.At > math.MaxInt64 {
			return 0, nil, fmt.Errorf("segment %+v is out of order", s)
		}
		end = s.End
		s.End = min(s.End, usize) // pages are allocated as a whole
		if s.Start < s.End {
			segments = append(segments, s)
		}
	}
	return int64(usize), segments, nil
}

// extentsOf joins adjacent segments.
func extentsOf(segments []segment) []extent {
	var extents []extent
	for _, s := range segments {
		off, n := int64(s.Start), int64(s.End-s.Start)
		if last := len(extents) - 1; last >= 0 && extents[last].Off+extents[last].Len == off {
			extents[last].Len += n
			continue
		}
		extents = append(extents, extent{off, n})
	}
	return extents
}

func writeExtents(w io.Writer, extents []extent) error {
	if err := binary.Write(w, binary.LittleEndian, uint64(len(extents))); err != nil {
		return err
	}
	return binary.Write(w, binary.LittleEndian, extents)
}

// readExtents reads what writeExtents wrote for a file of that size.
func readExtents(r io.Reader, size int64) ([]extent, error) {
	var n uint64
	if err := binary.Read(r, binary.LittleEndian, &n); err != nil {
		return nil, err
	}
	var extents []extent
	for range n {
		var e extent
		if err := binary.Read(r, binary.LittleEndian, &e); err != nil {
			return nil, err
		}
		extents = append(extents, e)
	}
	inFile := func(e extent) bool { return e.Off >= 0 && e.Len >= 0 && e.Off <= size && e.Len <= size-e.Off }
	ordered := slices.IsSortedFunc(extents, func(a, b extent) int { return cmp.Compare(a.Off, b.Off) })
	if !ordered || slices.ContainsFunc(extents, func(e extent) bool { return !inFile(e) }) {
		return nil, errors.New("extents are out of order")
	}
	return extents, nil
}
