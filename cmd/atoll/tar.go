package main

import (
	"archive/tar"
	"errors"
	"io"
	"path"
	"path/filepath"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/tarstream"
)

// copyTar copies a tar stream from a sandbox, with its names below dir; "" leaves them. It refuses entries that could
// lead the program that unpacks the stream out of its directory, and nodes of devices. It passes on symbolic links, and
// refuses entries below them. It adds what the stream leaves out, and special bits, to l.
func copyTar(w io.Writer, r io.Reader, dir string, l *losses) error {
	tr, tw := tarstream.NewReader(r), tar.NewWriter(w)
	links := linkNames{}
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return tw.Close()
		}
		if err != nil {
			return err
		}
		if err := links.checkEntry(h.Header, dir); err != nil {
			return err
		}
		if isNote := l.addEntry(h.Header, dir); isNote {
			continue
		}
		h.Name = joinBelow(dir, h.Name)
		if h.Typeflag == tar.TypeLink {
			h.Linkname = joinBelow(dir, h.Linkname)
		}
		if err := writeEntry(w, tw, h, tr); err != nil {
			return err
		}
	}
}

// writeEntry writes an entry to tw, which writes to w.
func writeEntry(w io.Writer, tw *tar.Writer, h *tarstream.Header, content io.Reader) error {
	if h.Data != nil {
		if err := tw.Flush(); err != nil {
			return err
		}
		return tarstream.WriteSparse(w, h.Header, h.Data, content)
	}
	if err := h.CheckSize(); err != nil {
		return err
	}
	if h.Sparse { // in a format that only old programs write
		h.Typeflag, h.Format = tar.TypeReg, tar.FormatPAX
	}
	if err := tw.WriteHeader(h.Header); err != nil {
		return err
	}
	_, err := io.Copy(tw, content)
	return err
}

// linkNames has the names of the symbolic links of an archive, in lower case: some file systems ignore the case.
type linkNames map[string]bool

// checkEntry returns an error for an entry that is not safe to unpack below dir.
func (l linkNames) checkEntry(h *tar.Header, dir string) error {
	refuse := func(why string) error {
		return atoll.Errorf("copy", "", atoll.ErrInvalid, "the entry %q of the archive from the sandbox %s", h.Name, why)
	}
	name := cleanName(h.Name)
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeFifo, tar.TypeXGlobalHeader, tar.TypeGNUSparse:
	case tar.TypeLink:
		if l.leadsOut(h.Linkname) {
			return refuse("is a link that leads out of it")
		}
	default:
		return refuse("is neither a file, a directory, a link nor a pipe")
	}
	if l.leadsOut(h.Name) || l[name] || name == "." && dir == "" && h.Typeflag != tar.TypeDir && h.Typeflag != tar.TypeXGlobalHeader {
		return refuse("leads out of it")
	}
	if h.Typeflag == tar.TypeSymlink || h.Typeflag == tar.TypeLink && l[cleanName(h.Linkname)] {
		l[name] = true
	}
	return nil
}

// leadsOut reports whether name is outside of the directory in which an archive is unpacked, or below one of l.
func (l linkNames) leadsOut(name string) bool {
	clean := cleanName(name)
	if name == "" || path.IsAbs(clean) || clean == ".." || strings.HasPrefix(clean, "../") || !filepath.IsLocal(filepath.FromSlash(clean)) {
		return true
	}
	for parent := clean; parent != "."; {
		if parent = path.Dir(parent); l[parent] {
			return true
		}
	}
	return false
}

func cleanName(name string) string { return strings.ToLower(path.Clean(name)) }

func joinBelow(dir, name string) string {
	if dir == "" {
		return name
	}
	joined := path.Join(dir, name)
	if strings.HasSuffix(name, "/") {
		return joined + "/"
	}
	return joined
}
