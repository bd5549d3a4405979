package filesync

import (
	"context"
	"errors"
	"path"
	"slices"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/gitignore"
)

// Policy decides about a file that both sides have changed.
type Policy string

// The policies.
const (
	KeepLocal  Policy = "local"  // keeps the directory's file; a push makes it part of the latest version
	KeepRemote Policy = "remote" // replaces it by the version's file
)

// PullOptions configure a pull.
type PullOptions struct {
	// Version is the version to pull; 0 means the latest.
	Version int64
	// IfStale skips the pull, without a request, if the directory was pushed or pulled
	// within this time; 0 means always to pull.
	IfStale time.Duration
	// Conflicts decides about files that both sides have changed, also if an earlier pull
	// has found them; "" is KeepLocal.
	Conflicts Policy
	// SetID writes files again whose set-user-ID, set-group-ID or sticky bits an earlier
	// pull could not set. Tree.FS decides whether it sets them.
	SetID    bool
	Progress func(Progress) // called now and then, by one goroutine at a time
}

// Pull makes a directory equal to a version. It writes files that are missing or differ
// from the version, and removes files that were pushed or pulled before and are not in
// the version. It keeps files changed in the directory since, as the options say, and
// lists them in Stats.Conflicts if the version differs; files removed from the
// directory come back. It never removes files that were never pushed or pulled, nor
// those that IgnoreName lists. Files without access are listed in Stats.Errors and stay
// unchanged; the next pull tries them again, and a push does not take them for changes.
// Conflicts remain until a push, or a pull with KeepRemote. Files written during the pull
// count as changed.
//
// Where the file system does not set the set-user-ID, set-group-ID and sticky bits, or
// keeps no modes, the pull lists the files in Stats.Dropped. A push retains the version's
// modes of such files.
//
// Without any version, Pull does nothing, and Stats.Version is 0. An interrupted pull
// has written some files; the next one finishes it.
//
// Kinds: those of the bucket and of the file system; ErrNotExist (no such version);
// ErrExhausted (the version exceeds the bounds of the Options).
func (r *Remote) Pull(ctx context.Context, t Tree, o PullOptions) (st *Stats, err error) {
	begin := time.Now()
	if o.Conflicts == "" {
		o.Conflicts = KeepLocal
	}
	p := &pull{
		r: r, ctx: ctx, tree: t, fs: t.confinedFS(), opts: o, stats: &Stats{}, actions: map[string]action{}, marks: map[string]mark{},
		replacedDirs: map[string]bool{}, dirChecks: map[string]bool{}, objects: map[string]*object{},
	}
	defer func() { p.stats.Duration = time.Since(begin) }()
	if o.IfStale > 0 {
		l, end, err := r.openLocalState(ctx, p.fs)
		if err != nil {
			return nil, err
		}
		end()
		if l.head.Version != "" && !l.head.Stale(r.opts.now(), o.IfStale) {
			p.stats.Fresh = true
			return p.stats, nil
		}
	}
	sum, n := "", o.Version
	if n == 0 {
		now, err := r.readNewest(ctx)
		if err != nil {
			return nil, err
		}
		if n, sum = now.newestNumber(), now.newestSum(); n == 0 {
			return p.stats, nil
		}
	}
	v, err := r.fetchState(ctx, n, sum, nil)
	if err != nil {
		return nil, err
	}
	defer v.closeSpool()
	p.number, p.version, p.stats.Version = n, v, n
	if err := p.fs.Mkdir(ctx, ".", 0o755); err != nil && atoll.KindOf(err) != atoll.ErrNotExist && atoll.KindOf(err) != atoll.ErrDenied {
		return nil, err
	}
	if p.scan, err = t.scanFiles(ctx, nil); err != nil {
		return nil, err
	}
	return p.stats, p.runPull()
}

// An action tells what a pull does with a path.
type action int

const (
	skipFile   action = iota // it is equal to the version's
	writeFile                // write the version's file
	keepFile                 // it differs, and stays
	removeFile               // remove it
)

