package dirfs

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"path"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
)

// Watch implements atoll.FS. It follows a link given as name. It ends with
// ErrExhausted if there are too many directories to watch, with ErrUnavailable if
// the reader is too slow for the kernel's queue, and with ErrNotExist if the
// directory itself is removed or moved.
//
// It watches directories by descriptor, and not by name as a library would, so that
// a link in the place of a directory leads no watch out of the tree.
func (f *FS) Watch(ctx context.Context, name string, recursive bool) iter.Seq2[atoll.FileEvent, error] {
	return func(yield func(atoll.FileEvent, error) bool) {
		w, err := f.newWatch(ctx, name, recursive)
		if err != nil {
			yield(atoll.FileEvent{}, wrapError("watch", name, err))
			return
		}
		defer releaseInotify(w.notify, w)
		w.yield = yield
		if !yield(atoll.FileEvent{Type: atoll.FileSynced}, nil) {
			return
		}
		if err := w.followEvents(ctx); err != nil {
			yield(atoll.FileEvent{}, wrapError("watch", name, err))
		}
	}
}

// A watch is one call of Watch.
type watch struct {
	f         *FS
	notify    *inotify
	root      location
	recursive bool
	dirs      map[int32]location // by watch descriptor
	left      budget             // for dirs, and for directories still to be watched
	yield     func(atoll.FileEvent, error) bool
	written   uint32 // cookie of the rename of a temporary file to its final name
	last      atoll.FileEvent

	queued chan struct{} // has a value if there is something in queue, or lost is set
	mu     sync.Mutex
	queue  []event
	lost   bool // events are missing after those in queue
}

// queueEvent adds an event for followEvents.
func (w *watch) queueEvent(ev event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if last := len(w.queue) - 1; last >= 0 && w.queue[last] == ev {
		return // the kernel merges equal events that wait, too
	}
	if w.lost = w.lost || len(w.queue) == maxQueued; !w.lost {
		w.queue = append(w.queue, ev)
	}
	w.signalQueue()
}

// loseEvents ends the watch after the events in its queue.
func (w *watch) loseEvents() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lost = true
	w.signalQueue()
}

func (w *watch) signalQueue() {
	select {
	case w.queued <- struct{}{}:
	default:
	}
}

// takeQueue returns the queue, which is empty then.
func (w *watch) takeQueue() (queue []event, lost bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	queue, w.queue = w.queue, nil
	return queue, w.lost
}

// errBreak says that the caller has ended the iteration.
var errBreak = errors.New("break")

func (f *FS) newWatch(ctx context.Context, name string, recursive bool) (*watch, error) {
	at, err := f.resolveName(ctx, "watch", name)
	if err != nil {
		return nil, err
	}
	notify, err := acquireInotify(f.roots[1])
	if err != nil {
		return nil, err
	}
	w := &watch{f: f, notify: notify, root: at, recursive: recursive, dirs: map[int32]location{}, left: f.most, queued: make(chan struct{}, 1)}
	err = f.inTree(at.rel, true, func(rel string) error {
		w.root.rel = rel
		return w.addTree(ctx, w.root, false)
	})
	if err != nil {
		releaseInotify(notify, w)
		return nil, err
	}
	return w, nil
}

// addTree watches a directory and, if recursive, those below it. If tell is set, it
// reports existing files, which were created before the watch.
func (w *watch) addTree(ctx context.Context, top location, tell bool) error {
	below, err := w.enqueueDir(nil, top)
	for err == nil && len(below) > 0 {
		dir := below[len(below)-1]
		below, err = w.addDir(ctx, dir, below[:len(below)-1], tell)
		if dir != top && isGone(err) {
			err = nil
		}
	}
	for _, dir := range below {
		w.left.releaseEntry(dir.nameBytes())
	}
	return err
}

// enqueueDir adds a directory to those still to be watched.
func (w *watch) enqueueDir(below []location, dir location) ([]location, error) {
	if !w.left.reserveEntry(dir.nameBytes()) {
		return below, errPaths
	}
	return append(below, dir), nil
}

// nameBytes returns the number of bytes of the names.
func (p location) nameBytes() int { return len(p.rel) + len(p.abs) }

// isGone reports whether a watch may skip a directory below the root because of err:
// it no longer exists, or this process may not read it.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || isAny(err, unix.ENOTDIR) || isEscape(err)
}

// addDir watches a directory and, if recursive, adds its subdirectories to below.
func (w *watch) addDir(ctx context.Context, dir location, below []location, tell bool) ([]location, error) {
	err := ctx.Err()
	if err == nil {
		err = w.watchDir(dir)
	}
	if err != nil {
		w.left.releaseEntry(dir.nameBytes())
		return below, err
	}
	if !w.recursive {
		return below, nil
	}
	err = w.f.readDir(dir.rel, func(info fs.FileInfo) (err error) {
		at := dir.joinName(info.Name())
		if tell && !isTemp(at) && !w.emitEvent(atoll.FileCreated, at) {
			return errBreak
		}
		if info.IsDir() {
			below, err = w.enqueueDir(below, at)
		}
		return err
	})
	return below, err
}

