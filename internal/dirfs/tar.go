package dirfs

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"

	"github.com/seed46cd37a8/atoll"
)

// WriteTar implements atoll.FS. A link given as name is followed, others are
// packed as links, and files with several names as hard links. Devices, sockets
// and pipes are left out: they mean nothing elsewhere. A directory with a
// million entries is packed, as a rule; one with several is ErrExhausted.
func (f *FS) WriteTar(ctx context.Context, name string, w io.Writer) error {
	at, err := f.locate(ctx, "read", name)
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
		return fail("read", name, err)
	}
	p := packer{f, tar.NewWriter(w), map[[2]uint64]string{}, f.maxNames}
	if err = p.pack(ctx, at.rel, ".", info); err == nil {
		err = p.w.Close()
	}
	return fail("read", name, err)
}

type packer struct {
	f     *FS
	w     *tar.Writer
	names map[[2]uint64]string // of files with several names: the first one packed
	left  int                  // bytes that may still be held in memory
}

// What is held besides the bytes of names: for each name, for a file that has
// several, and for one of a batch.
const (
	nameSize = 16
	linkSize = 64
	infoSize = 256
)

// hold notes that so many bytes are held.
func (p *packer) hold(size int) error {
	if p.left < size {
		return errNames
	}
	p.left -= size
	return nil
}

// pack adds what is at rel under name, with all that is below it.
func (p *packer) pack(ctx context.Context, rel, name string, info fs.FileInfo) error {
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
		return p.w.WriteHeader(p.header(tar.TypeSymlink, name, target, info))
	}
	return nil
}

func (p *packer) packDir(ctx context.Context, rel, name string, info fs.FileInfo) error {
	entry := name
	if name != "." {
		entry += "/"
	}
	if err := p.w.WriteHeader(p.header(tar.TypeDir, entry, "", info)); err != nil {
		return err
	}
	names, size, err := p.f.names(rel, p.left)
	if err != nil {
		return err
	}
	size += min(len(names), batch) * infoSize
	if err := p.hold(size); err != nil {
		return err
	}
	defer func() { p.left += size }()
	for some := range slices.Chunk(names, batch) {
		infos, err := p.f.lstat(rel, some)
		if err != nil {
			return err
		}
		for _, info := range infos {
			err := p.pack(ctx, path.Join(rel, info.Name()), path.Join(name, info.Name()), info)
			if err != nil && !errors.Is(err, fs.ErrNotExist) { // just removed
				return err
			}
		}
	}
	return nil
}

func (p *packer) packFile(ctx context.Context, rel, name string, info fs.FileInfo) error {
	if id, ok := inode(info); ok {
		if first, ok := p.names[id]; ok {
			return p.w.WriteHeader(p.header(tar.TypeLink, name, first, info))
		}
		if err := p.hold(len(name) + linkSize); err != nil {
			return err
		}
		p.names[id] = name
	}
	file, info, err := p.f.openRegular(rel)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := p.w.WriteHeader(p.header(tar.TypeReg, name, "", info)); err != nil {
		return err
	}
	n, err := io.CopyN(p.w, ctxReader{ctx, file}, info.Size())
	if err == io.EOF {
		return atoll.Errorf("read", name, atoll.ErrConflict, "the file shrank from %d to %d bytes while it was packed", info.Size(), n)
	}
	return err
}

func (p *packer) header(kind byte, name, target string, info fs.FileInfo) *tar.Header {
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
	h.Uid, h.Gid = owner(info)
	return h
}
