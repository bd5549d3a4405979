package filesync

import (
	"context"
	"crypto/md5"
	"crypto/sha256"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

// PushOptions are what a push gets.
type PushOptions struct {
	Ignore []string // more rules, before those of IgnoreName
	// Full has every file read, and not only those whose size or time say that they
	// may have changed.
	Full     bool
	Progress func(Progress) // called now and then, by one goroutine at a time
}

// Push makes what is in the directory the latest version, unless that is alike, and
// writes the directory's state file. It waits for others that push or prune there.
//
// When it fails, the latest version is what it was before; when the state file alone
// could not be written, the version is there, and the error says so. Files that cannot
// be read are in Stats.Errors, and stay what they were in the version before.
//
// Kinds: those of the bucket and of the file system; ErrConflict when another program
// has taken over (ErrLost); ErrExhausted when there are more files, or bytes, than the
// Options allow.
func (r *Remote) Push(ctx context.Context, t Tree, o PushOptions) (st *Stats, err error) {
	begin := time.Now()
	defer func() {
		if st != nil {
			st.Duration = time.Since(begin)
		}
	}()
	fs := t.confined()
	now, err := r.readLatest(ctx)
	if err != nil {
		return nil, err
	}
	s, err := t.scan(ctx, o.Ignore)
	if err != nil {
		return nil, err
	}
	if err := r.bounded(s); err != nil {
		return nil, err
	}
	if !o.Full && now.Version > 0 {
		alike, err := r.alike(ctx, fs, s, now.Push)
		if err != nil {
			return nil, err
		}
		if alike {
			st := &Stats{Version: now.Version, FilesSkipped: len(s.files)}
			s.report(st)
			return st, nil
		}
	}
	c, err := r.take(ctx, now)
	if err != nil {
		return nil, err
	}
	defer c.release()
	p := &push{r: r, ctx: c.ctx, fs: fs, scan: s, opts: o, stats: &Stats{}, id: atoll.NewID(), large: map[SHA256]place{}}
	st, err = p.run(c)
	if cause := context.Cause(c.ctx); err != nil && errors.Is(cause, ErrLost) {
		err = cause
	}
	if err != nil {
		return nil, err
	}
	c.release() // others need not wait for the directory
	return st, p.leave(ctx)
}

// bounded refuses what is too much for a version.
func (r *Remote) bounded(s *scan) error {
	bytes := s.total().TotalBytes
	if len(s.files) > r.opts.MaxFiles || bytes > r.opts.MaxBytes {
		return r.fail("push", atoll.ErrExhausted, "the directory has %d files of %d bytes, more than %d or %d bytes, which are the bounds: name what is not to be pushed in %s",
			len(s.files), bytes, r.opts.MaxFiles, r.opts.MaxBytes, IgnoreName)
	}
	return nil
}

// alike reports whether nothing seems to have changed since a push.
func (r *Remote) alike(ctx context.Context, fs atoll.FS, s *scan, push string) (bool, error) {
	l, end, err := r.local(ctx, fs)
	if err != nil {
		return false, err
	}
	defer end()
	if l.head.Push != push || len(s.unread) > 0 {
		return false, nil
	}
	gone := false
	for i := range s.files {
		fi := &s.files[i]
		f := l.at(s.path(fi), func(*File) { gone = true })
		if gone || f == nil || !f.untouched(fi, &l.head) {
			return false, nil
		}
	}
	return l.file == nil && l.err == nil, nil
}

// untouched reports whether the file is as the entry of a state says, as far as can be
// told without reading it.
func (f *File) untouched(fi *atoll.FileInfo, head *State) bool {
	if !f.looks(fi) || !f.regular() {
		return f.looks(fi)
	}
	// What was written while the state was made may have been written once more since,
	// within one tick of the clock.
	tick := clockTick
	if f.Nanos <= 0 {
		tick = time.Second
	}
	return fi.Modified.Add(tick).Before(time.Unix(head.LastSynced, head.SyncedNanos))
}

// looks reports whether the file looks as the entry says.
func (f *File) looks(fi *atoll.FileInfo) bool {
	if f.kind() != fi.Type || !f.sameMode(fi.Mode) || f.Target != fi.Target {
		return false
	}
	return !f.regular() || f.Size == fi.Size && f.Modified == fi.Modified.Unix() &&
		(f.Nanos == unknownNanos || f.Nanos == int64(fi.Modified.Nanosecond()))
}

// clockTick is more than the time between two ticks of a kernel's clock, by which
// files are dated.
const clockTick = 20 * time.Millisecond

// report notes what the scan could not see.
func (s *scan) report(st *Stats) {
	for _, u := range s.unread {
		st.problem(u.path, u.err)
	}
}

// A place is where bytes are in the bucket.
type place struct {
	object string
	offset int64
}

// A push is one at work.
type push struct {
	r    *Remote
	ctx  context.Context
	fs   atoll.FS
	scan *scan
	opts PushOptions
	id   string

	was     string           // the push of the latest version
	unseen  bool             // the directory is of another
	large   map[SHA256]place // files of the latest version that have objects of their own
	changed atomic.Bool      // something is not as in that
	state   *spool           // the state file that is made
	packer  *packer

	mu    sync.Mutex
	stats *Stats
}

// count changes the Stats.
func (p *push) count(change func(*Stats)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p.stats)
}

