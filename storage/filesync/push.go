package filesync

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed46cd37a8/atoll"
)

// PushOptions configure a push.
type PushOptions struct {
	Ignore []string // additional rules, before those of IgnoreName
	// Full reads every file, not only those whose size or time suggests a change.
	Full     bool
	Progress func(Progress) // called now and then, by one goroutine at a time
}

// Push makes the directory's content the latest version, unless that is equal, and
// writes the directory's state file. It waits for other pushes and prunes.
//
// If it fails, the latest version is unchanged; if only the state file could not be
// written, the version exists, and the error says so. Unreadable files are listed in
// Stats.Errors, and keep their state of the version before.
//
// Kinds: those of the bucket and of the file system; ErrConflict if another program has
// taken over (ErrLost); ErrExhausted if the directory exceeds the bounds of the
// Options.
func (r *Remote) Push(ctx context.Context, t Tree, o PushOptions) (st *Stats, err error) {
	begin := time.Now()
	defer func() {
		if st != nil {
			st.Duration = time.Since(begin)
		}
	}()
	fs := t.confinedFS()
	now, err := r.readNewest(ctx)
	if err != nil {
		return nil, err
	}
	s, err := t.scanFiles(ctx, o.Ignore)
	if err != nil {
		return nil, err
	}
	if err := r.checkBounds(s); err != nil {
		return nil, err
	}
	if !o.Full && now.newestNumber() > 0 {
		alike, err := r.isUnchanged(ctx, fs, s, now.newestPush())
		if err != nil {
			return nil, err
		}
		if alike {
			st := &Stats{Version: now.newestNumber(), FilesSkipped: len(s.files)}
			s.reportUnread(st)
			return st, nil
		}
	}
	c, err := r.acquireLease(ctx, now)
	if err != nil {
		return nil, err
	}
	defer c.releaseLease()
	p := &push{r: r, ctx: c.ctx, fs: fs, scan: s, opts: o, stats: &Stats{}, id: atoll.NewID(), large: map[SHA256]location{}}
	st, err = p.runPush(c)
	if cause := context.Cause(c.ctx); err != nil && errors.Is(cause, ErrLost) {
		err = cause
	}
	if err != nil {
		return nil, err
	}
	c.releaseLease() // other programs need not wait for the directory
	return st, p.writeLocalState(ctx)
}

// checkBounds returns ErrExhausted for a directory that is too large for a version.
func (r *Remote) checkBounds(s *scan) error {
	bytes := s.sumFiles().TotalBytes
	if len(s.files) > r.opts.MaxFiles || bytes > r.opts.MaxBytes {
		return r.newError("push", atoll.ErrExhausted, "the directory has %d files of %d bytes, more than the limits of %d files and %d bytes: exclude files in %s",
			len(s.files), bytes, r.opts.MaxFiles, r.opts.MaxBytes, IgnoreName)
	}
	return nil
}

// isUnchanged reports whether nothing seems to have changed since a push.
func (r *Remote) isUnchanged(ctx context.Context, fs atoll.FS, s *scan, push string) (bool, error) {
	l, end, err := r.openLocalState(ctx, fs)
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
		f := l.takeEntry(s.relPath(fi), func(*File) { gone = true })
		if gone || f == nil || !f.seemsUnchanged(fi, &l.head) {
			return false, nil
		}
	}
	return l.file == nil && l.err == nil, nil
}

// reportUnread adds the directories that the scan could not list to the errors.
func (s *scan) reportUnread(st *Stats) {
	for _, u := range s.unread {
		st.addError(u.path, u.err)
	}
}

// A location tells where bytes are in the bucket.
type location struct {
	object string
	offset int64
}

// A push is a running Push.
type push struct {
	r    *Remote
	ctx  context.Context
	fs   atoll.FS
	scan *scan
	opts PushOptions
	id   string

	latestPush string              // the push of the latest version
	base       int64               // the latest version; 0 if there is none
	version    int64               // the version to make
	dry        bool                // only find out whether anything has changed
	packed     int                 // number of files that LayoutFiles cannot store as files
	otherPush  bool                // the local state is of another push
	large      map[SHA256]location // files of the latest version in objects of their own
	changed    atomic.Bool         // something differs from the latest version
	state      *spool              // the new version's state file
	local      *spool              // the directory's
	packer     *packer

	mu    sync.Mutex
	stats *Stats
}

// updateStats changes the Stats.
func (p *push) updateStats(change func(*Stats)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p.stats)
}

