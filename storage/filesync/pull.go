package filesync

import (
	"context"
	"errors"
	"io"
	"path"
	"slices"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// Policy says what becomes of a file that both sides have changed.
type Policy string

// The policies.
const (
	KeepLocal  Policy = "local"  // it stays as it is here; a push makes it the latest version's
	KeepRemote Policy = "remote" // the version's takes its place
)

// PullOptions are what a pull gets.
type PullOptions struct {
	// Version is the one to pull; 0 means the latest.
	Version int64
	// IfStale has nothing done, and nothing asked, when the directory was pushed or
	// pulled no longer ago than that; 0 means always to pull.
	IfStale time.Duration
	// Conflicts is what becomes of files that both sides have changed; "" is KeepLocal.
	Conflicts Policy
	Progress  func(Progress) // called now and then, by one goroutine at a time
}

// Pull makes a directory hold what a version does: files that are not there, or that
// the version has otherwise, are written; files that were pushed or pulled before, and
// that the version has no more, are removed. What was changed here since is kept as the
// Options say, and in Stats.Conflicts if the version has it otherwise; what was removed
// here comes back. What was never pushed or pulled is never removed, nor what IgnoreName
// names. What is closed to us is in Stats.Errors, and stays as it is; what is written here
// while the pull is at work counts as changed.
//
// Without any version there is nothing to do: Stats.Version is 0. A pull that was cut
// short has written some files and not others; the next one finishes it.
//
// Kinds: those of the bucket and of the file system; ErrNotExist (there is no such
// version); ErrExhausted (the version is beyond the bounds of the Options).
func (r *Remote) Pull(ctx context.Context, t Tree, o PullOptions) (st *Stats, err error) {
	begin := time.Now()
	if o.Conflicts == "" {
		o.Conflicts = KeepLocal
	}
	p := &pull{r: r, ctx: ctx, fs: t.confined(), opts: o, stats: &Stats{}, verdicts: map[string]verdict{}, swaps: map[string]bool{}, ways: map[string]bool{}, objects: map[string]*object{}}
	defer func() { p.stats.Duration = time.Since(begin) }()
	if o.IfStale > 0 {
		l, end, err := r.local(ctx, p.fs)
		if err != nil {
			return nil, err
		}
		end()
		if l.head.Version != "" && !l.head.Stale(r.opts.now(), o.IfStale) {
			return p.stats, nil
		}
	}
	sum, n := "", o.Version
	if n == 0 {
		now, err := r.readLatest(ctx)
		if err != nil {
			return nil, err
		}
		if n, sum = now.Version, now.SHA256; n == 0 {
			return p.stats, nil
		}
	}
	v, err := r.fetch(ctx, n, sum, nil)
	if err != nil {
		return nil, err
	}
	defer v.close()
	p.number, p.version, p.stats.Version = n, v, n
	if err := p.fs.Mkdir(ctx, ".", 0o755); err != nil && atoll.KindOf(err) != atoll.ErrNotExist && atoll.KindOf(err) != atoll.ErrDenied {
		return nil, err
	}
	if p.scan, err = t.scan(ctx, nil); err != nil {
		return nil, err
	}
	return p.stats, p.run()
}

// A verdict is what a pull does with a path.
type verdict int

const (
	leave  verdict = iota // it is as the version says
	write                 // the version's is written
	keep                  // it is otherwise, and stays so
	remove                // it is removed
)

// A pull is one at work.
type pull struct {
	r       *Remote
	ctx     context.Context
	fs      atoll.FS
	opts    PullOptions
	number  int64
	version *version
	scan    *scan
	rules   *ignore // of the version
	stats   *Stats

	verdicts map[string]verdict // of paths of the version, where it is not leave
	read     map[string]File    // files here that had to be read, as they are
	removals []string
	swaps    map[string]bool    // directories that are to become something else, if they are empty
	ways     map[string]bool    // directories of the version: whether one can be here
	objects  map[string]*object // that are needed
	glances  []glance           // at directories, each in the one before
	done     Progress
	packed   string // path of the last entry in the stream
	after    string // path behind which the stream begins
}

func (p *pull) run() error {
	for _, bad := range p.version.bad {
		p.stats.problem("version", bad)
	}
	if err := p.readRules(); err != nil {
		return err
	}
	if err := p.judge(); err != nil {
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
	if err := p.unpack(); err != nil {
		return err
	}
	p.r.opts.step("written")
	return p.leaveState()
}

// readRules reads what the version says is not to be kept in step.
func (p *pull) readRules() error {
	c, err := p.version.cursor()
	if err != nil {
		return err
	}
	f := c.at(IgnoreName, nil)
	if f == nil || !f.regular() || f.Size == 0 || f.Size > maxIgnore {
		return c.err
	}
	body, _, err := p.r.bucket.Get(p.ctx, p.r.keyOf(p.number, f), f.Offset, f.Size)
	if atoll.KindOf(err) == atoll.ErrNotExist {
		return nil // as the pull will say
	}
	if err != nil {
		return err
	}
	defer body.Close()
	p.rules, err = newIgnore(nil, body)
	return err
}

// judge goes through the version, the files and what was known of them, in order, and
// decides.
func (p *pull) judge() error {
	local, end, err := p.r.local(p.ctx, p.fs)
	if err != nil {
		return err
	}
	defer end()
	remote, err := p.version.cursor()
	if err != nil {
		return err
	}
	i := 0
	// here goes through what is here and not in the version, as far as a path.
	here := func(path string, all bool) (*atoll.FileInfo, error) {
		for ; i < len(p.scan.files); i++ {
			fi := &p.scan.files[i]
			at := p.scan.path(fi)
			if !all && at >= path {
				if at == path {
					i++
					return fi, nil
				}
				return nil, nil
			}
			if err := p.judgeGone(fi, at, local.at(at, nil), &local.head); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
	for ; remote.file != nil; remote.advance() {
		f := remote.file
		fi, err := here(f.Path, false)
		if err != nil {
			return err
		}
		l := local.at(f.Path, nil)
		v, err := p.judgeOne(f, fi, l, &local.head)
		if err != nil {
			return err
		}
		switch v {
		case leave:
			p.stats.FilesSkipped++
		case write:
			p.verdicts[f.Path] = v
			p.need(f)
		default:
			p.verdicts[f.Path] = v
		}
	}
	if _, err := here("", true); err != nil {
		return err
	}
	local.rest(nil)
	return remote.err
}

// judgeGone decides about what is here and not in the version.
func (p *pull) judgeGone(fi *atoll.FileInfo, path string, l *File, head *State) error {
	if l == nil || p.rules.match(path, fi.Type == atoll.TypeDirectory) {
		return nil // it was never pushed or pulled, or is not to be any more
	}
	if fi.Type != atoll.TypeDirectory && !l.untouched(fi, head) {
		same, err := p.holds(fi, path, l)
		if err != nil {
			return err
		}
		if !same {
			p.conflict(path, p.opts.Conflicts)
			if p.opts.Conflicts == KeepLocal {
				return nil
			}
		}
	}
	p.removals = append(p.removals, path)
	return nil
}

// judgeOne decides about a path of the version. fi is what is here, l what was known
// of that; nil if there is none.
func (p *pull) judgeOne(f *File, fi *atoll.FileInfo, l *File, head *State) (verdict, error) {
	switch {
	case p.scan.hidden(f.Path):
		p.stats.problem(f.Path, errors.New("it is in a directory that cannot be read"))
		return keep, nil
	case p.scan.rules.match(f.Path, f.kind() == atoll.TypeDirectory), f.regular() && atoll.IsTempName(path.Base(f.Path)):
		return keep, nil
	case !p.way(path.Dir(f.Path)): // a file is where its directory should be
		p.conflict(f.Path, KeepLocal)
		return keep, nil
	case fi == nil:
		return write, nil
	}
	known := l != nil && l.untouched(fi, head)
	if known && l.same(f) {
		return leave, nil
	}
	if known { // changed there only
		return p.over(f, fi), nil
	}
	same, err := p.holds(fi, f.Path, f)
	if err != nil || same {
		return leave, err
	}
	switch {
	case l != nil && l.same(f): // changed here only
		return keep, nil
	case l == nil && fi.Type == atoll.TypeDirectory && f.kind() == fi.Type: // of another mode
		return keep, nil
	case l != nil && l.regular() && fi.Type == atoll.TypeFile:
		if same, err = p.holds(fi, f.Path, l); err != nil {
			return keep, err
		}
		if same { // it was only touched
			return p.over(f, fi), nil
		}
	}
	p.conflict(f.Path, p.opts.Conflicts)
	if p.opts.Conflicts == KeepRemote {
		return p.over(f, fi), nil
	}
	return keep, nil
}

// over has what is here written over. A directory must be empty for that.
func (p *pull) over(f *File, fi *atoll.FileInfo) verdict {
	if fi.Type == atoll.TypeDirectory && f.kind() != fi.Type {
		p.removals = append(p.removals, f.Path)
		p.swaps[f.Path] = true
	}
	return write
}

// way reports whether there is, or can be, a directory: nothing else that stays is in
// its place, or in that of one above it.
func (p *pull) way(dir string) bool {
	if dir == "." {
		return true
	}
	if ok, known := p.ways[dir]; known {
		return ok
	}
	ok := p.way(path.Dir(dir))
	if fi := p.scan.find(dir); ok && fi != nil && fi.Type != atoll.TypeDirectory {
		ok = p.verdicts[dir] == write // which makes a directory, or else nothing would be below it
	}
	p.ways[dir] = ok
	return ok
}

// conflict notes one.
func (p *pull) conflict(path string, kept Policy) {
	if len(p.stats.Conflicts) < MaxErrors {
		p.stats.Conflicts = append(p.stats.Conflicts, Conflict{path, kept})
	}
}

// holds reports whether what is here is as the entry says, reading it if need be.
func (p *pull) holds(fi *atoll.FileInfo, path string, f *File) (bool, error) {
	is := fileOf(fi, path)
	if !is.regular() || !f.regular() {
		return is.same(f), nil
	}
	if is.Size != f.Size || !is.sameMode(f.Mode) {
		return false, nil
	}
	if had, ok := p.read[path]; ok {
		return had.same(f), nil
	}
	body, now, err := p.fs.Read(p.ctx, path, 0)
	if err == nil {
		d := newDigest()
		_, err = io.Copy(d, body)
		body.Close()
		d.into(&is)
		is.Modified, is.Nanos = now.Modified.Unix(), int64(now.Modified.Nanosecond())
	}
	switch kind := atoll.KindOf(err); {
	case err == nil:
	case p.ctx.Err() != nil || kind == atoll.ErrStopped || kind == atoll.ErrNotFound || kind == atoll.ErrUnavailable:
		return false, err
	default: // whatever it is, it is not that
		return false, nil
	}
	if p.read == nil {
		p.read = map[string]File{}
	}
	p.read[path] = is
	return is.same(f), nil
}

// removeGone removes what the version has no more, the innermost first.
func (p *pull) removeGone() error {
	slices.Sort(p.removals)
	for _, path := range slices.Backward(p.removals) {
		if stays, err := p.stays(path, nil); err != nil {
			return err
		} else if stays {
			continue
		}
		err := p.fs.Remove(p.ctx, path, false)
		switch kind := atoll.KindOf(err); {
		case err == nil:
			if !p.swaps[path] {
				p.stats.FilesDeleted++
			}
		case kind == atoll.ErrNotExist:
		case p.ctx.Err() != nil || kind == atoll.ErrStopped || kind == atoll.ErrNotFound || kind == atoll.ErrUnavailable:
			return err
		case kind != atoll.ErrDenied && p.scan.find(path).Type == atoll.TypeDirectory: // something in it stays
			if p.swaps[path] {
				p.conflict(path, KeepLocal)
				p.verdicts[path] = keep
			}
		default:
			p.stats.problem(path, err)
			delete(p.swaps, path)
			if p.verdicts[path] == write {
				p.verdicts[path] = keep
			}
		}
	}
	return nil
}

// abandoned is how old a file is, at least, that somebody has left half written.
const abandoned = 24 * time.Hour

// removeTemps removes files that were on their way when their writer was killed, and
// that nobody else would. One that cannot be removed takes room, and nothing else.
func (p *pull) removeTemps() error {
	for i := range p.scan.temps {
		fi := &p.scan.temps[i]
		if p.scan.at.Sub(fi.Modified) < abandoned {
			continue
		}
		if err := p.fs.Remove(p.ctx, p.scan.path(fi), false); err != nil && p.ctx.Err() != nil {
			return err
		}
	}
	return nil
}
