package main

import (
	"archive/tar"
	"errors"
	"io"
	"path"
	"strings"
)

// renameTar copies a tar stream with relative names, and puts them below name.
func renameTar(w io.Writer, r io.Reader, name string) error {
	tr, tw := tar.NewReader(r), tar.NewWriter(w)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return tw.Close()
		}
		if err != nil {
			return err
		}
		h.Name = joinBelow(name, h.Name)
		if h.Typeflag == tar.TypeLink {
			h.Linkname = joinBelow(name, h.Linkname)
		}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(tw, tr); err != nil {
			return err
		}
	}
}

func joinBelow(dir, name string) string {
	joined := path.Join(dir, name)
	if strings.HasSuffix(name, "/") {
		return joined + "/"
	}
	return joined
}
