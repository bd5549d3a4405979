package dirfs

import (
	"context"
	"path"

	"github.com/seed46cd37a8/atoll"
)

// A liveDir is the directory of a new file as running programs see it.
type liveDir struct {
	ctx  context.Context
	fs   atoll.FS // nil if there are none
	path string
}

// giveName gives the temporary file its name, and reports whether it did.
func (l liveDir) giveName(temp, target string, noClobber bool) bool {
	from, to := path.Join(l.path, temp), path.Join(l.path, target)
	switch {
	case l.fs == nil:
		return false
	case noClobber:
		return atoll.LinkFile(l.ctx, l.fs, from, to) == nil && l.fs.Remove(l.ctx, from, false) == nil
	}
	return l.fs.Rename(l.ctx, from, to) == nil
}

// liveDir returns the directory at rel as running programs see it.
func (f *FS) liveDir(ctx context.Context, rel string) liveDir {
	return liveDir{ctx, f.opts.Live, path.Join(f.prefix, rel)}
}

// announce makes an event for an entry that has changed, and reports nothing: there may be no
// program that watches it.
func (l liveDir) announce(name string) {
	if l.fs == nil {
		return
	}
	name = path.Join(l.path, name)
	info, err := l.fs.Stat(l.ctx, name)
	if err != nil {
		return
	}
	same := atoll.FileChange{Mode: &info.Mode, NoFollow: true}
	if info.Type == atoll.TypeSymlink { // which has no mode
		same.Mode, same.Times = nil, &atoll.FileTimes{Accessed: info.Modified, Modified: info.Modified}
	}
	_ = atoll.ChangeFile(l.ctx, l.fs, name, same)
}
