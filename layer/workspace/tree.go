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

// streamTree passes a tar stream of a check-out of the commit to take. The stream has
// unfinishedMark first, then the repository, then the tree. streamTree neither interprets the
// files nor writes them to the local disk.
func (k *record) streamTree(ctx context.Context, commit string, take func(io.Reader) error) error {
	release, err := holdClone(k.gitDir())
	if err != nil {
		return atoll.Errorf("workspace", k.Name, atoll.ErrUnavailable, "the workspace was updated or removed meanwhile: %w", err)
	}
	defer release()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := k.writeTree(ctx, w, commit)
		_ = w.CloseWithError(err) // always nil
		packed <- err
	}()
	err = take(r)
	_ = r.CloseWithError(errReaderDone) // always nil
	cancel()
	if packErr := <-packed; packErr != nil && !errors.Is(packErr, errReaderDone) && !errors.Is(packErr, context.Canceled) {
		return packErr // the cause of err
	}
	return err
}

// errReaderDone ends a stream whose reader returned.
var errReaderDone = errors.New("reader is done")

// A treeWriter writes a check-out to a tar stream.
type treeWriter struct {
	*tar.Writer
	time time.Time
}

func (k *record) writeTree(ctx context.Context, w io.Writer, commit string) error {
	buf := bufio.NewWriterSize(w, 256<<10)
	p := treeWriter{tar.NewWriter(buf), time.Now()}
	err := p.writeText(unfinishedMark, commit)
	if err == nil {
		err = p.writeRepository(k.gitDir(), commit != k.Commit)
	}
	if err == nil && commit != k.Commit {
		err = p.writeHead(ctx, k.gitDir(), commit)
	}
	if err == nil {
		err = p.writeFiles(ctx, k.gitDir(), commit)
	}
	if err == nil {
		err = p.Close()
	}
	if err == nil {
		err = buf.Flush()
	}
	return err
}

func (p *treeWriter) writeText(name, text string) error {
	if err := p.writeHeader(tar.TypeReg, name, 0o644, int64(len(text)), ""); err != nil {
		return err
	}
	_, err := io.WriteString(p, text)
	return err
}

func (p *treeWriter) writeHeader(typ byte, name string, mode fs.FileMode, size int64, link string) error {
	return p.WriteHeader(&tar.Header{Typeflag: typ, Name: name, Mode: int64(mode.Perm()), Size: size, Linkname: link, ModTime: p.time})
}

// writeRepository writes the repository in dir as .git. If other is true, it omits HEAD and the
// index, which writeHead writes for another commit.
func (p *treeWriter) writeRepository(dir string, other bool) error {
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
			return p.writeHeader(tar.TypeDir, name, 0o755, 0, "")
		case info.Mode().IsRegular():
			return p.writeFile(name, file, info)
		}
		return fmt.Errorf("%s: neither a file nor a directory", file)
	})
}

func (p *treeWriter) writeFile(name, file string, info fs.FileInfo) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	mode := info.Mode() | 0o444 // readable despite the umask of the clone
	if err := p.writeHeader(tar.TypeReg, name, mode, info.Size(), ""); err != nil {
		return err
	}
	_, err = io.Copy(p, f)
	return err
}

// writeHead writes HEAD and an index for the commit.
func (p *treeWriter) writeHead(ctx context.Context, gitDir, commit string) error {
	if err := p.writeText(".git/HEAD", commit+"\n"); err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", "atoll-index-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	index := filepath.Join(temp, "index")
	cmd := gitCommand(ctx, "--git-dir="+gitDir, "read-tree", commit)
	cmd.Env = append(cmd.Env, "GIT_INDEX_FILE="+index)
	if _, err := gitOutput(cmd); err != nil {
		return err
	}
	info, err := os.Stat(index)
	if err != nil {
		return err
	}
	return p.writeFile(".git/index", index, info)
}

// writeFiles writes all files of the commit as they are in the repository, without the
// conversions and filters of git attributes.
func (p *treeWriter) writeFiles(ctx context.Context, gitDir, commit string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	list := gitCommand(ctx, "--git-dir="+gitDir, "ls-tree", "-r", "-z", "--full-tree", commit)
	blobs := gitCommand(ctx, "--git-dir="+gitDir, "cat-file", "--batch")
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
	err := p.writeEntries(bufio.NewReader(names), blobReader{ask, bufio.NewReaderSize(contents, 256<<10)})
	if err != nil {
		cancel()
	}
	_ = ask.Close() // ends cat-file
	listErr, blobErr := list.Wait(), blobs.Wait()
	if err == nil {
		err = errors.Join(listErr, blobErr)
	}
	return err
}

// writeEntries writes the files of a list in the format of ls-tree -z.
func (p *treeWriter) writeEntries(names *bufio.Reader, blobs blobReader) error {
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
		if !isSafePath(name) {
			return atoll.Errorf("workspace", "", atoll.ErrInvalid, "the repository has a file name that git rejects: %q", name)
		}
		if err := p.writeEntry(fields[0], fields[2], name, blobs); err != nil {
			return err
		}
	}
}

// isSafePath reports whether name stays inside the tree and outside of .git.
func isSafePath(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." || part == ".." || strings.EqualFold(part, ".git") {
			return false
		}
	}
	return true
}

// maxLink is the maximum length of a symbolic link's target in bytes.
const maxLink = 4096

func (p *treeWriter) writeEntry(mode, id, name string, blobs blobReader) error {
	if mode == "160000" { // a submodule, which the layer does not fetch
		return p.writeHeader(tar.TypeDir, name, 0o755, 0, "")
	}
	blob, size, err := blobs.openBlob(id)
	if err != nil {
		return err
	}
	switch mode {
	case "120000":
		if size > maxLink {
			return atoll.Errorf("workspace", "", atoll.ErrInvalid, "the target of link %q has %d bytes, more than 4096", name, size)
		}
		target, readErr := io.ReadAll(blob)
		if err = readErr; err == nil {
			err = p.writeHeader(tar.TypeSymlink, name, 0o777, 0, string(target))
		}
	case "100755":
		err = p.writeBlob(name, 0o755, size, blob)
	default:
		err = p.writeBlob(name, 0o644, size, blob)
	}
	if err != nil {
		return err
	}
	return blobs.closeBlob()
}

func (p *treeWriter) writeBlob(name string, mode fs.FileMode, size int64, blob io.Reader) error {
	if err := p.writeHeader(tar.TypeReg, name, mode, size, ""); err != nil {
		return err
	}
	_, err := io.Copy(p, blob)
	return err
}

// A blobReader reads objects from git cat-file --batch, one at a time.
type blobReader struct {
	stdin  io.Writer
	stdout *bufio.Reader
}

// openBlob returns the content and the size of a blob. The caller must read the content to its
// end before closeBlob.
func (b blobReader) openBlob(id string) (io.Reader, int64, error) {
	if _, err := io.WriteString(b.stdin, id+"\n"); err != nil {
		return nil, 0, err
	}
	line, err := b.stdout.ReadString('\n')
	if err != nil {
		return nil, 0, fmt.Errorf("git cat-file: %w", err)
	}
	fields := strings.Fields(line)
	if len(fields) != 3 || fields[1] != "blob" {
		return nil, 0, fmt.Errorf("git cat-file: %q", strings.TrimSpace(line))
	}
	size, err := strconv.ParseInt(fields[2], 10, 64)
	return io.LimitReader(b.stdout, size), size, err
}

// closeBlob skips the separator between two objects.
func (b blobReader) closeBlob() error {
	_, err := b.stdout.Discard(1)
	return err
}