// addError records a file's error.
func (p *push) addError(path string, err error) {
	p.updateStats(func(st *Stats) { st.addError(path, err) })
}

// runPush makes the version. The spool of the directory's state file stays open for
// writeLocalState.
func (p *push) runPush(c *lease) (st *Stats, err error) {
	p.r.opts.step("locked")
	p.scan.reportUnread(p.stats)
	now := c.currentRecord()
	p.latestPush, p.base, p.version = now.newestPush(), now.newestNumber(), now.Lock.Version
	if p.state, err = p.r.newSpool(); err != nil {
		return nil, err
	}
	defer p.state.Close()
	if p.local, err = p.r.newSpool(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			p.local.Close()
		}
	}()
	if err := p.writeVersion(&now); err != nil {
		return nil, err
	}
	p.stats.Version = p.base
	if !p.changed.Load() && p.base > 0 {
		p.id = p.latestPush
		return p.stats, nil
	}
	sum, size, err := p.sumState()
	if err != nil {
		return nil, err
	}
	if err := c.beginAttempt(); err != nil {
		return nil, err
	}
	if err := p.putState(p.version, size); err != nil {
		if atoll.KindOf(err) == atoll.ErrConflict { // the program that takes over has made it void
			_ = c.renewLease() // which detects that
		}
		return nil, err
	}
	p.r.opts.step("state")
	if err := c.commitVersion(p.version, p.id, sum, size); err != nil {
		return nil, err
	}
	p.r.opts.step("committed")
	if p.otherPush {
		p.stats.Replaced = p.base
	}
	p.stats.Version = p.version
	return p.stats, nil
}

// A base is the version before.
type base struct {
	*cursor
	version *version
}

func (b *base) closeVersion() {
	if b.version != nil {
		b.version.closeSpool()
	}
}

// openLatest opens the latest version. If it is damaged, the push uses nothing of it.
func (p *push) openLatest(now *latestRecord) (*base, error) {
	if now.newestNumber() == 0 {
		return &base{cursor: emptyCursor()}, nil
	}
	v, err := p.r.fetchState(p.ctx, now.newestNumber(), now.newestSum(), func(f *File) {
		if f.Size > maxPackedSize && f.Object != "" && f.SHA256 != (SHA256{}) {
			p.large[f.SHA256] = location{f.Object, f.Offset} // moved files need not be uploaded again
		}
	})
	if errors.Is(err, ErrDamaged) || atoll.KindOf(err) == atoll.ErrNotExist {
		clear(p.large)
		p.r.log.Warn("push: the latest version is unusable; pushing all files again", "at", p.r.String(), "err", err)
		return &base{cursor: emptyCursor()}, nil
	}
	if err != nil {
		return nil, err
	}
	for _, bad := range v.bad {
		p.r.log.Warn("push: ignoring a bad entry of the latest version", "at", p.r.String(), "err", bad)
	}
	c, err := v.openCursor()
	if err != nil {
		v.closeSpool()
		return nil, err
	}
	return &base{c, v}, nil
}

// A pendingEntry is an entry of the new state, in order, that may still lack its
// content.
type pendingEntry struct {
	file   File
	before *File // in the latest version
	local  *File // in the local state, if that says more than the file does
	own    *File // for the local state; nil means file
	copy   bool  // the version before has the content

	resolved bool          // resolveMark has seen it
	ready    chan struct{} // closed when file is complete; nil if it is
	gone     bool          // the file no longer exists
}

// maxPending is the most entries that wait for earlier ones.
const maxPending = 1024

// maxReaders is the number of files read, or large ones uploaded, at once.
const maxReaders = 16

// writeState writes the state file, and uploads content that the bucket lacks.
func (p *push) writeState(remote *base) error {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	p.packer = newPacker(ctx, p)
	defer p.packer.discardObject()
	work, ctx := errgroup.WithContext(p.packer.ctx)
	slots, jobs := make(chan *pendingEntry, maxPending), make(chan *pendingEntry)
	work.Go(func() error {
		defer close(slots)
		defer close(jobs)
		return p.planEntries(ctx, remote, slots, jobs)
	})
	for range maxReaders {
		work.Go(func() error {
			for s := range jobs {
				if err := p.loadFile(ctx, s); err != nil {
					return err
				}
				close(s.ready)
			}
			return nil
		})
	}
	work.Go(func() error { return p.writeEntries(ctx, slots) })
	err := work.Wait()
	if err == nil {
		p.packer.flushObject()
	} else {
		cancel()
	}
	if loadErr := p.packer.loads.Wait(); loadErr != nil && (err == nil || errors.Is(err, context.Canceled)) {
		err = loadErr
	}
	return err
}

