package conversation

import (
	"cmp"
	"context"
	"io"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
)

// The bounds of files.
const (
	DefaultFiles = 100       // of a page
	MaxFiles     = 1000      // of a page
	maxTree      = 10_000    // of a tree
	MaxContent   = 100 << 20 // of a file that is read, in bytes
)

// Files lists files of a sandbox, a page of them. A page that there is not has none.
// Kinds: ErrInvalid, ErrNotExist, ErrNotFound (the sandbox is gone), ErrUnsupported
// (there is no object storage).
func (v *Service) Files(ctx context.Context, id string, q agent.FileQuery) (p agent.FilePage, err error) {
	switch {
	case q.Page < 1:
		return p, badFiles(id, "page must be at least 1")
	case q.PerPage < 1 || q.PerPage > MaxFiles:
		return p, badFiles(id, "per_page must be between 1 and 1000")
	}
	w := window{from: math.MaxInt, most: q.PerPage}
	if q.Page <= math.MaxInt/q.PerPage {
		w.from = (q.Page - 1) * q.PerPage
	}
	if err := v.list(ctx, id, q, &w); err != nil {
		return p, err
	}
	p = agent.FilePage{Files: w.files, Total: w.total, Page: q.Page, PerPage: q.PerPage, TotalPages: (w.total + q.PerPage - 1) / q.PerPage}
	if p.Files == nil {
		p.Files = []agent.File{}
	}
	return p, nil
}

// A window keeps some of a list's files: there may be a million, with long names.
type window struct {
	from, most int
	files      []agent.File
	total      int // how many there were
}

// add adds the next file of the list.
func (w *window) add(f agent.File) {
	if w.total >= w.from && len(w.files) < w.most {
		w.files = append(w.files, f)
	}
	w.total++
}

func badFiles(id, text string) error { return atoll.Errorf("files", id, atoll.ErrInvalid, "%s", text) }

// filePath is a path in the form in which it is looked for; "." is the directory itself.
func filePath(id, p string) (string, error) {
	for part := range strings.SplitSeq(p, "/") {
		if part == ".." {
			return "", badFiles(id, "invalid path: directory traversal not allowed")
		}
	}
	if strings.ContainsRune(p, 0) {
		return "", badFiles(id, "invalid path: it has a NUL byte")
	}
	return cmp.Or(strings.TrimPrefix(path.Clean("/"+p), "/"), "."), nil
}

// sourceOf is where files are to be read.
func sourceOf(id, source string) (string, error) {
	source = cmp.Or(source, agent.SourceVolume)
	if source != agent.SourceVolume && source != agent.SourceS3 {
		return "", badFiles(id, "source must be 'volume' or 's3'")
	}
	return source, nil
}

// list adds all files that are asked for to w, sorted by path.
func (v *Service) list(ctx context.Context, id string, q agent.FileQuery, w *window) error {
	dir, err := filePath(id, q.Path)
	if err != nil {
		return err
	}
	source, err := sourceOf(id, q.Source)
	if err != nil {
		return err
	}
	b, err := v.peek(ctx, "files", id)
	if err != nil {
		return err
	}
	if source == agent.SourceS3 {
		return b.stored(ctx, dir, q.Flat, w)
	}
	fs, err := b.files(ctx)
	if err != nil {
		return err
	}
	return inVolume(ctx, fs, dir, q.Flat, w)
}

// files are those of the sandbox.
func (b *box) files(ctx context.Context) (atoll.FS, error) {
	sb, err := b.look(ctx)
	switch {
	case err != nil:
		return nil, err
	case sb == nil:
		return nil, atoll.Errorf("files", b.record.ID, atoll.ErrNotFound, "it is gone: source=s3 has what was pushed")
	}
	return atoll.SubFiles(atoll.Files(sb), b.template.WorkDir()), nil
}

// inVolume lists files in a sandbox.
func inVolume(ctx context.Context, fs atoll.FS, dir string, flat bool, w *window) error {
	top, err := fs.Stat(ctx, ".")
	if err != nil {
		return err
	}
	all, err := fs.List(ctx, dir, !flat)
	if err != nil {
		return err
	}
	prefix := strings.TrimSuffix(top.Path, "/") + "/"
	for i := range all {
		fi := &all[i]
		w.add(agent.File{
			Name: fi.Name, Path: strings.TrimPrefix(fi.Path, prefix), Size: fi.Size, Modified: fi.Modified.Unix(),
			Directory: fi.Type == atoll.TypeDirectory, Target: fi.Target,
		})
	}
	return nil
}

