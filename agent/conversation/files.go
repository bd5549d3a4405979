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

// Limits of lists of files and of their content.
const (
	DefaultFiles = 100       // the usual number of files in a page
	MaxFiles     = 1000      // the most files in a page
	maxTreeFiles = 10_000    // the most files in a tree
	MaxContent   = 100 << 20 // the most bytes of a file that FileContent reads
)

// Files lists one page of a sandbox's files. A page after the last one is empty. Kinds:
// ErrInvalid, ErrNotExist, ErrNotFound (the sandbox is gone), ErrUnsupported (there is no object
// storage).
func (s *Service) Files(ctx context.Context, id string, q agent.FileQuery) (p agent.FilePage, err error) {
	switch {
	case q.Page < 1:
		return p, filesError(id, "page must be at least 1")
	case q.PerPage < 1 || q.PerPage > MaxFiles:
		return p, filesError(id, "per_page must be between 1 and 1000")
	}
	w := filePager{skip: math.MaxInt, limit: q.PerPage}
	if q.Page <= math.MaxInt/q.PerPage {
		w.skip = (q.Page - 1) * q.PerPage
	}
	if err := s.listFiles(ctx, id, q, &w); err != nil {
		return p, err
	}
	p = agent.FilePage{Files: w.files, Total: w.total, Page: q.Page, PerPage: q.PerPage, TotalPages: (w.total + q.PerPage - 1) / q.PerPage}
	if p.Files == nil {
		p.Files = []agent.File{}
	}
	return p, nil
}

// A filePager collects one page of a list, which may have a million files.
type filePager struct {
	skip, limit int
	files       []agent.File
	total       int // the number of files in the list
}

// addFile adds the next file of the list.
func (w *filePager) addFile(f agent.File) {
	if w.total >= w.skip && len(w.files) < w.limit {
		w.files = append(w.files, f)
	}
	w.total++
}

// filesError returns an error of kind ErrInvalid.
func filesError(id, text string) error {
	return atoll.Errorf("files", id, atoll.ErrInvalid, "%s", text)
}

// cleanPath returns a path relative to the synchronized directory; "." is the directory itself.
func cleanPath(id, p string) (string, error) {
	for part := range strings.SplitSeq(p, "/") {
		if part == ".." {
			return "", filesError(id, "invalid path: directory traversal not allowed")
		}
	}
	if strings.ContainsRune(p, 0) {
		return "", filesError(id, "invalid path: NUL byte not allowed")
	}
	return cmp.Or(strings.TrimPrefix(path.Clean("/"+p), "/"), "."), nil
}

// fileSource checks the source of files, and returns it or the default.
func fileSource(id, source string) (string, error) {
	source = cmp.Or(source, agent.SourceVolume)
	if source != agent.SourceVolume && source != agent.SourceS3 {
		return "", filesError(id, "source must be 'volume' or 's3'")
	}
	return source, nil
}

// listFiles adds the files that match q to w, sorted by path.
func (s *Service) listFiles(ctx context.Context, id string, q agent.FileQuery, w *filePager) error {
	dir, err := cleanPath(id, q.Path)
	if err != nil {
		return err
	}
	source, err := fileSource(id, q.Source)
	if err != nil {
		return err
	}
	return s.withSandbox(ctx, "files", id, readAccess, func(ctx context.Context, sb *sandbox) error {
		if source == agent.SourceS3 {
			return sb.listVersion(ctx, dir, q.Flat, w)
		}
		fs, err := sb.workFiles(ctx)
		if err != nil {
			return err
		}
		return listVolume(ctx, fs, dir, q.Flat, w)
	})
}

// workFiles returns the file system of the synchronized directory in the instance.
func (sb *sandbox) workFiles(ctx context.Context) (atoll.FS, error) {
	instance, err := sb.findInstance(ctx)
	switch {
	case err != nil:
		return nil, err
	case instance == nil:
		return nil, atoll.Errorf("files", sb.record.ID, atoll.ErrNotFound, "the sandbox is gone: read the pushed files with source=s3")
	}
	return atoll.SubFiles(atoll.Files(instance), sb.template.WorkDir()), nil
}

