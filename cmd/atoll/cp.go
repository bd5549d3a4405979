package main

import (
	"context"
	"errors"
	"io"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/dirfs"
)

func newCp(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "cp SOURCE TARGET",
		Short: "Copy files and directories into, out of and between sandboxes",
		Long: `Cp copies a file, or a directory with all in it. A place in a sandbox is written
SANDBOX:PATH; a relative path there is one below the work directory. A local
file with a colon in its name is written with a slash before, as in ./a:b.

As with docker's: into a directory that is there, the source is copied under its
own name; a target that is not there becomes the copy, if the directory around
it is there. A source directory that ends with /. stands for what is in it. With
- as the source a tar stream is read from stdin and unpacked into the target
directory; with - as the target the source is written to stdout as one. A source
that is a link is copied as what it points to; links below it stay links. In a
target directory nothing is written through a link: a file takes its place.`,
		Example: `  atoll cp . web:/work
  atoll cp web:/work/report.html .
  atoll cp web:/work - | gzip > work.tar.gz`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd, func(ctx context.Context, c *connection) error {
				from, err := a.place(ctx, c, args[0])
				if err != nil {
					return err
				}
				defer from.close()
				to, err := a.place(ctx, c, args[1])
				if err != nil {
					return err
				}
				defer to.close()
				return a.copy(ctx, from, to)
			})
		},
	}
}

// A place is one end of a copy: a path in a file system, or a stream when
// there is none.
type place struct {
	fs       atoll.FS
	name     string // in fs; links at its end are followed
	base     string // the name that was written
	contents bool   // "/." was written: what is in the directory
	slash    bool   // "/" was written: it must be a directory
	info     *atoll.FileInfo
	isLink   bool // in a target directory; never followed, it may have come from a sandbox
	closer   io.Closer
}

func (p *place) close() {
	if p.closer != nil {
		p.closer.Close()
	}
}

func (a *app) place(ctx context.Context, c *connection, arg string) (*place, error) {
	if arg == "-" {
		return &place{}, nil
	}
	ref, name, inside := strings.Cut(arg, ":")
	inside = inside && ref != "" && !strings.ContainsAny(ref, `/\.`)
	if !inside {
		name = arg
	}
	if name == "" {
		return nil, usagef("%q: name a path after the colon", arg)
	}
	p := &place{base: path.Base(path.Clean(filepath.ToSlash(name)))}
	p.contents = name == "." || strings.HasSuffix(name, "/.")
	p.slash = strings.HasSuffix(name, "/")
	if !inside {
		if err := p.local(name); err != nil {
			return nil, err
		}
		return p, p.look(ctx)
	}
	sb, err := c.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	p.fs, p.name = atoll.Files(sb), path.Clean(name)
	return p, p.look(ctx)
}

// local makes p a place on this machine. The file system it is given is that
// of the directory around it, so that nothing unpacked there leads elsewhere.
func (p *place) local(name string) error {
	abs, err := filepath.Abs(name)
	if err != nil {
		return err
	}
	if base := filepath.Base(abs); p.base == "." || p.base == ".." {
		p.base = base
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		abs = real
	}
	dir := filepath.Dir(abs)
	prefix := "/" + strings.TrimPrefix(filepath.ToSlash(dir), "/") // names are those the user knows
	fsys, err := dirfs.New(prefix, dir, dirfs.Options{UID: -1, GID: -1})
	if err != nil {
		return err
	}
	p.fs, p.name, p.closer = fsys, path.Join(prefix, filepath.Base(abs)), fsys
	if abs == dir { // the root directory
		p.name = prefix
	}
	return nil
}

// mostLinks is how many links may follow each other.
const mostLinks = 40