// A pull is a running Pull.
type pull struct {
	r       *Remote
	ctx     context.Context
	tree    Tree
	fs      atoll.FS
	opts    PullOptions
	number  int64
	version *version
	scan    *scan
	rules   *gitignore.Rules // of the version
	stats   *Stats

	actions      map[string]action // of paths of the version, where it is not skipFile
	marks        map[string]mark   // conflicts, and paths that could not be written or removed
	read         map[string]File   // the directory's files that the pull had to read, as they are
	removals     []string
	replacedDirs map[string]bool    // directories that become something else, if they are empty
	dirChecks    map[string]bool    // directories of the version: whether the tree can have them
	objects      map[string]*object // the needed ones
	listings     []listing          // each of a directory below the one before
	done         Progress
	packed       string // path of the last entry in the stream
	after        string // the stream starts after this path
}

func (p *pull) runPull() error {
	for _, bad := range p.version.bad {
		p.stats.addError("version", bad)
	}
	if err := p.readRules(); err != nil {
		return err
	}
	if err := p.planActions(); err != nil {
		return err
	}
	p.r.opts.step("judged")
	if err := p.removeGone(); err != nil {
		return err
	}
	if err := p.removeTemps(); err != nil {
		return err
	}
	p.r.opts.step("removed")
	if err := p.unpackFiles(); err != nil {
		return err
	}
	p.r.opts.step("written")
	return p.writeState()
}

// readRules reads the version's own ignore rules.
func (p *pull) readRules() error {
	c, err := p.version.openCursor()
	if err != nil {
		return err
	}
	f := c.takeEntry(IgnoreName, nil)
	if f == nil || !f.isRegular() || f.Size == 0 || f.Size > maxIgnore {
		return c.err
	}
	body, err := p.r.openObject(p.ctx, p.r.keyOf(p.number, f), f.Offset, f.Size)
	if atoll.KindOf(err) == atoll.ErrNotExist {
		return nil // the pull itself reports that
	}
	if err != nil {
		return err
	}
	defer body.Close()
	p.rules, err = newIgnore(nil, body)
	return err
}

