package dirfs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path"
	"strings"
	"unsafe"

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
		defer w.notify.Close()
		w.yield = yield
		if !yield(atoll.FileEvent{Type: atoll.FileSynced}, nil) {
			return
		}
		defer context.AfterFunc(ctx, func() { w.notify.Close() })()
		err = w.readEvents(ctx)
		if err != nil && ctx.Err() != nil {
			err = ctx.Err()
		}
		if err != nil {
			yield(atoll.FileEvent{}, wrapError("watch", name, err))
		}
	}
}

const watchMask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// A watch is one call of Watch. It has no goroutine: unread events wait in the
// kernel, whose queue is bounded.
type watch struct {
	f         *FS
	notify    *os.File
	root      location
	recursive bool
	dirs      map[int32]location // by watch descriptor
	left      budget             // for dirs, and for directories still to be watched
	yield     func(atoll.FileEvent, error) bool
	written   uint32 // cookie of the rename of a temporary file to its final name
	last      atoll.FileEvent
}

// errBreak says that the caller has ended the iteration.
var errBreak = errors.New("break")

func (f *FS) newWatch(ctx context.Context, name string, recursive bool) (*watch, error) {
	at, err := f.resolveName(ctx, "watch", name)
	if err != nil {
		return nil, err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, limitError(err)
	}
	w := &watch{f: f, notify: os.NewFile(uintptr(fd), "inotify"), root: at, recursive: recursive, dirs: map[int32]location{}, left: f.most}
	err = f.inTree(at.rel, true, func(rel string) error {
		w.root.rel = rel
		return w.addTree(ctx, w.root, false)
	})
	if err != nil {
		w.notify.Close()
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
	fd, err := w.notify.SyscallConn()
	if err != nil {
		return err
	}
	var wd int
	cerr := fd.Control(func(notify uintptr) {
		wd, err = unix.InotifyAddWatch(int(notify), fmt.Sprintf("/proc/self/fd/%d", file.Fd()), watchMask)
	})
	if cerr != nil {
		return cerr
	}
	if err != nil {
		return limitError(err)
	}
	w.forgetWatch(int32(wd)) // under another name, perhaps
	w.dirs[int32(wd)] = dir
	return nil
}

// forgetWatch reverts watchDir's entry in dirs.
func (w *watch) forgetWatch(wd int32) {
	if dir, ok := w.dirs[wd]; ok {
		w.left.releaseEntry(dir.nameBytes())
		delete(w.dirs, wd)
	}
}

func limitError(err error) error {
	if !isAny(err, unix.ENOSPC, unix.EMFILE) {
		return err
	}
	return atoll.Errorf("watch", "", atoll.ErrExhausted, "%w (raise fs.inotify.max_user_watches and max_user_instances)", err)
}

// readEvents reads events until the caller ends the iteration, which is no error.
func (w *watch) readEvents(ctx context.Context) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := w.notify.Read(buf)
		if err != nil {
			return err
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			ev, name, size := parseEvent(b)
			b = b[size:]
			if err := w.handleEvent(ctx, ev, name); err == errBreak {
				return nil
			} else if err != nil {
				return err
			}
		}
		w.last = atoll.FileEvent{} // merge equal events within one read only
	}
}

// parseEvent parses one event, in the machine's byte order.
func parseEvent(b []byte) (ev unix.InotifyEvent, name string, size int) {
	ev = unix.InotifyEvent{
		Wd:     int32(binary.NativeEndian.Uint32(b[unsafe.Offsetof(ev.Wd):])),
		Mask:   binary.NativeEndian.Uint32(b[unsafe.Offsetof(ev.Mask):]),
		Cookie: binary.NativeEndian.Uint32(b[unsafe.Offsetof(ev.Cookie):]),
		Len:    binary.NativeEndian.Uint32(b[unsafe.Offsetof(ev.Len):]),
	}
	size = unix.SizeofInotifyEvent + int(ev.Len)
	raw, _, _ := bytes.Cut(b[unix.SizeofInotifyEvent:size], []byte{0})
	return ev, string(raw), size
}

func (w *watch) handleEvent(ctx context.Context, ev unix.InotifyEvent, name string) error {
	if ev.Mask&unix.IN_Q_OVERFLOW != 0 {
		return atoll.Errorf("watch", w.root.abs, atoll.ErrUnavailable, "the reader is too slow: events were lost")
	}
	dir, ok := w.dirs[ev.Wd]
	if !ok {
		return nil
	}
	if ev.Mask&unix.IN_IGNORED != 0 {
		w.forgetWatch(ev.Wd)
		return nil
	}
	if name == "" {
		return w.handleSelf(ev, dir)
	}
	at := dir.joinName(name)
	if isTemp(at) {
		if ev.Mask&unix.IN_MOVED_FROM != 0 {
			w.written = ev.Cookie
		}
		return nil
	}
	if ev.Mask&(unix.IN_MODIFY|unix.IN_ATTRIB) != 0 && w.isUnnamed(at, name) {
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
func (w *watch) handleSelf(ev unix.InotifyEvent, dir location) error {
	if dir == w.root && ev.Mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0 {
		return atoll.E("watch", w.root.abs, atoll.ErrNotExist, nil)
	}
	return nil
}

func (w *watch) handleChild(ctx context.Context, ev unix.InotifyEvent, at location) error {
	ok, isDir := true, ev.Mask&unix.IN_ISDIR != 0
	switch {
	case ev.Mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		ok = w.emitEvent(atoll.FileCreated, at)
		if ok && ev.Mask&unix.IN_MOVED_TO != 0 && ev.Cookie == w.written {
			ok = w.emitEvent(atoll.FileWritten, at)
		}
		if ok && isDir && w.recursive {
			if err := w.addTree(ctx, at, true); err != nil && !isGone(err) {
				return err
			}
		}
	case ev.Mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0:
		if isDir {
			w.dropTree(at)
		}
		ok = w.emitEvent(atoll.FileRemoved, at)
	case ev.Mask&unix.IN_MODIFY != 0:
		ok = w.emitEvent(atoll.FileWritten, at)
	case ev.Mask&unix.IN_ATTRIB != 0:
		ok = w.emitEvent(atoll.FileChanged, at)
	}
	if !ok {
		return errBreak
	}
	return nil
}

// dropTree ends the watches at and below a directory that was moved or removed.
func (w *watch) dropTree(at location) {
	fd, err := w.notify.SyscallConn()
	if err != nil {
		return
	}
	_ = fd.Control(func(notify uintptr) {
		for wd, dir := range w.dirs {
			if _, ok := Below(at.abs, dir.abs); ok {
				_, _ = unix.InotifyRmWatch(int(notify), uint32(wd)) // the kernel has already ended that of a removed directory
				w.forgetWatch(wd)
			}
		}
	})
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