// planEntries walks the files in order, in step with the local state and the latest
// version.
func (p *push) planEntries(ctx context.Context, remote *base, slots, jobs chan<- *pendingEntry) error {
	local, end, err := p.r.openLocalState(ctx, p.fs)
	if err != nil {
		return err
	}
	defer end()
	p.otherPush = local.head.Push != p.latestPush
	send := func(s *pendingEntry, job bool) error {
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
	passed := func(f *File) { // not in the directory
		s := &pendingEntry{file: *f, before: f}
		if l := local.takeEntry(f.Path, nil); l != nil && (l.mark == markFailed || l.mark == markMissing) {
			s.own = l
		}
		switch {
		case s.own == nil && !p.scan.isHidden(f.Path):
			p.changed.Store(true)
			p.updateStats(func(st *Stats) { st.FilesDeleted++ })
		case sendErr == nil:
			s.copy = p.needsCopy(f)
			sendErr = send(s, s.copy)
		}
	}
	for i := range p.scan.files {
		fi := &p.scan.files[i]
		path := p.scan.relPath(fi)
		before := remote.takeEntry(path, passed)
		l := local.takeEntry(path, nil)
		if sendErr != nil {
			return sendErr
		}
		if err := checkPath(path); err != nil {
			p.addError(path, err)
			continue
		}
		s := &pendingEntry{file: fileOf(fi, path), before: before, local: l}
		known := !s.file.isRegular()
		if !known && !p.opts.Full && (p.dry || p.r.opts.Layout != LayoutFiles) && l != nil && before != nil && l.seemsUnchanged(fi, &local.head) && l.sameBytes(before) && before.isRegular() && (p.dry || before.Object != "" || before.Size == 0) {
			s.file.copyContent(before)
			known = true
		}
		if !s.file.isRegular() {
			p.resolveMark(s)
			s.copy = s.own != nil && !s.gone && p.needsCopy(&s.file)
			known = !s.copy
		}
		if err := send(s, !known); err != nil {
			return err
		}
	}
	remote.skipRest(passed)
	local.skipRest(nil)
	return errors.Join(sendErr, remote.err)
}

// copyContent copies the content's description from another entry.
func (f *File) copyContent(g *File) {
	f.Size, f.Checksum, f.SHA256, f.Object, f.Offset = g.Size, g.Checksum, g.SHA256, g.Object, g.Offset
}

// writeEntries writes the entries in order.
func (p *push) writeEntries(ctx context.Context, slots <-chan *pendingEntry) error {
	out, local := p.newVersionWriter(), newStateWriter(p.local, p.scan.newLocalHead(p.id))
	done := p.scan.sumFiles()
	for s := range slots {
		if s.ready != nil {
			select {
			case <-s.ready:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		p.resolveMark(s)
		if s.own != nil {
			_ = local.writeEntry(s.own) // finishState returns the error
		}
		if s.gone {
			if s.before != nil {
				p.changed.Store(true)
			}
			continue
		}
		if s.before == nil || !s.before.sameEntry(&s.file) {
			p.changed.Store(true)
		} else {
			p.updateStats(func(st *Stats) { st.FilesSkipped++ })
		}
		if s.own == nil {
			_ = local.writeEntry(&s.file) // finishState returns the error
		}
		s.file.clearLocal()
		if err := out.writeEntry(&s.file); err != nil {
			return err
		}
		if done.Files++; p.opts.Progress != nil {
			done.Bytes += s.file.Size
			p.opts.Progress(done)
		}
	}
	return errors.Join(out.finishState(), local.finishState())
}

// sumState returns the checksum and size of the finished state file.
func (p *push) sumState() (sum SHA256, size int64, err error) {
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

// writeLocalState writes the state file into the directory.
func (p *push) writeLocalState(ctx context.Context) error {
	defer p.local.Close()
	if _, err := p.local.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return p.r.writeLocal(ctx, p.fs, p.local, p.id)
}

// addSizes adds two sizes without overflow, since a sandbox may have made them up.
func addSizes(a, b int64) int64 {
	if b > 1<<62-a {
		return 1 << 62
	}
	return a + b
}
