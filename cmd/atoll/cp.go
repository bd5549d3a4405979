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
	var setID bool
	cmd := &cobra.Command{
		Use:   "cp SOURCE TARGET",
		Short: "Copy files and directories into, out of and between sandboxes",
		Long: `Cp copies a file, or a directory with its contents. A path in a sandbox is written
SANDBOX:PATH; a relative one starts at the work directory. Write a local file with
a colon in its name with a slash before, as in ./a:b.

Cp follows the rules of docker cp: into an existing directory, the source is copied
under its own name; a missing target becomes the copy, if its parent directory
exists. A source directory that ends with /. stands for its contents. With - as the
source, a tar stream is read from stdin and unpacked into the target directory;
with - as the target, the source is written to stdout as a tar stream. A source
that is a link is copied as its target; links below it remain links. Nothing is
written through a link in a target directory: a file replaces it.

A copy has the modes and times of its source, hard links within it, and holes where
the source has them. Its files belong to you, or to the sandbox's default user. Cp
names on stderr what it leaves out, which is no failure: pipes, sockets, devices and
extended attributes, and set-user-ID and set-group-ID bits without --set-id.`,
		Example: `  atoll cp . web:/work
  atoll cp web:/work/report.html .
  atoll cp web:/work - | gzip > work.tar.gz`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: a.completeLocation,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				from, err := a.openLocation(ctx, c, args[0])
				if err != nil {
					return err
				}
				defer from.closeFS()
				to, err := a.openLocationWith(ctx, c, args[1], dirfs.Options{UID: -1, GID: -1, SetID: setID})
				if err != nil {
					return err
				}
				defer to.closeFS()
				l := &losses{setID: setID}
				err = a.copyFiles(ctx, from, to, l)
				l.checkBits(ctx, to)
				a.printLosses(l)
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&setID, "set-id", false, "set set-user-ID and set-group-ID bits: only if you trust the source")
	return cmd
}

// A location is one end of a copy: a path in a file system, or a stream if fs is nil.
type location struct {
	fs       atoll.FS
	name     string // path in fs; resolveInfo follows links at its end
	base     string // last element of the path as given
	contents bool   // the path ends with "/.": the contents of the directory
	slash    bool   // the path ends with "/": it must be a directory
	info     *atoll.FileInfo
	isLink   bool // a link in a target directory; never followed, since it may have come from a sandbox
	closer   io.Closer
}

func (p *location) closeFS() {
	if p.closer != nil {
		p.closer.Close()
	}
}

// openLocation returns the location of an argument. The caller must call closeFS.
func (a *app) openLocation(ctx context.Context, c *connection, arg string) (*location, error) {
	return a.openLocationWith(ctx, c, arg, dirfs.Options{UID: -1, GID: -1})
}

// openLocationWith is openLocation with options for a location on this machine.
func (a *app) openLocationWith(ctx context.Context, c *connection, arg string, o dirfs.Options) (*location, error) {
	if arg == "-" {
		return &location{}, nil
	}
	ref, name, inside := strings.Cut(arg, ":")
	inside = inside && ref != "" && !strings.ContainsAny(ref, `/\.`)
	if !inside {
		name = arg
	}
	if name == "" {
		return nil, usageErrorf("%q: name a path after the colon", arg)
	}
	p := &location{base: path.Base(path.Clean(filepath.ToSlash(name)))}
	p.contents = name == "." || strings.HasSuffix(name, "/.")
	p.slash = strings.HasSuffix(name, "/")
	if !inside {
		if err := p.openLocal(name, o); err != nil {
			return nil, err
		}
		return p, p.resolveInfo(ctx)
	}
	sb, err := c.findSandbox(ctx, ref)
	if err != nil {
		return nil, err
	}
	p.fs, p.name = atoll.Files(sb), path.Clean(name)
	return p, p.resolveInfo(ctx)
}

// openLocal opens a location on this machine. Its file system is the parent directory, so that nothing that is
// unpacked can lead out of it.
func (p *location) openLocal(name string, o dirfs.Options) error {
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
	prefix := "/" + strings.TrimPrefix(filepath.ToSlash(dir), "/") // use the names that the user knows
	fsys, err := dirfs.New(prefix, dir, o)
	if err != nil {
		return err
	}
	p.fs, p.name, p.closer = fsys, path.Join(prefix, filepath.Base(abs)), fsys
	if abs == dir { // the root directory
		p.name = prefix
	}
	return nil
}

// maxLinks is the maximum length of a chain of links.
const maxLinks = 40

