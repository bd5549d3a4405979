package filesync

import (
	"context"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A Tree is a directory that is kept in step: FS is its file system, and Dir where it
// is there, absolute. What is below it is confined to it with atoll.SubFiles.
type Tree struct {
	FS  atoll.FS
	Dir string
}

// confined is the tree's file system, of which no call leads out of the directory.
func (t Tree) confined() atoll.FS { return atoll.SubFiles(t.FS, t.Dir) }

// A scan is what there is in a directory.
type scan struct {
	files  []atoll.FileInfo // sorted by path, without what is not kept in step
	at     time.Time        // when it began, by the clock of the files; zero if nobody asked
	unread []unread         // directories that could not be listed, sorted
	other  int              // how many devices, sockets and pipes
	temps  []atoll.FileInfo // files on their way, or left by who was killed
	rules  *ignore
	prefix int // how many bytes of paths are the directory's
}

type unread struct {
	path string
	err  error
}

// path is that of a file below the directory.
func (s *scan) path(fi *atoll.FileInfo) string { return fi.Path[s.prefix:] }

// total is how much there is to go through.
func (s *scan) total() Progress {
	p := Progress{TotalFiles: int64(len(s.files))}
	for i := range s.files {
		p.TotalBytes = add(p.TotalBytes, s.files[i].Size)
	}
	return p
}

// find returns what is at a path, or nil.
func (s *scan) find(path string) *atoll.FileInfo {
	i, ok := slices.BinarySearchFunc(s.files, path, func(fi atoll.FileInfo, path string) int { return strings.Compare(s.path(&fi), path) })
	if !ok {
		return nil
	}
	return &s.files[i]
}

// hidden reports whether path is in a directory that could not be listed: nobody can
// tell whether it is there.
func (s *scan) hidden(path string) bool {
	for _, u := range s.unread {
		if strings.HasPrefix(path, u.path+"/") {
			return true
		}
	}
	return false
}

// scan lists the directory, which is to have a state file made of that.
func (t Tree) scan(ctx context.Context, more []string) (*scan, error) {
	at, err := t.clock(ctx)
	if err != nil {
		return nil, err
	}
	s, err := t.look(ctx, more)
	if err != nil {
		return nil, err
	}
	s.at = at
	return s, nil
}

// clock is that of the machine which the files are on, which need not be this one's.
func (t Tree) clock(ctx context.Context) (time.Time, error) {
	fs := t.confined()
	now, err := fs.Write(ctx, stateTmpName, strings.NewReader(""), atoll.WriteOptions{Mode: 0o600})
	if kind := atoll.KindOf(err); kind == atoll.ErrDenied || kind == atoll.ErrExhausted {
		return time.Time{}, atoll.Errorf("sync", t.Dir, kind, "the directory has to have a state file, which cannot be written: make room, or the directory writable: %w", err)
	}
	if err != nil {
		return time.Time{}, err
	}
	return now.Modified, fs.Remove(ctx, stateTmpName, false)
}

// look lists the directory, and writes nothing.
func (t Tree) look(ctx context.Context, more []string) (*scan, error) {
	fs := t.confined()
	rules, err := readIgnore(ctx, fs, more)
	if err != nil {
		return nil, err
	}
	top, err := fs.Stat(ctx, ".")
	if err != nil {
		return nil, err
	}
	s := &scan{prefix: len(strings.TrimSuffix(top.Path, "/")) + 1, rules: rules}
	all, err := fs.List(ctx, ".", true)
	if kind := atoll.KindOf(err); kind == atoll.ErrDenied || kind == atoll.ErrExhausted {
		all, err = s.walk(ctx, fs)
	}
	if err != nil {
		return nil, err
	}
	s.files = s.kept(all)
	return s, nil
}

// walk lists directory by directory: some may be closed to us, or all of them too many
// for one answer.
func (s *scan) walk(ctx context.Context, fs atoll.FS) (all []atoll.FileInfo, err error) {
	for below := []string{"."}; len(below) > 0; {
		dir := below[len(below)-1]
		below = below[:len(below)-1]
		list, err := fs.List(ctx, dir, false)
		switch kind := atoll.KindOf(err); {
		case kind == atoll.ErrNotExist && dir != ".": // removed meanwhile
		case kind == atoll.ErrDenied && dir != ".":
			s.unread = append(s.unread, unread{dir, err})
		case err != nil:
			return nil, err
		}
		for i := range list {
			if p := s.path(&list[i]); list[i].Type == atoll.TypeDirectory && !s.rules.match(p, true) {
				below = append(below, p)
			}
		}
		all = append(all, list...)
	}
	slices.SortFunc(all, func(a, b atoll.FileInfo) int { return strings.Compare(a.Path, b.Path) })
	return all, nil
}

// kept leaves out what is not kept in step.
func (s *scan) kept(all []atoll.FileInfo) []atoll.FileInfo {
	skipped := map[string]bool{} // directories that are ignored, with all below them
	return slices.DeleteFunc(all, func(fi atoll.FileInfo) bool {
		p := s.path(&fi)
		if p == StateName || p == stateTmpName {
			return true
		}
		if len(skipped) > 0 && skipped[path.Dir(p)] || s.rules.match(p, fi.Type == atoll.TypeDirectory) {
			if fi.Type == atoll.TypeDirectory {
				skipped[p] = true
			}
			return true
		}
		if fi.Type == atoll.TypeFile && atoll.IsTempName(path.Base(p)) {
			s.temps = append(s.temps, fi)
			return true
		}
		if fi.Type == atoll.TypeOther {
			s.other++
			return true
		}
		return false
	})
}
