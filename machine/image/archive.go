//go:build linux

package image

import (
	"archive/tar"
	"io"
	"os"
	"path"
)

// An archive is a tar file whose members can be read in any order.
type archive struct {
	path    string
	members map[string]member
}

// A member is a file of an archive.
type member struct {
	offset, size int64
	link         string // when it is a link, the name of another member
}

// Limits on what an archive may consist of. It has a few members for each
// layer, with short names.
const (
	maxMembers     = 100_000
	maxMemberNames = 16 << 20 // bytes of all their names
)

// scanArchive finds out where in the tar file the members are. It skips over
// their content.
func scanArchive(name string) (*archive, error) {
	f, err := openRegular(os.OpenFile, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	a := &archive{path: name, members: map[string]member{}}
	tr := tar.NewReader(f) // which seeks, and does not read ahead
	names := 0
	for {
		hdr, err := tr.Next()
		if err == io.EOF {
			return a, nil
		}
		if err != nil {
			return nil, damaged(err, "not a tar file")
		}
		if len(a.members) == maxMembers {
			return nil, tooBig("an archive of more than %d files", maxMembers)
		}
		if names += len(hdr.Name) + len(hdr.Linkname); names > maxMemberNames {
			return nil, tooBig("an archive of files with more than %d bytes of names", maxMemberNames)
		}
		offset, err := f.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil, err
		}
		m := member{offset: offset, size: hdr.Size}
		switch hdr.Typeflag {
		case tar.TypeReg:
		case tar.TypeSymlink: // equal layers, in what older versions wrote
			m = member{link: path.Join(path.Dir(path.Clean(hdr.Name)), hdr.Linkname)}
		case tar.TypeLink:
			m = member{link: path.Clean(hdr.Linkname)}
		default:
			continue
		}
		a.members[path.Clean(hdr.Name)] = m
	}
}

// find returns the member called name, or the one it links to.
func (a *archive) find(name string) (member, error) {
	at := path.Clean(name)
	for range maxLinks {
		m, ok := a.members[at]
		if !ok {
			return member{}, damaged(nil, "the archive lacks %q", name)
		}
		if m.link == "" {
			return m, nil
		}
		at = m.link
	}
	return member{}, damaged(nil, "the archive has too many links at %q", name)
}

// open returns the content of a member.
func (a *archive) open(m member) (io.ReadCloser, error) {
	f, err := openRegular(os.OpenFile, a.path)
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(f, m.offset, m.size), f}, nil
}

// read returns the content of the member called name, which should not be
// larger than limit.
func (a *archive) read(name string, limit int64) ([]byte, error) {
	m, err := a.find(name)
	if err != nil {
		return nil, err
	}
	if m.size > limit {
		return nil, damaged(nil, "%q in the archive is larger than %d bytes", name, limit)
	}
	r, err := a.open(m)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	raw := make([]byte, m.size)
	if _, err := io.ReadFull(r, raw); err != nil {
		return nil, damaged(err, "%q in the archive cannot be read", name)
	}
	return raw, nil
}
