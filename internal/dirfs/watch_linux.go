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

// Watch implements atoll.FS. A link given as name is followed. It ends with
// ErrExhausted when there are too many directories to watch, with
// ErrUnavailable when the reader is too slow for the kernel's queue, and with
// ErrNotExist when the directory itself is removed or moved.
//
// Directories are watched by descriptor and not by name, as a library would,
// so that a link put in the place of a directory leads no watch out of the tree.
func (f *FS) Watch(ctx context.Context, name string, recursive bool) iter.Seq2[atoll.FileEvent, error] {
	return func(yield func(atoll.FileEvent, error) bool) {
		w, err := f.newWatch(ctx, name, recursive)
		if err != nil {
			yield(atoll.FileEvent{}, fail("watch", name, err))
			return
		}
		defer w.notify.Close()
		w.yield = yield
		if !yield(atoll.FileEvent{Type: atoll.FileSynced}, nil) {
			return
		}
		defer context.AfterFunc(ctx, func() { w.notify.Close() })()
		err = w.run(ctx)
		if err != nil && ctx.Err() != nil {
			err = ctx.Err()
		}
		if err != nil {
			yield(atoll.FileEvent{}, fail("watch", name, err))
		}
	}
}

const watchMask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// A watch is one call of Watch. It has no goroutine: what its reader does not
// take waits in the kernel, whose queue is bounded.
type watch struct {
	f         *FS
	notify    *os.File
	root      place
	recursive bool
	dirs      map[int32]place // by watch descriptor
	left      room            // for them, and for those that are still to be watched
	yield     func(atoll.FileEvent, error) bool
	written   uint32 // cookie of the temporary file that is getting its name
	last      atoll.FileEvent
}

// errBreak says that the caller has broken off.
var errBreak = errors.New("break")

func (f *FS) newWatch(ctx context.Context, name string, recursive bool) (*watch, error) {
	at, err := f.locate(ctx, "watch", name)
	if err != nil {
		return nil, err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, limitError(err)
	}
	w := &watch{f: f, notify: os.NewFile(uintptr(fd), "inotify"), root: at, recursive: recursive, dirs: map[int32]place{}, left: f.most}
	err = f.inTree(at.rel, true, func(rel string) error {
		w.root.rel = rel
		return w.add(ctx, w.root, false)
	})
	if err != nil {
		w.notify.Close()
		return nil, err
	}
	return w, nil
}

// add watches a directory and, if recursive, those below it. With tell it
// reports what is there already: it came before the watch.
func (w *watch) add(ctx context.Context, top place, tell bool) error {
	below, err := w.later(nil, top)
	for err == nil && len(below) > 0 {
		dir := below[len(below)-1]
		below, err = w.addOne(ctx, dir, below[:len(below)-1], tell)
		if dir != top && gone(err) {
			err = nil
		}
	}
	for _, dir := range below {
		w.left.give(dir.size())
	}
	return err
}

// later adds a directory to those that are to be watched.
func (w *watch) later(below []place, dir place) ([]place, error) {
	if !w.left.take(dir.size()) {
		return below, errPaths
	}
	return append(below, dir), nil
}

// size is how many bytes the names have.
func (p place) size() int { return len(p.rel) + len(p.abs) }

// gone reports whether a directory below the root may be passed over: it is
// there no longer, or it is not for this process to see.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || isAny(err, unix.ENOTDIR) || escapes(err)
}

// addOne watches a directory and, if recursive, adds those in it to below.
func (w *watch) addOne(ctx context.Context, dir place, below []place, tell bool) ([]place, error) {
	err := ctx.Err()
	if err == nil {
		err = w.watch(dir)
	}
	if err != nil {
		w.left.give(dir.size())
		return below, err
	}
	if !w.recursive {
		return below, nil
	}
	err = w.f.readDir(dir.rel, func(info fs.FileInfo) (err error) {
		at := dir.join(info.Name())
		if tell && !isTemp(at) && !w.tell(atoll.FileCreated, at) {
			return errBreak
		}
		if info.IsDir() {
			below, err = w.later(below, at)
		}
		return err
	})
	return below, err
}

// watch has the kernel watch a directory.
func (w *watch) watch(dir place) error {
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
	w.forget(int32(wd)) // it may have had another name
	w.dirs[int32(wd)] = dir
	return nil
}

// forget takes back what watch has noted.
func (w *watch) forget(wd int32) {
	if dir, ok := w.dirs[wd]; ok {
		w.left.give(dir.size())
		delete(w.dirs, wd)
	}
}

