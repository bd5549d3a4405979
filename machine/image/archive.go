//go:build linux

package image

import (
	"archive/tar"
	"io"
	"os"
	"path"
)

// An archive is a tar file with an index of its members, for reads in any order.
type archive struct {
	path    string
	members map[string]member
}

// A member is a file of an archive.
type member struct {
	offset, size int64
	link         string // of a link: the name of another member
}

// Limits on the contents of an archive. It has a few members for each layer, with
// short names.
const (
	maxMembers     = 100_000
	maxMemberNames = 16 << 20 // bytes of all their names
)

// scanArchive returns the index of a tar file. It seeks over the content of members.
func scanArchive(name string) (*archive, error) {
	f, err := openRegular(os.OpenFile, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	a := &archive{path: name, members: map[string]member{}}
	tr := tar.NewReader(f) // it seeks, and does not read ahead
	names := 0
	for {
		hdr, err := tr.Next()
		if err == io.EOF {
			return a, nil
		}
		if err != nil {
			return nil, newDamageError(err, "not a tar file")
		}
		if len(a.members) == maxMembers {
			return nil, newLimitError("an archive of more than %d files", maxMembers)
		}
		if names += len(hdr.Name) + len(hdr.Linkname); names > maxMemberNames {
			return nil, newLimitError("an archive of files with more than %d bytes of names", maxMemberNames)
		}
		offset, err := f.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil, err
		}
		m := member{offset: offset, size: hdr.Size}
		switch hdr.Typeflag {
		case tar.TypeReg:
		case tar.TypeSymlink: // equal layers, in archives of older versions
			m = member{link: path.Join(path.Dir(path.Clean(hdr.Name)), hdr.Linkname)}
		case tar.TypeLink:
			m = member{link: path.Clean(hdr.Linkname)}
		default:
			continue
		}
		a.members[path.Clean(hdr.Name)] = m
	}
}

// findMember returns the member called name, or the one it links to.
func (a *archive) findMember(name string) (member, error) {
	at := path.Clean(name)
	for range maxLinks {
		m, ok := a.members[at]
		if !ok {
			return member{}, newDamageError(nil, "the archive lacks %q", name)
		}
		if m.link == "" {
			return m, nil
		}
		at = m.link
	}
	return member{}, newDamageError(nil, "the archive has too many links at %q", name)
}

// openMember returns the content of a member.
func (a *archive) openMember(m member) (io.ReadCloser, error) {
	f, err := openRegular(os.OpenFile, a.path)
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(f, m.offset, m.size), f}, nil
}

// readMember returns the content of the member called name. More than limit bytes are
// an error.
func (a *archive) readMember(name string, limit int64) ([]byte, error) {
	m, err := a.findMember(name)
	if err != nil {
		return nil, err
	}
	if m.size > limit {
		return nil, newDamageError(nil, "%q in the archive is larger than %d bytes", name, limit)
	}
	r, err := a.openMember(m)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	raw := make([]byte, m.size)
	if _, err := io.ReadFull(r, raw); err != nil {
		return nil, newDamageError(err, "%q in the archive cannot be read", name)
	}
	return raw, nil
}
