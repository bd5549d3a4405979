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

// wslConfPath is the file that tells WSL what a distribution gets of Windows, and wslConf its content:
// nothing. The file exists before any program runs.
const (
	wslConfPath = "etc/wsl.conf"
	wslConf     = `# What Atoll's machines get of Windows.
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

// writeRoot copies an archive, plain or gzip, and replaces its wslConfPath by wslConf.
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
		if name == wslConfPath {
			continue
		}
		if name == "etc" {
			if h.Typeflag != tar.TypeDir {
				return errors.New("/etc is not a directory in the archive")
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
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: wslConfPath, Mode: 0o644, Size: int64(len(wslConf))}); err != nil {
		return err
	}
	if _, err := io.WriteString(w, wslConf); err != nil {
		return err
	}
	return w.Close()
}
