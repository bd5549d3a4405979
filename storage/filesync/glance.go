package filesync

import (
	"path"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A pull decides by a scan that may be minutes old when it reaches a file which another
// program has changed meanwhile. So it lists a directory again just before it writes or
// removes there.

// listingTTL is the time for which a listing is trusted. It is longer where listing is
// slow.
const listingTTL = time.Second

// A listing is the recent content of a directory.
type listing struct {
	dir   string
	until time.Time
	files map[string]*atoll.FileInfo // by name
}

// currentInfo returns the file at a path now, nil if there is none. Callers ask for
// paths in order, so that those below a directory follow one another.
func (p *pull) currentInfo(at string) (*atoll.FileInfo, error) {
	dir, name := path.Split(at)
	dir = path.Clean(dir)
	for n := len(p.listings); n > 0; n = len(p.listings) {
		g := p.listings[n-1]
		if g.dir == dir && time.Now().Before(g.until) {
			return g.files[name], nil
		}
		if g.dir != dir && (g.dir == "." || strings.HasPrefix(dir, g.dir+"/")) {
			break
		}
		p.listings = p.listings[:n-1]
	}
	begin := time.Now()
	list, err := p.fs.List(p.ctx, dir, false)
	switch kind := atoll.KindOf(err); {
	case err == nil:
		g := listing{dir, time.Now().Add(max(listingTTL, 10*time.Since(begin))), make(map[string]*atoll.FileInfo, len(list))}
		for i := range list {
			g.files[path.Base(list[i].Path)] = &list[i]
		}
		p.listings = append(p.listings, g)
		return g.files[name], nil
	case kind == atoll.ErrNotExist, kind == atoll.ErrInvalid: // the directory no longer exists
		return nil, nil
	case kind != atoll.ErrDenied && kind != atoll.ErrExhausted:
		return nil, err
	}
	fi, err := p.fs.Stat(p.ctx, at)
	switch atoll.KindOf(err) {
	case atoll.ErrNotExist, atoll.ErrInvalid, atoll.ErrDenied:
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &fi, nil
}

// changedSinceScan reports whether the file at a path was created or changed after the
// scan.
func (p *pull) changedSinceScan(at string) (bool, error) {
	was := p.scan.findPath(at)
	if was == nil {
		if dir := path.Dir(at); dir != "." && p.scan.findPath(dir) == nil {
			return false, nil // the pull creates that directory itself
		}
	}
	is, err := p.currentInfo(at)
	switch {
	case err != nil || is == nil:
		return false, err
	case was == nil:
		return true, nil
	case is.Type == atoll.TypeDirectory && was.Type == is.Type:
		return false, nil
	}
	return is.Type != was.Type || is.Size != was.Size || !is.Modified.Equal(was.Modified) || is.Target != was.Target, nil
}

// keepsLateChange reports whether the pull has to leave a path alone, since another
// program has changed it after the scan; it records the conflict. f is the file that
// the pull would write, nil if it would remove the path.
func (p *pull) keepsLateChange(at string, f *File) (bool, error) {
	changed, err := p.changedSinceScan(at)
	if err != nil || !changed {
		return false, err
	}
	if is, err := p.currentInfo(at); err != nil || f != nil && is != nil && is.Type == atoll.TypeDirectory && f.fileType() == is.Type {
		return false, err // both create the same directory
	}
	p.addConflict(at, p.opts.Conflicts)
	if p.opts.Conflicts == KeepRemote {
		return false, nil
	}
	if f != nil || p.actions[at] == writeFile {
		p.actions[at] = keepFile
	}
	return true, nil
}
