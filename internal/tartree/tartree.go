//go:build linux

// Package tartree writes directory trees as tar streams. Equal trees make equal streams.
package tartree

import (
	"archive/tar"
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Options configure Write.
type Options struct {
	Owners bool      // write the owners of files; else all belong to root
	Made   time.Time // the modification time of all directories
	Count  io.Writer // also receives the content of files, unless nil
}

// Write writes the files of dir to a tar stream, sorted by name, with links and
// capabilities. It omits sockets. It does not end the stream.
func Write(ctx context.Context, to *tar.Writer, dir string, opts Options) error {
	type inode struct{ dev, ino uint64 }
	first := map[inode]string{}
	var out io.Writer = to
	if opts.Count != nil {
		out = io.MultiWriter(to, opts.Count)
	}
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		fi, err := e.Info()
		if err != nil {
			return err
		}
		var link string
		if fi.Mode()&fs.ModeSymlink != 0 {
			if link, err = os.Readlink(path); err != nil {
				return err
			}
		}
		if fi.Mode()&(fs.ModeSocket|fs.ModeIrregular) != 0 {
			return nil // a tar stream has no such type
		}
		hdr, err := tar.FileInfoHeader(fi, link)
		if err != nil {
			return err
		}
		hdr.Name, hdr.Format = "./"+filepath.ToSlash(rel), tar.FormatPAX
		hdr.Uname, hdr.Gname = "", ""
		hdr.AccessTime, hdr.ChangeTime = time.Time{}, time.Time{}
		if !opts.Owners {
			hdr.Uid, hdr.Gid = 0, 0
		}
		if fi.IsDir() {
			hdr.Name += "/"
			hdr.ModTime = opts.Made // a directory without an entry in a layer has the time of its unpacking
		}
		st := fi.Sys().(*syscall.Stat_t)
		if id := (inode{uint64(st.Dev), st.Ino}); !fi.IsDir() && st.Nlink > 1 {
			if before, ok := first[id]; ok {
				hdr.Typeflag, hdr.Linkname, hdr.Size = tar.TypeLink, before, 0
				return to.WriteHeader(hdr)
			}
			first[id] = hdr.Name
		}
		if !fi.Mode().IsRegular() {
			return to.WriteHeader(hdr)
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		caps := make([]byte, 64)
		if n, err := unix.Fgetxattr(int(f.Fd()), capabilityAttr, caps); err == nil {
			hdr.PAXRecords = map[string]string{"SCHILY.xattr." + capabilityAttr: string(caps[:n])}
		}
		if err := to.WriteHeader(hdr); err != nil {
			return err
		}
		_, err = io.Copy(out, contextReader{ctx, f})
		return err
	})
}

// capabilityAttr is the extended attribute with a file's capabilities.
const capabilityAttr = "security.capability"

// A contextReader fails when its context has ended.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (r contextReader) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(b)
}
