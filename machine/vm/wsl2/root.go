package wsl2

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"path"
	"strings"
)

// confPath is the file that tells WSL what a distribution gets of Windows, and conf what
// is in it: nothing. It is there before anything runs.
const (
	confPath = "etc/wsl.conf"
	conf     = `# What Atoll's machines get of Windows.
[automount]
enabled = false
mountFsTab = false
[interop]
enabled = false
appendWindowsPath = false
[network]
generateHosts = false
generateResolvConf = false
[user]
default = root
`
)

// writeRoot copies an archive, plain or in gzip, with conf in it instead of what it had.
func writeRoot(to io.Writer, from io.Reader) error {
	in := bufio.NewReader(from)
	if magic, err := in.Peek(2); err == nil && bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return err
		}
		defer z.Close()
		from = z
	} else {
		from = in
	}
	r, w := tar.NewReader(from), tar.NewWriter(to)
	etc := false
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if name == confPath {
			continue
		}
		if name == "etc" {
			if h.Typeflag != tar.TypeDir {
				return errors.New("/etc is not a directory in it")
			}
			etc = true
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(w, r); err != nil {
			return err
		}
	}
	if !etc {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "etc/", Mode: 0o755}); err != nil {
			return err
		}
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: confPath, Mode: 0o644, Size: int64(len(conf))}); err != nil {
		return err
	}
	if _, err := io.WriteString(w, conf); err != nil {
		return err
	}
	return w.Close()
}