func limitError(err error) error {
	if !isAny(err, unix.ENOSPC, unix.EMFILE) {
		return err
	}
	return atoll.Errorf("watch", "", atoll.ErrExhausted, "%w (raise fs.inotify.max_user_watches and max_user_instances)", err)
}

// run reads events until the caller breaks off, which is no error.
func (w *watch) run(ctx context.Context) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := w.notify.Read(buf)
		if err != nil {
			return err
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			ev, name, size := parse(b)
			b = b[size:]
			if err := w.handle(ctx, ev, name); err == errBreak {
				return nil
			} else if err != nil {
				return err
			}
		}
		w.last = atoll.FileEvent{} // equal events are merged within one read only
	}
}

// parse reads one event; the kernel's format is the machine's.
func parse(b []byte) (ev unix.InotifyEvent, name string, size int) {
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

func (w *watch) handle(ctx context.Context, ev unix.InotifyEvent, name string) error {
	if ev.Mask&unix.IN_Q_OVERFLOW != 0 {
		return atoll.Errorf("watch", w.root.abs, atoll.ErrUnavailable, "the reader is too slow: events were lost")
	}
	dir, ok := w.dirs[ev.Wd]
	if !ok {
		return nil
	}
	if ev.Mask&unix.IN_IGNORED != 0 {
		w.forget(ev.Wd)
		return nil
	}
	if name == "" {
		return w.handleSelf(ev, dir)
	}
	at := dir.join(name)
	if isTemp(at) {
		if ev.Mask&unix.IN_MOVED_FROM != 0 {
			w.written = ev.Cookie
		}
		return nil
	}
	if ev.Mask&(unix.IN_MODIFY|unix.IN_ATTRIB) != 0 && w.unnamed(at, name) {
		return nil
	}
	return w.handleChild(ctx, ev, at)
}

// unnamed reports whether an event is about a file that has no name: the kernel
// tells of those too, as "#" and a number.
func (w *watch) unnamed(at place, name string) bool {
	digits, ok := strings.CutPrefix(name, "#")
	if !ok || strings.Trim(digits, "0123456789") != "" {
		return false
	}
	_, err := w.f.tree.Lstat(at.rel)
	return errors.Is(err, fs.ErrNotExist)
}

// handleSelf is about a watched directory itself; its parent's watch tells
// about those below the root.
func (w *watch) handleSelf(ev unix.InotifyEvent, dir place) error {
	if dir == w.root && ev.Mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0 {
		return atoll.E("watch", w.root.abs, atoll.ErrNotExist, nil)
	}
	return nil
}

func (w *watch) handleChild(ctx context.Context, ev unix.InotifyEvent, at place) error {
	ok, isDir := true, ev.Mask&unix.IN_ISDIR != 0
	switch {
	case ev.Mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		ok = w.tell(atoll.FileCreated, at)
		if ok && ev.Mask&unix.IN_MOVED_TO != 0 && ev.Cookie == w.written {
			ok = w.tell(atoll.FileWritten, at)
		}
		if ok && isDir && w.recursive {
			if err := w.add(ctx, at, true); err != nil && !gone(err) {
				return err
			}
		}
	case ev.Mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0:
		if isDir {
			w.drop(at)
		}
		ok = w.tell(atoll.FileRemoved, at)
	case ev.Mask&unix.IN_MODIFY != 0:
		ok = w.tell(atoll.FileWritten, at)
	case ev.Mask&unix.IN_ATTRIB != 0:
		ok = w.tell(atoll.FileChanged, at)
	}
	if !ok {
		return errBreak
	}
	return nil
}

// drop ends the watches at and below a directory that has left its place.
func (w *watch) drop(at place) {
	fd, err := w.notify.SyscallConn()
	if err != nil {
		return
	}
	_ = fd.Control(func(notify uintptr) {
		for wd, dir := range w.dirs {
			if _, ok := Below(at.abs, dir.abs); ok {
				_, _ = unix.InotifyRmWatch(int(notify), uint32(wd)) // a removed one is gone already
				w.forget(wd)
			}
		}
	})
}

// tell yields an event, unless it says the same as the one before.
func (w *watch) tell(t atoll.FileEventType, at place) bool {
	ev := atoll.FileEvent{Type: t, Path: at.abs}
	if ev == w.last {
		return true
	}
	w.last = ev
	return w.yield(ev, nil)
}

// isTemp reports whether a file is on its way, and not to be shown.
func isTemp(at place) bool { return atoll.IsTempName(path.Base(at.abs)) }
