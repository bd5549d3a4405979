package filesync

import (
	"context"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/gitignore"
)

// A Tree is a directory to synchronize: FS is its file system, and Dir its absolute
// path there. Atoll confines all access to it with atoll.SubFiles.
type Tree struct {
	FS  atoll.FS
	Dir string
}

// confinedFS returns the tree's file system, confined to the directory.
func (t Tree) confinedFS() atoll.FS { return atoll.SubFiles(t.FS, t.Dir) }

// A scan is the content of a directory.
type scan struct {
	files  []atoll.FileInfo // sorted by path, without ignored files
	at     time.Time        // when it began, by the clock of the files; zero if unknown
	noMode bool             // the file system does not keep modes
	unread []unread         // directories that could not be listed, sorted
	other  int              // number of devices, sockets and pipes
	temps  []atoll.FileInfo // temporary files, in use or left by killed writers
	rules  *gitignore.Rules
	prefix int // length of the directory's path and slash, in bytes
}

type unread struct {
	path string
	err  error
}

// relPath returns a file's path relative to the directory.
func (s *scan) relPath(fi *atoll.FileInfo) string { return fi.Path[s.prefix:] }

// sumFiles returns the number and bytes of the files.
func (s *scan) sumFiles() Progress {
	p := Progress{TotalFiles: int64(len(s.files))}
	for i := range s.files {
		p.TotalBytes = addSizes(p.TotalBytes, s.files[i].Size)
	}
	return p
}

// findPath returns the file at a path, or nil.
func (s *scan) findPath(path string) *atoll.FileInfo {
	i, ok := slices.BinarySearchFunc(s.files, path, func(fi atoll.FileInfo, path string) int { return strings.Compare(s.relPath(&fi), path) })
	if !ok {
		return nil
	}
	return &s.files[i]
}

// isHidden reports whether path is in a directory that could not be listed, so that it
// may or may not exist.
func (s *scan) isHidden(path string) bool {
	for _, u := range s.unread {
		if strings.HasPrefix(path, u.path+"/") {
			return true
		}
	}
	return false
}

// scanFiles lists the directory and notes the time, so that a state file can be made of
// it.
func (t Tree) scanFiles(ctx context.Context, more []string) (*scan, error) {
	probe, err := t.writeProbe(ctx)
	if err != nil {
		return nil, err
	}
	s, err := t.listFiles(ctx, more)
	if err != nil {
		return nil, err
	}
	s.at, s.noMode = probe.Modified, probe.Mode != probeMode
	return s, nil
}

// probeMode is the mode of a file that shows whether the file system keeps modes.
const probeMode = 0o600

// writeProbe writes and removes a file. Its time is that of the machine that holds the
// files, which may differ from this machine's.
func (t Tree) writeProbe(ctx context.Context) (atoll.FileInfo, error) {
	fs := t.confinedFS()
	now, err := fs.Write(ctx, stateTmpName, strings.NewReader(""), atoll.WriteOptions{Mode: probeMode})
	if kind := atoll.KindOf(err); kind == atoll.ErrDenied || kind == atoll.ErrExhausted {
		return now, atoll.Errorf("sync", t.Dir, kind, "cannot write the state file: free space or make the directory writable: %w", err)
	}
	if err != nil {
		return now, err
	}
	if err := fs.Remove(ctx, stateTmpName, false); atoll.KindOf(err) != atoll.ErrNotExist { // another sync may remove it
		return now, err
	}
	return now, nil
}

// newHead returns the head of a state file made of the scan.
func (s *scan) newHead(push string) State {
	return State{Push: push, LastSynced: s.at.Unix(), SyncedNanos: int64(s.at.Nanosecond())}
}

// newLocalHead is newHead for the state file of the directory.
func (s *scan) newLocalHead(push string) State {
	head := s.newHead(push)
	head.NoModes = s.noMode
	return head
}

// listFiles lists the directory without writing to it.
func (t Tree) listFiles(ctx context.Context, more []string) (*scan, error) {
	fs := t.confinedFS()
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
		all, err = s.listDirs(ctx, fs)
	}
	if err != nil {
		return nil, err
	}
	s.files, err = s.filterFiles(ctx, all)
	return s, err
}

// listDirs lists directory by directory: some may be unreadable, or all of them too
// many for one answer.
func (s *scan) listDirs(ctx context.Context, fs atoll.FS) (all []atoll.FileInfo, err error) {
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
			if p := s.relPath(&list[i]); list[i].Type == atoll.TypeDirectory && !s.rules.Match(p, true) {
				below = append(below, p)
			}
		}
		all = append(all, list...)
	}
	slices.SortFunc(all, func(a, b atoll.FileInfo) int { return strings.Compare(a.Path, b.Path) })
	return all, nil
}

// filterFiles removes ignored files, and sorts out temporary and special ones.
func (s *scan) filterFiles(ctx context.Context, all []atoll.FileInfo) ([]atoll.FileInfo, error) {
	skipped := map[string]bool{} // ignored directories, with all below them
	files := slices.DeleteFunc(all, func(fi atoll.FileInfo) bool {
		if ctx.Err() != nil { // many rules and files take long
			return true
		}
		p := s.relPath(&fi)
		if p == StateName || p == stateTmpName {
			return true
		}
		if len(skipped) > 0 && skipped[path.Dir(p)] || s.rules.Match(p, fi.Type == atoll.TypeDirectory) {
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
	return files, ctx.Err()
}