// look fills in info, which stays nil when there is nothing, and puts what a
// link points to in its place.
func (p *place) look(ctx context.Context) error {
	for range mostLinks {
		info, err := p.fs.Stat(ctx, p.name)
		if errors.Is(err, atoll.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if info.Type != atoll.TypeSymlink {
			p.info = &info
			return nil
		}
		if path.IsAbs(info.Target) {
			p.name = path.Clean(info.Target)
		} else {
			p.name = path.Join(path.Dir(p.name), info.Target)
		}
	}
	return atoll.Errorf("copy", "", atoll.ErrInvalid, "%s: too many links", p.base)
}

func (p *place) isDir() bool { return p.info != nil && p.info.Type == atoll.TypeDirectory }

func (a *app) copy(ctx context.Context, from, to *place) error {
	switch {
	case from.fs == nil && to.fs == nil:
		return usagef("only one of the source and the target can be -")
	case from.fs == nil && !to.isDir():
		return atoll.Errorf("copy", "", atoll.ErrInvalid, "%s: must be a directory that is there", to.name)
	case from.fs == nil:
		return to.fs.ReadTar(ctx, to.name, a.stdin)
	case from.info == nil:
		return atoll.Errorf("copy", "", atoll.ErrNotExist, "%s: no such file or directory", from.name)
	case from.slash && !from.isDir():
		return atoll.Errorf("copy", "", atoll.ErrInvalid, "%s: not a directory", from.name)
	case to.fs == nil:
		return from.writeTar(ctx, a.stdout)
	}
	if err := to.receive(ctx, from); err != nil {
		return err
	}
	if from.isDir() {
		return copyTree(ctx, from, to)
	}
	return copyFile(ctx, from, to)
}

// receive completes the name of a target, by docker's rules.
func (p *place) receive(ctx context.Context, from *place) error {
	if p.info == nil {
		around := &place{fs: p.fs, name: path.Dir(p.name), base: p.base}
		if err := around.look(ctx); err != nil {
			return err
		}
		if !around.isDir() {
			return atoll.Errorf("copy", "", atoll.ErrNotExist, "%s: no such directory", around.name)
		}
	}
	if p.isDir() && !(from.isDir() && from.contents) {
		p.name, p.info, p.slash = path.Join(p.name, from.base), nil, false
		info, err := p.fs.Stat(ctx, p.name)
		if err == nil {
			p.info, p.isLink = &info, info.Type == atoll.TypeSymlink
		} else if !errors.Is(err, atoll.ErrNotExist) {
			return err
		}
	}
	switch {
	case p.info == nil && p.slash && !from.isDir():
		return atoll.Errorf("copy", "", atoll.ErrNotExist, "%s: no such directory", p.name)
	case p.info != nil && p.isDir() != from.isDir():
		return atoll.Errorf("copy", "", atoll.ErrInvalid, "%s: a directory and a file cannot replace each other", p.name)
	}
	return nil
}

func copyFile(ctx context.Context, from, to *place) error {
	r, info, err := from.fs.Read(ctx, from.name, 0)
	if err != nil {
		return err
	}
	defer r.Close()
	if to.isLink {
		if err := to.fs.Remove(ctx, to.name, false); err != nil {
			return err
		}
	}
	_, err = to.fs.Write(ctx, to.name, r, atoll.WriteOptions{Mode: info.Mode & 0o777})
	return err
}

// copyTree copies a directory with all in it.
func copyTree(ctx context.Context, from, to *place) error {
	return pipe(
		func(w io.Writer) error { return from.fs.WriteTar(ctx, from.name, w) },
		func(r io.Reader) error { return to.fs.ReadTar(ctx, to.name, r) },
	)
}

// writeTar packs p into w under its own name, or for "/." what is in it under
// the name ".".
func (p *place) writeTar(ctx context.Context, w io.Writer) error {
	if p.contents || p.name == "/" {
		return p.fs.WriteTar(ctx, p.name, w)
	}
	return pipe(
		func(w io.Writer) error { return p.fs.WriteTar(ctx, p.name, w) },
		func(r io.Reader) error { return renameTar(w, r, p.base) },
	)
}

// pipe runs write and read at once, the one's output being the other's input,
// and returns the error of the one that failed first.
func pipe(write func(io.Writer) error, read func(io.Reader) error) error {
	r, w := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := write(w)
		written <- err
		w.CloseWithError(err)
	}()
	err := read(r)
	if err == nil {
		_, err = io.Copy(io.Discard, r) // what follows the end of a tar stream
	}
	select {
	case werr := <-written: // before the reader was done
		if werr != nil {
			return werr
		}
	default:
		r.CloseWithError(io.ErrClosedPipe)
		<-written
	}
	return err
}