// planActions walks the version, the directory's files and the local state in order,
// and decides about each path.
func (p *pull) planActions() error {
	local, end, err := p.r.openLocalState(p.ctx, p.fs)
	if err != nil {
		return err
	}
	defer end()
	remote, err := p.version.openCursor()
	if err != nil {
		return err
	}
	i := 0
	// here walks files that are not in the version, up to a path.
	here := func(path string, all bool) (*atoll.FileInfo, error) {
		for ; i < len(p.scan.files); i++ {
			fi := &p.scan.files[i]
			at := p.scan.relPath(fi)
			if !all && at >= path {
				if at == path {
					i++
					return fi, nil
				}
				return nil, nil
			}
			if err := p.planRemoval(fi, at, local.takeEntry(at, nil), &local.head); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
	for ; remote.file != nil; remote.readNext() {
		f := remote.file
		fi, err := here(f.Path, false)
		if err != nil {
			return err
		}
		l := local.takeEntry(f.Path, nil)
		v, err := p.planFile(f, fi, l, &local.head)
		if err != nil {
			return err
		}
		switch v {
		case skipFile:
			p.stats.FilesSkipped++
		case writeFile:
			p.actions[f.Path] = v
			p.addDownload(f)
		default:
			p.actions[f.Path] = v
		}
	}
	if _, err := here("", true); err != nil {
		return err
	}
	local.skipRest(nil)
	return remote.err
}

// planRemoval decides about a file that is not in the version.
func (p *pull) planRemoval(fi *atoll.FileInfo, path string, l *File, head *State) error {
	if len(p.version.bad) > 0 {
		return nil // one of its unusable entries may be this file's
	}
	if l == nil || l.mark == markMissing || p.rules.Match(path, fi.Type == atoll.TypeDirectory) {
		return nil // it was never pushed or pulled, or is ignored now
	}
	if fi.Type != atoll.TypeDirectory && !l.seemsUnchanged(fi, head) {
		same, err := p.matchesFile(fi, path, l, l)
		if err != nil {
			return err
		}
		if !same {
			p.addConflict(path, p.opts.Conflicts)
			if p.opts.Conflicts == KeepLocal {
				return nil
			}
		}
	}
	p.removals = append(p.removals, path)
	return nil
}

// planFile decides about a path of the version. fi is the directory's file, l its entry
// in the local state; either may be nil.
func (p *pull) planFile(f *File, fi *atoll.FileInfo, l *File, head *State) (action, error) {
	switch {
	case p.scan.isHidden(f.Path):
		p.addError(f.Path, errors.New("its directory cannot be read"))
		return keepFile, nil
	case p.scan.rules.Match(f.Path, f.fileType() == atoll.TypeDirectory), f.isRegular() && atoll.IsTempName(path.Base(f.Path)):
		return keepFile, nil
	case !p.canHaveDir(path.Dir(f.Path)): // a file is in the place of its directory
		p.addConflict(f.Path, KeepLocal)
		return keepFile, nil
	case fi == nil:
		return writeFile, nil
	}
	if l != nil && l.mark == markMissing {
		l = nil // somebody else has written the file
	}
	known := l != nil && l.seemsUnchanged(fi, head)
	setID := p.opts.SetID && f.lacksBits(fi.Mode)
	if known && l.sameEntry(f) && !setID {
		return skipFile, nil
	}
	if known { // changed in the version only
		return p.planOverwrite(f, fi), nil
	}
	same, err := p.matchesFile(fi, f.Path, f, l)
	switch {
	case err != nil || same && !setID:
		return skipFile, err
	case same:
		return p.planOverwrite(f, fi), nil
	case l != nil && l.mark != markConflict && l.sameEntry(f): // changed in the directory only
		return keepFile, nil
	case l == nil && fi.Type == atoll.TypeDirectory && f.fileType() == fi.Type: // with another mode
		return keepFile, nil
	case l != nil && l.isRegular() && fi.Type == atoll.TypeFile:
		if same, err = p.matchesFile(fi, f.Path, l, l); err != nil {
			return keepFile, err
		}
		if same { // only its time has changed
			return p.planOverwrite(f, fi), nil
		}
	}
	p.addConflict(f.Path, p.opts.Conflicts)
	if p.opts.Conflicts == KeepRemote {
		return p.planOverwrite(f, fi), nil
	}
	return keepFile, nil
}

// planOverwrite replaces the directory's file by the version's. It replaces a directory
// only if that is empty.
func (p *pull) planOverwrite(f *File, fi *atoll.FileInfo) action {
	if fi.Type == atoll.TypeDirectory && f.fileType() != fi.Type {
		p.removals = append(p.removals, f.Path)
		p.replacedDirs[f.Path] = true
	}
	return writeFile
}

// canHaveDir reports whether a directory exists or can be created: nothing else that
// stays is in its place, or above it.
func (p *pull) canHaveDir(dir string) bool {
	if dir == "." {
		return true
	}
	if ok, known := p.dirChecks[dir]; known {
		return ok
	}
	ok := p.canHaveDir(path.Dir(dir))
	if fi := p.scan.findPath(dir); ok && fi != nil && fi.Type != atoll.TypeDirectory {
		ok = p.actions[dir] == writeFile // it becomes a directory, since the version has files below
	}
	p.dirChecks[dir] = ok
	return ok
}

// removeGone removes files that are not in the version, innermost first.
func (p *pull) removeGone() error {
	slices.Sort(p.removals)
	for _, path := range slices.Backward(p.removals) {
		if stays, err := p.keepsLateChange(path, nil); err != nil {
			return err
		} else if stays {
			continue
		}
		err := p.fs.Remove(p.ctx, path, false)
		switch kind := atoll.KindOf(err); {
		case err == nil:
			if !p.replacedDirs[path] {
				p.stats.FilesDeleted++
			}
		case kind == atoll.ErrNotExist:
		case p.ctx.Err() != nil || kind == atoll.ErrStopped || kind == atoll.ErrNotFound || kind == atoll.ErrUnavailable:
			return err
		case kind != atoll.ErrDenied && p.scan.findPath(path).Type == atoll.TypeDirectory: // something in it stays
			if p.replacedDirs[path] {
				p.addConflict(path, KeepLocal)
				p.actions[path] = keepFile
			}
		default:
			p.addError(path, err)
			delete(p.replacedDirs, path)
			if p.actions[path] == writeFile {
				p.actions[path] = keepFile
			}
		}
	}
	return nil
}

// tempFileAge is the minimum age of a temporary file that counts as left behind.
const tempFileAge = 24 * time.Hour

// removeTemps removes temporary files whose writers were killed, since nobody else
// would. A failure is harmless but for the space they take.
func (p *pull) removeTemps() error {
	for i := range p.scan.temps {
		fi := &p.scan.temps[i]
		if p.scan.at.Sub(fi.Modified) < tempFileAge {
			continue
		}
		if err := p.fs.Remove(p.ctx, p.scan.relPath(fi), false); err != nil && p.ctx.Err() != nil {
			return err
		}
	}
	return nil
}
