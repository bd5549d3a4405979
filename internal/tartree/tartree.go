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

// Options say how a tree is written.
type Options struct {
	Owners bool      // files keep their owners; else all are root's
	Made   time.Time // the time of directories
	Count  io.Writer // gets what files hold, too; nil means nobody does
}

// Write writes the files of dir, in the order of their names, with links, capabilities
// and all that a stream can hold. It does not end the stream.
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
			return nil // nothing that a tar stream could hold
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
			hdr.ModTime = opts.Made // of one that no layer describes it is when it was unpacked
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
		if n, err := unix.Fgetxattr(int(f.Fd()), capabilities, caps); err == nil {
			hdr.PAXRecords = map[string]string{"SCHILY.xattr." + capabilities: string(caps[:n])}
		}
		if err := to.WriteHeader(hdr); err != nil {
			return err
		}
		_, err = io.Copy(out, reader{ctx, f})
		return err
	})
}

// capabilities is the attribute with a file's capabilities.
const capabilities = "security.capability"

// A reader ends with its context.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(b)
}
