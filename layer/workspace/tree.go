package workspace

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// pour gives take a tar stream of a check-out of the commit: the repository,
// which begins with the mark that it is unfinished, and the tree. Nothing of the
// tree is looked at, or written here.
func (k *kept) pour(ctx context.Context, commit string, take func(io.Reader) error) error {
	release, err := hold(k.gitDir())
	if err != nil {
		return atoll.Errorf("workspace", k.Name, atoll.ErrUnavailable, "it was updated or removed meanwhile: %w", err)
	}
	defer release()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := k.pack(ctx, w, commit)
		_ = w.CloseWithError(err) // always nil
		packed <- err
	}()
	err = take(r)
	_ = r.CloseWithError(errTaken) // always nil
	cancel()
	if packErr := <-packed; packErr != nil && !errors.Is(packErr, errTaken) && !errors.Is(packErr, context.Canceled) {
		return packErr // what it led to is in err
	}
	return err
}

// errTaken ends a stream whose reader has what it wants, or gave up.
var errTaken = errors.New("nobody reads on")

// A packer writes a check-out into a tar stream.
type packer struct {
	*tar.Writer
	time time.Time
}

func (k *kept) pack(ctx context.Context, w io.Writer, commit string) error {
	buf := bufio.NewWriterSize(w, 256<<10)
	p := packer{tar.NewWriter(buf), time.Now()}
	err := p.text(unfinished, commit)
	if err == nil {
		err = p.repository(k.gitDir(), commit != k.Commit)
	}
	if err == nil && commit != k.Commit {
		err = p.standAt(ctx, k.gitDir(), commit)
	}
	if err == nil {
		err = p.tree(ctx, k.gitDir(), commit)
	}
	if err == nil {
		err = p.Close()
	}
	if err == nil {
		err = buf.Flush()
	}
	return err
}

func (p *packer) text(name, text string) error {
	if err := p.header(tar.TypeReg, name, 0o644, int64(len(text)), ""); err != nil {
		return err
	}
	_, err := io.WriteString(p, text)
	return err
}

func (p *packer) header(typ byte, name string, mode fs.FileMode, size int64, link string) error {
	return p.WriteHeader(&tar.Header{Typeflag: typ, Name: name, Mode: int64(mode.Perm()), Size: size, Linkname: link, ModTime: p.time})
}

// repository packs what git has made in dir as .git: for a check-out of another
// commit, without what says where it stands.
func (p *packer) repository(dir string, other bool) error {
	return filepath.WalkDir(dir, func(file string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, file)
		if err != nil || other && (rel == "HEAD" || rel == "index") {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		name := path.Join(".git", filepath.ToSlash(rel))
		switch {
		case info.IsDir():
			return p.header(tar.TypeDir, name, 0o755, 0, "")
		case info.Mode().IsRegular():
			return p.file(name, file, info)
		}
		return fmt.Errorf("%s: git has made what is neither a file nor a directory", file)
	})
}

func (p *packer) file(name, file string, info fs.FileInfo) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	mode := info.Mode() | 0o444 // whoever cloned it may have a umask
	if err := p.header(tar.TypeReg, name, mode, info.Size(), ""); err != nil {
		return err
	}
	_, err = io.Copy(p, f)
	return err
}

// standAt packs what says that the check-out is one of that commit.
func (p *packer) standAt(ctx context.Context, gitDir, commit string) error {
	if err := p.text(".git/HEAD", commit+"\n"); err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", "atoll-index-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	index := filepath.Join(temp, "index")
	cmd := git(ctx, "--git-dir="+gitDir, "read-tree", commit)
	cmd.Env = append(cmd.Env, "GIT_INDEX_FILE="+index)
	if _, err := output(cmd); err != nil {
		return err
	}
	info, err := os.Stat(index)
	if err != nil {
		return err
	}
	return p.file(".git/index", index, info)
}

