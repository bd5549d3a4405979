package filesync

import (
	"path"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A pull decides by what a scan has seen, and that may be minutes ago when it comes to
// a file which somebody has changed meanwhile. So it glances at the directory before it
// writes or removes there.

// glanceHolds is how long a glance is believed: longer where it takes its time.
const glanceHolds = time.Second

// A glance is what there was in a directory a moment ago.
type glance struct {
	dir   string
	until time.Time
	files map[string]*atoll.FileInfo // by name
}

// present returns what is at a path, nil if nothing is. Paths are asked for in order,
// of which those below a directory come one after the other.
func (p *pull) present(at string) (*atoll.FileInfo, error) {
	dir, name := path.Split(at)
	dir = path.Clean(dir)
	for n := len(p.glances); n > 0; n = len(p.glances) {
		g := p.glances[n-1]
		if g.dir == dir && time.Now().Before(g.until) {
			return g.files[name], nil
		}
		if g.dir != dir && (g.dir == "." || strings.HasPrefix(dir, g.dir+"/")) {
			break
		}
		p.glances = p.glances[:n-1]
	}
	begin := time.Now()
	list, err := p.fs.List(p.ctx, dir, false)
	switch kind := atoll.KindOf(err); {
	case err == nil:
		g := glance{dir, time.Now().Add(max(glanceHolds, 10*time.Since(begin))), make(map[string]*atoll.FileInfo, len(list))}
		for i := range list {
			g.files[path.Base(list[i].Path)] = &list[i]
		}
		p.glances = append(p.glances, g)
		return g.files[name], nil
	case kind == atoll.ErrNotExist, kind == atoll.ErrInvalid: // there is no such directory any more
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

// meanwhile reports whether what is at a path is not what the scan has seen there, but
// something that was made or written since.
func (p *pull) meanwhile(at string) (bool, error) {
	was := p.scan.find(at)
	if was == nil {
		if dir := path.Dir(at); dir != "." && p.scan.find(dir) == nil {
			return false, nil // the pull makes that itself
		}
	}
	is, err := p.present(at)
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

// stays reports whether a path is to be left alone after all, because somebody has
// written there meanwhile: a conflict. f is what the pull was to write, nil if it was to
// remove what is there.
func (p *pull) stays(at string, f *File) (bool, error) {
	changed, err := p.meanwhile(at)
	if err != nil || !changed {
		return false, err
	}
	if is, err := p.present(at); err != nil || f != nil && is != nil && is.Type == atoll.TypeDirectory && f.kind() == is.Type {
		return false, err // both make the same directory
	}
	p.conflict(at, p.opts.Conflicts)
	if p.opts.Conflicts == KeepRemote {
		return false, nil
	}
	if f != nil || p.verdicts[at] == write {
		p.verdicts[at] = keep
	}
	return true, nil
}