// listVolume adds the files of a sandbox to w.
func listVolume(ctx context.Context, fs atoll.FS, dir string, flat bool, w *filePager) error {
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
		w.addFile(agent.File{
			Name: fi.Name, Path: strings.TrimPrefix(fi.Path, prefix), Size: fi.Size, Modified: fi.Modified.Unix(),
			Directory: fi.Type == atoll.TypeDirectory, Target: fi.Target,
		})
	}
	return nil
}

// listVersion adds the files of the latest version to w.
func (sb *sandbox) listVersion(ctx context.Context, dir string, flat bool, w *filePager) error {
	if sb.place == nil {
		return errNoPlace("files", sb.record.ID)
	}
	found := dir == "."
	below := strings.TrimPrefix(dir+"/", "./")
	for f, err := range sb.place.Remote.Files(ctx, 0) {
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
		w.addFile(file)
	}
	if !found {
		return atoll.Errorf("files", sb.record.ID, atoll.ErrNotExist, "the latest version has no directory %q", dir)
	}
	return nil
}

// FileTree returns a directory and all files below it as a tree. Kinds: those of Files,
// ErrExhausted (the tree has too many files).
func (s *Service) FileTree(ctx context.Context, id, source, dir string) (*agent.File, error) {
	w := filePager{limit: maxTreeFiles}
	if err := s.listFiles(ctx, id, agent.FileQuery{Source: source, Path: dir}, &w); err != nil {
		return nil, err
	}
	if w.total > maxTreeFiles {
		return nil, atoll.Errorf("files", id, atoll.ErrExhausted, "%d files exceed the limit of %d for a tree: list pages, or a directory below", w.total, maxTreeFiles)
	}
	top, err := cleanPath(id, dir)
	if err != nil {
		return nil, err
	}
	return newTree(top, w.files), nil
}

// newTree builds a tree from a list. It adds directories that are not in the list: versions made
// by other programs have none.
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

// FileContent reads a file of a sandbox, up to MaxContent bytes. The caller closes the reader.
// Kinds: those of Files, ErrExhausted (the file is too large).
func (s *Service) FileContent(ctx context.Context, id, source, name string) (io.ReadCloser, agent.File, error) {
	p, err := cleanPath(id, name)
	if err == nil && p == "." {
		err = filesError(id, "file_path is missing")
	}
	if err != nil {
		return nil, agent.File{}, err
	}
	if source, err = fileSource(id, source); err != nil {
		return nil, agent.File{}, err
	}
	var body io.ReadCloser
	var f agent.File
	err = s.withSandbox(ctx, "files", id, readAccess, func(ctx context.Context, sb *sandbox) (err error) {
		body, f, err = sb.openFile(ctx, source, p)
		return err
	})
	if err == nil && f.Size > MaxContent {
		body.Close()
		return nil, agent.File{}, atoll.Errorf("files", id, atoll.ErrExhausted, "%s has %d bytes, more than %d", name, f.Size, MaxContent)
	}
	return body, f, err
}

// openFile opens a file of the instance or of the latest version.
func (sb *sandbox) openFile(ctx context.Context, source, p string) (io.ReadCloser, agent.File, error) {
	if source == agent.SourceS3 {
		if sb.place == nil {
			return nil, agent.File{}, errNoPlace("files", sb.record.ID)
		}
		body, f, err := sb.place.Remote.Open(ctx, 0, p, MaxContent)
		return body, agent.File{Name: path.Base(p), Path: p, Size: f.Size, Modified: f.Modified, Checksum: f.Checksum.String()}, err
	}
	fs, err := sb.workFiles(ctx)
	if err != nil {
		return nil, agent.File{}, err
	}
	body, fi, err := fs.Read(ctx, p, 0)
	return body, agent.File{Name: fi.Name, Path: p, Size: fi.Size, Modified: fi.Modified.Unix()}, err
}
