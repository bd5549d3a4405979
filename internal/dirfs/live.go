package dirfs

import (
	"context"
	"path"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// LiveTime bounds the time that a change by a live tree takes: root inside a sandbox can suspend the
// program that makes it.
const LiveTime = 5 * time.Second

// A liveDir is the directory of a new file as running programs see it.
type liveDir struct {
	ctx  context.Context
	fs   atoll.FS // nil if there are none
	path string
}

// giveName gives the temporary file its name, and reports whether it did.
func (l liveDir) giveName(temp, target string, noClobber bool) bool {
	if l.fs == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(l.ctx, LiveTime)
	defer cancel()
	from, to := path.Join(l.path, temp), path.Join(l.path, target)
	if noClobber {
		return atoll.LinkFile(ctx, l.fs, from, to) == nil && l.fs.Remove(ctx, from, false) == nil
	}
	return l.fs.Rename(ctx, from, to) == nil
}

// liveDir returns the directory at rel as running programs see it.
func (f *FS) liveDir(ctx context.Context, rel string) liveDir {
	return liveDir{ctx, f.opts.Live, path.Join(f.prefix, rel)}
}

// announce makes an event for an entry that has changed. It reports no error: there may be no
// program that watches the entry. It returns false if the inside did not answer in time.
func (l liveDir) announce(name string) bool {
	if l.fs == nil {
		return true
	}
	ctx, cancel := context.WithTimeout(l.ctx, LiveTime)
	defer cancel()
	name = path.Join(l.path, name)
	info, err := l.fs.Stat(ctx, name)
	if err != nil {
		return ctx.Err() == nil
	}
	same := atoll.FileChange{Mode: &info.Mode, NoFollow: true}
	if info.Type == atoll.TypeSymlink { // which has no mode
		same.Mode, same.Times = nil, &atoll.FileTimes{Accessed: info.Modified, Modified: info.Modified}
	}
	_ = atoll.ChangeFile(ctx, l.fs, name, same)
	return ctx.Err() == nil
}
