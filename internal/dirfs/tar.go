package dirfs

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/tarstream"
)

// WriteTar implements atoll.FS. It follows a link given as name, packs other links as
// links, files with several names as hard links, and holes of files as holes. It omits
// devices, sockets and pipes, which mean nothing elsewhere, and extended attributes; a note
// in the stream names each. As a rule it can pack a directory with a million
// entries; one with several million fails with ErrExhausted.
func (f *FS) WriteTar(ctx context.Context, name string, w io.Writer) error {
	at, err := f.resolveName(ctx, "read", name)
	if err != nil {
		return err
	}
	var info fs.FileInfo
	err = f.inTree(at.rel, true, func(rel string) (err error) {
		at.rel = rel
		info, err = f.tree.Stat(rel)
		return err
	})
	if err != nil {
		return wrapError("read", name, err)
	}
	p := packer{f, w, tar.NewWriter(w), map[[2]uint64]string{}, f.maxNames}
	if err = p.packEntry(ctx, at.rel, ".", info); err == nil {
		err = p.w.Close()
	}
	return wrapError("read", name, err)
}

type packer struct {
	f     *FS
	out   io.Writer
	w     *tar.Writer          // writes to out
	names map[[2]uint64]string // of files with several names: the first one packed
	left  int                  // bytes that may still be held in memory
}

// Bytes of memory in addition to the bytes of names: for each name, for each file with
// several names, and for each file of a batch.
const (
	nameSize = 16
	linkSize = 64
	infoSize = 256
)

// reserveMemory counts that many bytes as used, and fails if they exceed the limit.
func (p *packer) reserveMemory(size int) error {
	if p.left < size {
		return errNames
	}
	p.left -= size
	return nil
}

// packEntry adds the file at rel under name, with everything below it.
func (p *packer) packEntry(ctx context.Context, rel, name string, info fs.FileInfo) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	switch typeOf(info.Mode()) {
	case atoll.TypeDirectory:
		return p.packDir(ctx, rel, name, info)
	case atoll.TypeFile:
		return p.packFile(ctx, rel, name, info)
	case atoll.TypeSymlink:
		target, err := p.f.tree.Readlink(rel)
		if err != nil {
			return err
		}
		return p.w.WriteHeader(p.newHeader(tar.TypeSymlink, name, target, info))
	}
	return p.w.WriteHeader(tarstream.NewNote(name, describeType(info.Mode())))
}

// describeType describes a file that a stream leaves out.
func describeType(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeDevice != 0:
		return "a device"
	}
	return "neither a file, a directory nor a link"
}

func (p *packer) packDir(ctx context.Context, rel, name string, info fs.FileInfo) error {
	entry := name
	if name != "." {
		entry += "/"
	}
	if err := p.w.WriteHeader(p.newHeader(tar.TypeDir, entry, "", info)); err != nil {
		return err
	}
	names, size, err := p.f.readNames(rel, p.left)
	if err != nil {
		return err
	}
	size += min(len(names), batchSize) * infoSize
	if err := p.reserveMemory(size); err != nil {
		return err
	}
	defer func() { p.left += size }()
	for some := range slices.Chunk(names, batchSize) {
		infos, err := p.f.statEntries(rel, some)
		if err != nil {
			return err
		}
		for _, info := range infos {
			err := p.packEntry(ctx, path.Join(rel, info.Name()), path.Join(name, info.Name()), info)
			if err != nil && !errors.Is(err, fs.ErrNotExist) { // just removed
				return err
			}
		}
	}
	return nil
}

func (p *packer) packFile(ctx context.Context, rel, name string, info fs.FileInfo) error {
	if id, ok := inodeOf(info); ok {
		if first, ok := p.names[id]; ok {
			return p.w.WriteHeader(p.newHeader(tar.TypeLink, name, first, info))
		}
		if err := p.reserveMemory(len(name) + linkSize); err != nil {
			return err
		}
		p.names[id] = name
	}
	file, info, err := p.f.openRegular(rel)
	if err != nil {
		return err
	}
	defer file.Close()
	for _, attr := range lostAttributes(file) {
		if err := p.w.WriteHeader(tarstream.NewNote(name, "extended attribute "+attr)); err != nil {
			return err
		}
	}
	err = p.packContent(ctx, file, p.newHeader(tar.TypeReg, name, "", info))
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return atoll.Errorf("read", name, atoll.ErrConflict, "the file shrank below %d bytes while it was packed", info.Size())
	}
	return err
}

// packContent adds a regular file.
func (p *packer) packContent(ctx context.Context, file *os.File, h *tar.Header) error {
	data, whole, err := tarstream.FindExtents(ctx, file, h.Size)
	if err != nil {
		return err
	}
	if whole {
		if err := p.w.WriteHeader(h); err != nil {
			return err
		}
		_, err := io.CopyN(p.w, ctxReader{ctx, file}, h.Size)
		return err
	}
	if err := p.w.Flush(); err != nil {
		return err
	}
	return tarstream.WriteSparse(p.out, h, data, ctxReader{ctx, tarstream.ReadExtents(file, data)})
}

func (p *packer) newHeader(kind byte, name, target string, info fs.FileInfo) *tar.Header {
	h := &tar.Header{
		Typeflag: kind,
		Name:     name,
		Linkname: target,
		Mode:     int64(unixMode(info.Mode())),
		ModTime:  info.ModTime(),
		Format:   tar.FormatPAX, // keeps any name, size and fraction of a second
	}
	if kind == tar.TypeReg {
		h.Size = info.Size()
	}
	h.Uid, h.Gid = ownerOf(info)
	return h
}