// tree packs all files of the commit. What would say how to convert or to fetch
// them is not asked.
func (p *packer) tree(ctx context.Context, gitDir, commit string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	list := git(ctx, "--git-dir="+gitDir, "ls-tree", "-r", "-z", "--full-tree", commit)
	blobs := git(ctx, "--git-dir="+gitDir, "cat-file", "--batch")
	names, err1 := list.StdoutPipe()
	contents, err2 := blobs.StdoutPipe()
	ask, err3 := blobs.StdinPipe()
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	if err := list.Start(); err != nil {
		return err
	}
	if err := blobs.Start(); err != nil {
		cancel()
		return errors.Join(err, list.Wait())
	}
	err := p.entries(bufio.NewReader(names), blobReader{ask, bufio.NewReaderSize(contents, 256<<10)})
	if err != nil {
		cancel()
	}
	_ = ask.Close() // it ends by that
	listErr, blobErr := list.Wait(), blobs.Wait()
	if err == nil {
		err = errors.Join(listErr, blobErr)
	}
	return err
}

// entries packs each entry of a list as ls-tree -z prints it.
func (p *packer) entries(names *bufio.Reader, blobs blobReader) error {
	for {
		line, err := names.ReadString(0)
		if err == io.EOF && line == "" {
			return nil
		}
		if err != nil {
			return err
		}
		what, name, ok := strings.Cut(strings.TrimSuffix(line, "\x00"), "\t")
		fields := strings.Fields(what)
		if !ok || len(fields) != 3 {
			return fmt.Errorf("git ls-tree printed %q", line)
		}
		if !harmless(name) {
			return atoll.Errorf("workspace", "", atoll.ErrInvalid, "the repository has a file that git would not check out: %q", name)
		}
		if err := p.entry(fields[0], fields[2], name, blobs); err != nil {
			return err
		}
	}
}

// harmless reports whether no part of a name could be taken for the way out of
// the tree, or into the repository.
func harmless(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." || part == ".." || strings.EqualFold(part, ".git") {
			return false
		}
	}
	return true
}

// maxLink is how long the target of a symbolic link may be.
const maxLink = 4096

func (p *packer) entry(mode, id, name string, blobs blobReader) error {
	if mode == "160000" { // a submodule, which is not fetched
		return p.header(tar.TypeDir, name, 0o755, 0, "")
	}
	blob, size, err := blobs.open(id)
	if err != nil {
		return err
	}
	switch mode {
	case "120000":
		if size > maxLink {
			return atoll.Errorf("workspace", "", atoll.ErrInvalid, "link %q of the repository leads to a name of %d bytes", name, size)
		}
		target, readErr := io.ReadAll(blob)
		if err = readErr; err == nil {
			err = p.header(tar.TypeSymlink, name, 0o777, 0, string(target))
		}
	case "100755":
		err = p.blob(name, 0o755, size, blob)
	default:
		err = p.blob(name, 0o644, size, blob)
	}
	if err != nil {
		return err
	}
	return blobs.close()
}

func (p *packer) blob(name string, mode fs.FileMode, size int64, blob io.Reader) error {
	if err := p.header(tar.TypeReg, name, mode, size, ""); err != nil {
		return err
	}
	_, err := io.Copy(p, blob)
	return err
}

// A blobReader asks git cat-file --batch for one object after the other.
type blobReader struct {
	ask io.Writer
	r   *bufio.Reader
}

// open returns what is in the object, which must be read to its end before it is
// closed.
func (b blobReader) open(id string) (io.Reader, int64, error) {
	if _, err := io.WriteString(b.ask, id+"\n"); err != nil {
		return nil, 0, err
	}
	line, err := b.r.ReadString('\n')
	if err != nil {
		return nil, 0, fmt.Errorf("git cat-file: %w", err)
	}
	fields := strings.Fields(line)
	if len(fields) != 3 || fields[1] != "blob" {
		return nil, 0, fmt.Errorf("git cat-file: %q", strings.TrimSpace(line))
	}
	size, err := strconv.ParseInt(fields[2], 10, 64)
	return io.LimitReader(b.r, size), size, err
}

// close reads what stands between two objects.
func (b blobReader) close() error {
	_, err := b.r.Discard(1)
	return err
}