// problem notes a file's error.
func (p *push) problem(path string, err error) {
	p.count(func(st *Stats) { st.problem(path, err) })
}

// run makes the version. The spool with its state file stays open for leave.
func (p *push) run(c *claim) (st *Stats, err error) {
	p.r.opts.step("locked")
	p.scan.report(p.stats)
	now := c.current()
	p.was = now.Push
	remote, err := p.latest(&now)
	if err != nil {
		return nil, err
	}
	defer remote.end()
	if p.state, err = p.r.spool(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			p.state.Close()
		}
	}()
	if err := p.write(remote); err != nil {
		return nil, err
	}
	p.stats.Version = now.Version
	if !p.changed.Load() && now.Version > 0 {
		p.id = now.Push
		return p.stats, nil
	}
	sum, size, err := p.finish()
	if err != nil {
		return nil, err
	}
	version := now.Lock.Version
	if err := c.try(); err != nil {
		return nil, err
	}
	if _, err := p.r.bucket.Put(p.ctx, p.r.stateKey(version), p.state, size, objectstore.Condition{Absent: true}); err != nil {
		if atoll.KindOf(err) == atoll.ErrConflict { // who takes over makes it void
			_ = c.renew() // which finds out
		}
		return nil, err
	}
	p.r.opts.step("state")
	if err := c.commit(version, p.id, sum, size); err != nil {
		return nil, err
	}
	p.r.opts.step("committed")
	if p.unseen {
		p.stats.Replaced = now.Version
	}
	p.stats.Version = version
	return p.stats, nil
}

// A base is the version before.
type base struct {
	*cursor
	version *version
}

func (b *base) end() {
	if b.version != nil {
		b.version.close()
	}
}

// latest opens the latest version. A damaged one is left alone, and nothing of it used.
func (p *push) latest(now *latest) (*base, error) {
	if now.Version == 0 {
		return &base{cursor: none()}, nil
	}
	v, err := p.r.fetch(p.ctx, now.Version, now.SHA256, func(f *File) {
		if f.Size > packed && f.Object != "" && f.SHA256 != (SHA256{}) {
			p.large[f.SHA256] = place{f.Object, f.Offset} // moved files need not travel again
		}
	})
	if errors.Is(err, ErrDamaged) || atoll.KindOf(err) == atoll.ErrNotExist {
		clear(p.large)
		p.r.log.Warn("push: the latest version cannot be used, and all files are pushed anew", "at", p.r.String(), "err", err)
		return &base{cursor: none()}, nil
	}
	if err != nil {
		return nil, err
	}
	for _, bad := range v.bad {
		p.r.log.Warn("push: an entry of the latest version cannot be used", "at", p.r.String(), "err", bad)
	}
	c, err := v.cursor()
	if err != nil {
		v.close()
		return nil, err
	}
	return &base{c, v}, nil
}

// A slot is an entry of the new state in its place, before all of it is known.
type slot struct {
	file   File
	before *File         // in the latest version
	ready  chan struct{} // closed when file is known; nil if it is
	gone   bool          // there is no such file any more
}

// window is how many entries may wait for those before them.
const window = 1024

// readers is how many files are read, or large ones uploaded, at once.
const readers = 16

// write writes the state file, uploading what the bucket does not have.
func (p *push) write(remote *base) error {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	p.packer = newPacker(ctx, p)
	defer p.packer.close()
	work, ctx := errgroup.WithContext(p.packer.ctx)
	slots, jobs := make(chan *slot, window), make(chan *slot)
	work.Go(func() error {
		defer close(slots)
		defer close(jobs)
		return p.plan(ctx, remote, slots, jobs)
	})
	for range readers {
		work.Go(func() error {
			for s := range jobs {
				if err := p.load(ctx, s); err != nil {
					return err
				}
				close(s.ready)
			}
			return nil
		})
	}
	work.Go(func() error { return p.emit(ctx, slots) })
	err := work.Wait()
	if err == nil {
		p.packer.flush()
	} else {
		cancel()
	}
	if loadErr := p.packer.loads.Wait(); loadErr != nil && (err == nil || errors.Is(err, context.Canceled)) {
		err = loadErr
	}
	return err
}