// stored lists files of the latest version.
func (b *box) stored(ctx context.Context, dir string, flat bool, w *window) error {
	if b.place == nil {
		return errNoPlace("files", b.record.ID)
	}
	found := dir == "."
	below := strings.TrimPrefix(dir+"/", "./")
	for f, err := range b.place.Remote.Files(ctx, 0) {
		if err != nil {
			return err
		}
		found = found || f.Path == dir
		rest, ok := strings.CutPrefix(f.Path, below)
		if !ok || flat && strings.Contains(rest, "/") {
			continue
		}
		found = true
		file := agent.File{
			Name: path.Base(f.Path), Path: f.Path, Size: f.Size, Modified: f.Modified, Directory: f.Type == atoll.TypeDirectory, Target: f.Target,
		}
		if f.Type == "" || f.Type == atoll.TypeFile {
			file.Checksum = f.Checksum.String()
		}
		w.add(file)
	}
	if !found {
		return atoll.Errorf("files", b.record.ID, atoll.ErrNotExist, "there is no directory %q in the latest version", dir)
	}
	return nil
}

// FileTree is all of Files as a tree. Kinds: also ErrExhausted (it has too many files).
func (v *Service) FileTree(ctx context.Context, id, source, dir string) (*agent.File, error) {
	w := window{most: maxTree}
	if err := v.list(ctx, id, agent.FileQuery{Source: source, Path: dir}, &w); err != nil {
		return nil, err
	}
	if w.total > maxTree {
		return nil, atoll.Errorf("files", id, atoll.ErrExhausted, "there are %d files, more than the %d of a tree: list them by pages, or a directory below", w.total, maxTree)
	}
	top, err := filePath(id, dir)
	if err != nil {
		return nil, err
	}
	return newTree(top, w.files), nil
}

// newTree makes a tree of a list. Directories that nobody has listed are made up: state
// files of other programs have none.
func newTree(top string, all []agent.File) *agent.File {
	known := map[string]bool{top: true}
	below := map[string][]agent.File{} // by directory
	add := func(f agent.File) {
		below[path.Dir(f.Path)] = append(below[path.Dir(f.Path)], f)
		known[f.Path] = true
	}
	for _, f := range all {
		add(f)
	}
	for _, f := range all {
		for dir := path.Dir(f.Path); !known[dir] && dir != "." && dir != "/"; dir = path.Dir(dir) {
			add(agent.File{Name: path.Base(dir), Path: dir, Directory: true})
		}
	}
	root := agent.File{Name: path.Base(top), Path: top, Directory: true}
	var grow func(f *agent.File)
	grow = func(f *agent.File) {
		f.Children = below[f.Path]
		slices.SortFunc(f.Children, func(a, b agent.File) int { return cmp.Compare(a.Name, b.Name) })
		for i := range f.Children {
			if f.Children[i].Directory {
				grow(&f.Children[i])
			}
		}
	}
	grow(&root)
	return &root
}

// FileContent reads a file of a sandbox, which may have MaxContent bytes. The caller
// closes the reader. Kinds: those of Files, ErrExhausted (it is too large).
func (v *Service) FileContent(ctx context.Context, id, source, name string) (io.ReadCloser, agent.File, error) {
	p, err := filePath(id, name)
	if err == nil && p == "." {
		err = badFiles(id, "file_path is missing")
	}
	if err != nil {
		return nil, agent.File{}, err
	}
	if source, err = sourceOf(id, source); err != nil {
		return nil, agent.File{}, err
	}
	b, err := v.peek(ctx, "files", id)
	if err != nil {
		return nil, agent.File{}, err
	}
	body, f, err := b.content(ctx, source, p)
	if err == nil && f.Size > MaxContent {
		body.Close()
		return nil, agent.File{}, atoll.Errorf("files", id, atoll.ErrExhausted, "%s has %d bytes, more than %d", name, f.Size, MaxContent)
	}
	return body, f, err
}

func (b *box) content(ctx context.Context, source, p string) (io.ReadCloser, agent.File, error) {
	if source == agent.SourceS3 {
		if b.place == nil {
			return nil, agent.File{}, errNoPlace("files", b.record.ID)
		}
		body, f, err := b.place.Remote.Open(ctx, 0, p, MaxContent)
		return body, agent.File{Name: path.Base(p), Path: p, Size: f.Size, Modified: f.Modified, Checksum: f.Checksum.String()}, err
	}
	fs, err := b.files(ctx)
	if err != nil {
		return nil, agent.File{}, err
	}
	body, fi, err := fs.Read(ctx, p, 0)
	return body, agent.File{Name: fi.Name, Path: p, Size: fi.Size, Modified: fi.Modified.Unix()}, err
}
