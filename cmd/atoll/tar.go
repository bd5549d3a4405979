package main

import (
	"archive/tar"
	"errors"
	"io"
	"path"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// copyTar copies a tar stream from a sandbox, with its names below dir; "" leaves them. It refuses entries that could
// lead the program that unpacks the stream out of its directory, and nodes of devices. It passes on symbolic links, and
// refuses entries below them.
func copyTar(w io.Writer, r io.Reader, dir string) error {
	tr, tw := tar.NewReader(r), tar.NewWriter(w)
	links := map[string]bool{}
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return tw.Close()
		}
		if err != nil {
			return err
		}
		if err := checkEntry(h, links); err != nil {
			return err
		}
		h.Name = joinBelow(dir, h.Name)
		if h.Typeflag == tar.TypeLink {
			h.Linkname = joinBelow(dir, h.Linkname)
		}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(tw, tr); err != nil {
			return err
		}
	}
}

// checkEntry returns an error for an entry that is not safe to unpack. links has the names of the symbolic links so far.
func checkEntry(h *tar.Header, links map[string]bool) error {
	refuse := func(why string) error {
		return atoll.Errorf("copy", "", atoll.ErrInvalid, "the entry %q of the archive from the sandbox %s", h.Name, why)
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeFifo, tar.TypeXGlobalHeader, tar.TypeGNUSparse:
	case tar.TypeLink:
		if leadsOut(h.Linkname, links) {
			return refuse("is a link that leads out of it")
		}
	default:
		return refuse("is neither a file, a directory, a link nor a pipe")
	}
	name := path.Clean(h.Name)
	if leadsOut(h.Name, links) || name == "." && h.Typeflag != tar.TypeDir && h.Typeflag != tar.TypeXGlobalHeader {
		return refuse("leads out of it")
	}
	delete(links, name) // a later entry replaces an earlier one
	if h.Typeflag == tar.TypeSymlink {
		links[name] = true
	}
	return nil
}

// leadsOut reports whether name is outside of the directory in which an archive is unpacked, or below one of links.
func leadsOut(name string, links map[string]bool) bool {
	clean := path.Clean(name)
	if name == "" || path.IsAbs(clean) || clean == ".." || strings.HasPrefix(clean, "../") {
		return true
	}
	for parent := path.Dir(clean); parent != "."; parent = path.Dir(parent) {
		if links[parent] {
			return true
		}
	}
	return false
}

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