// resolveInfo follows links and sets info, which remains nil for a missing file.
func (p *location) resolveInfo(ctx context.Context) error {
	for range maxLinks {
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

func (p *location) isDir() bool { return p.info != nil && p.info.Type == atoll.TypeDirectory }

// copyFiles copies from one location to another.
func (a *app) copyFiles(ctx context.Context, from, to *location, l *losses) error {
	switch {
	case from.fs == nil && to.fs == nil:
		return usageErrorf("only one of the source and the target can be -")
	case from.fs == nil && !to.isDir():
		return atoll.Errorf("copy", "", atoll.ErrInvalid, "%s: must be an existing directory", to.name)
	case from.fs == nil:
		return to.unpackStream(ctx, a.stdin, l)
	case from.info == nil:
		return atoll.Errorf("copy", "", atoll.ErrNotExist, "%s: no such file or directory", from.name)
	case from.slash && !from.isDir():
		return atoll.Errorf("copy", "", atoll.ErrInvalid, "%s: not a directory", from.name)
	case from.info.Type == atoll.TypeOther:
		return atoll.Errorf("copy", "", atoll.ErrInvalid, "%s: is neither a file nor a directory: pipes, sockets and devices cannot be copied", from.name)
	case to.fs == nil:
		return from.writeTar(ctx, a.stdout, l)
	}
	if err := to.completeTarget(ctx, from); err != nil {
		return err
	}
	if from.isDir() {
		return copyTree(ctx, from, to, l)
	}
	return copyFile(ctx, from, to, l)
}

// completeTarget completes the path of a target by the rules of docker cp.
func (p *location) completeTarget(ctx context.Context, from *location) error {
	if p.info == nil {
		around := &location{fs: p.fs, name: path.Dir(p.name), base: p.base}
		if err := around.resolveInfo(ctx); err != nil {
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

// copyFile copies a file as a tar stream, which has all that a copy retains.
func copyFile(ctx context.Context, from, to *location, l *losses) error {
	if info := from.info; info != nil && info.Type == atoll.TypeFile && info.Size == 0 {
		return writeFile(ctx, from, to, l) // files of /proc have content, and no size
	}
	l.base = path.Dir(to.name)
	err := runPipe(
		func(w io.Writer) error { return from.fs.WriteTar(ctx, from.name, w) },
		func(r io.Reader) error { return to.unpackFile(ctx, r, l) },
	)
	if atoll.KindOf(err) == atoll.ErrConflict { // it has less content than size, like files of /sys
		return writeFile(ctx, from, to, l)
	}
	if atoll.KindOf(err) == atoll.ErrStopped { // only the sandbox itself could unpack beside its other volumes
		return writeFile(ctx, from, to, l)
	}
	return err
}

// writeFile copies the content and the mode of a file.
func writeFile(ctx context.Context, from, to *location, l *losses) error {
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
	if _, err = to.fs.Write(ctx, to.name, r, atoll.WriteOptions{Mode: info.Mode & 0o777}); err != nil {
		return err
	}
	name := path.Base(to.name)
	l.addBits(name, info.Mode)
	times := atoll.FileChange{Times: &atoll.FileTimes{Accessed: info.Modified, Modified: info.Modified}, NoFollow: true}
	if err := atoll.ChangeFile(ctx, to.fs, to.name, times); err != nil {
		l.addLoss(name, "the time of its last change: "+err.Error())
	}
	return nil
}

// unpackFile unpacks a tar stream of one file, which becomes p.
func (p *location) unpackFile(ctx context.Context, r io.Reader, l *losses) error {
	return runPipe(
		func(w io.Writer) error { return copyTar(w, r, path.Base(p.name), l) },
		func(r io.Reader) error { return p.fs.ReadTar(ctx, path.Dir(p.name), r) },
	)
}

// unpackStream unpacks a tar stream in the directory p.
func (p *location) unpackStream(ctx context.Context, r io.Reader, l *losses) error {
	l.base = p.name
	return runPipe(
		func(w io.Writer) error { return l.passTar(w, r) },
		func(r io.Reader) error { return p.fs.ReadTar(ctx, p.name, r) },
	)
}

// copyTree copies a directory with its contents.
func copyTree(ctx context.Context, from, to *location, l *losses) error {
	return runPipe(
		func(w io.Writer) error { return from.fs.WriteTar(ctx, from.name, w) },
		func(r io.Reader) error { return to.unpackStream(ctx, r, l) },
	)
}

// writeTar writes a tar stream of p under its own name, or for "/." of its contents.
func (p *location) writeTar(ctx context.Context, w io.Writer, l *losses) error {
	below := p.base
	if p.contents || p.name == "/" {
		below = ""
	}
	return runPipe(
		func(w io.Writer) error { return p.fs.WriteTar(ctx, p.name, w) },
		func(r io.Reader) error { return copyTar(w, r, below, l) },
	)
}

// runPipe runs write and read at once, connected by a pipe, and returns the error of the one that failed first.
func runPipe(write func(io.Writer) error, read func(io.Reader) error) error {
	r, w := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := write(w)
		written <- err
		w.CloseWithError(err)
	}()
	err := read(r)
	if err == nil {
		_, err = io.Copy(io.Discard, r) // the rest after the end of the tar stream
	}
	select {
	case werr := <-written: // write ended before read
		if werr != nil {
			return werr
		}
	default:
		r.CloseWithError(io.ErrClosedPipe)
		<-written
	}
	return err
}