// plan goes through the files, in order, beside what is known of them.
func (p *push) plan(ctx context.Context, remote *base, slots, jobs chan<- *slot) error {
	local, end, err := p.r.local(ctx, p.fs)
	if err != nil {
		return err
	}
	defer end()
	p.unseen = local.head.Push != p.was
	send := func(s *slot, job bool) error {
		if job {
			s.ready = make(chan struct{})
		}
		select {
		case slots <- s:
		case <-ctx.Done():
			return ctx.Err()
		}
		if job {
			select {
			case jobs <- s:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}
	var sendErr error
	passed := func(f *File) { // not here any more
		switch {
		case !p.scan.hidden(f.Path):
			p.changed.Store(true)
			p.count(func(st *Stats) { st.FilesDeleted++ })
		case sendErr == nil:
			sendErr = send(&slot{file: *f, before: f}, false)
		}
	}
	for i := range p.scan.files {
		fi := &p.scan.files[i]
		path := p.scan.path(fi)
		l := local.at(path, nil)
		before := remote.at(path, passed)
		if sendErr != nil {
			return sendErr
		}
		if err := checkPath(path); err != nil {
			p.problem(path, err)
			continue
		}
		s := &slot{file: fileOf(fi, path), before: before}
		known := !s.file.regular()
		if !known && !p.opts.Full && l != nil && before != nil && l.untouched(fi, &local.head) && l.sameBytes(before) && before.regular() && (before.Object != "" || before.Size == 0) {
			s.file.take(before)
			known = true
		}
		if err := send(s, !known); err != nil {
			return err
		}
	}
	remote.rest(passed)
	local.rest(nil)
	return errors.Join(sendErr, remote.err)
}

// fileOf is the entry of a file whose bytes are not known yet.
func fileOf(fi *atoll.FileInfo, path string) File {
	f := File{
		Path: path, Modified: fi.Modified.Unix(), Nanos: int64(fi.Modified.Nanosecond()), Type: fi.Type, Mode: fi.Mode, Target: fi.Target,
		Checksum: md5.Sum([]byte(fi.Target)),
	}
	switch fi.Type {
	case atoll.TypeFile:
		f.Type, f.Size = "", fi.Size
	case atoll.TypeSymlink:
		f.Size = int64(len(fi.Target))
	}
	return f
}

// take gives f the bytes of another entry.
func (f *File) take(g *File) {
	f.Size, f.Checksum, f.SHA256, f.Object, f.Offset = g.Size, g.Checksum, g.SHA256, g.Object, g.Offset
}

// emit writes the entries in order.
func (p *push) emit(ctx context.Context, slots <-chan *slot) error {
	out := newStateWriter(p.state, State{Push: p.id, LastSynced: p.scan.at.Unix(), SyncedNanos: int64(p.scan.at.Nanosecond())})
	done := p.scan.total()
	for s := range slots {
		if s.ready != nil {
			select {
			case <-s.ready:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if s.gone {
			if s.before != nil {
				p.changed.Store(true)
			}
			continue
		}
		if s.before == nil || !s.before.same(&s.file) {
			p.changed.Store(true)
		} else {
			p.count(func(st *Stats) { st.FilesSkipped++ })
		}
		if err := out.put(&s.file); err != nil {
			return err
		}
		if done.Files++; p.opts.Progress != nil {
			done.Bytes += s.file.Size
			p.opts.Progress(done)
		}
	}
	return out.close()
}

// finish waits for the state file to be whole, and returns its checksum and size.
func (p *push) finish() (sum SHA256, size int64, err error) {
	if _, err := p.state.Seek(0, io.SeekStart); err != nil {
		return sum, 0, err
	}
	hash := sha256.New()
	size, err = io.Copy(hash, p.state)
	if err == nil {
		_, err = p.state.Seek(0, io.SeekStart)
	}
	return SHA256(hash.Sum(nil)), size, err
}

// leave writes the state file into the directory.
func (p *push) leave(ctx context.Context) error {
	defer p.state.Close()
	if _, err := p.state.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return p.r.writeLocal(ctx, p.fs, p.state, p.id)
}

// add adds sizes, which somebody may have made up.
func add(a, b int64) int64 {
	if b > 1<<62-a {
		return 1 << 62
	}
	return a + b
}