// watchDir tells the kernel to watch a directory.
func (w *watch) watchDir(dir location) error {
	file, err := w.f.tree.OpenFile(dir.rel, openFlags, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	wd, err := w.notify.addDir(w, file)
	if err != nil {
		return err
	}
	w.forgetWatch(wd) // under another name, perhaps
	w.dirs[wd] = dir
	return nil
}

// forgetWatch reverts watchDir's entry in dirs.
func (w *watch) forgetWatch(wd int32) {
	if dir, ok := w.dirs[wd]; ok {
		w.left.releaseEntry(dir.nameBytes())
		delete(w.dirs, wd)
	}
}

// followEvents handles events until ctx ends or the caller ends the iteration, which is no error.
func (w *watch) followEvents(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.queued:
		}
		queue, lost := w.takeQueue()
		for _, ev := range queue {
			if err := w.handleEvent(ctx, ev); err == errBreak {
				return nil
			} else if err != nil {
				return err
			}
		}
		if lost {
			return atoll.Errorf("watch", w.root.abs, atoll.ErrUnavailable, "the reader is too slow: events were lost")
		}
		w.last = atoll.FileEvent{} // merge equal events within one queue only
	}
}

func (w *watch) handleEvent(ctx context.Context, ev event) error {
	dir, ok := w.dirs[ev.wd]
	if !ok {
		return nil
	}
	if ev.mask&unix.IN_IGNORED != 0 {
		w.forgetWatch(ev.wd)
		return nil
	}
	name := ev.name
	if name == "" {
		return w.handleSelf(ev, dir)
	}
	at := dir.joinName(name)
	if isTemp(at) {
		if ev.mask&unix.IN_MOVED_FROM != 0 {
			w.written = ev.cookie
		}
		return nil
	}
	if ev.mask&(unix.IN_MODIFY|unix.IN_ATTRIB) != 0 && w.isUnnamed(at, name) {
		return nil
	}
	return w.handleChild(ctx, ev, at)
}

// isUnnamed reports whether an event is about an unnamed file: the kernel reports
// those too, as "#" and a number.
func (w *watch) isUnnamed(at location, name string) bool {
	digits, ok := strings.CutPrefix(name, "#")
	if !ok || strings.Trim(digits, "0123456789") != "" {
		return false
	}
	_, err := w.f.tree.Lstat(at.rel)
	return errors.Is(err, fs.ErrNotExist)
}

// handleSelf handles an event about a watched directory itself. It ignores
// directories below the root: the watches of their parents report them.
func (w *watch) handleSelf(ev event, dir location) error {
	if dir == w.root && ev.mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0 {
		return atoll.E("watch", w.root.abs, atoll.ErrNotExist, nil)
	}
	return nil
}

func (w *watch) handleChild(ctx context.Context, ev event, at location) error {
	ok, isDir := true, ev.mask&unix.IN_ISDIR != 0
	switch {
	case ev.mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		ok = w.emitEvent(atoll.FileCreated, at)
		if ok && ev.mask&unix.IN_MOVED_TO != 0 && ev.cookie == w.written {
			ok = w.emitEvent(atoll.FileWritten, at)
		}
		if ok && isDir && w.recursive {
			if err := w.addTree(ctx, at, true); err != nil && !isGone(err) {
				return err
			}
		}
	case ev.mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0:
		if isDir {
			w.dropTree(at)
		}
		ok = w.emitEvent(atoll.FileRemoved, at)
	case ev.mask&unix.IN_MODIFY != 0:
		ok = w.emitEvent(atoll.FileWritten, at)
	case ev.mask&unix.IN_ATTRIB != 0:
		ok = w.emitEvent(atoll.FileChanged, at)
	}
	if !ok {
		return errBreak
	}
	return nil
}

// dropTree ends the watches at and below a directory that was moved or removed.
func (w *watch) dropTree(at location) {
	for wd, dir := range w.dirs {
		if _, ok := Below(at.abs, dir.abs); ok {
			w.notify.removeDir(w, wd)
			w.forgetWatch(wd)
		}
	}
}

// emitEvent yields an event, unless it equals the one before. It returns false to end
// the iteration.
func (w *watch) emitEvent(t atoll.FileEventType, at location) bool {
	ev := atoll.FileEvent{Type: t, Path: at.abs}
	if ev == w.last {
		return true
	}
	w.last = ev
	return w.yield(ev, nil)
}

// isTemp reports whether a file is a temporary file of Write, which events omit.
func isTemp(at location) bool { return atoll.IsTempName(path.Base(at.abs)) }
