package dirfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
)

const watchMask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// maxQueued is the number of events that wait for a slow reader, as many as wait in the kernel by default.
const maxQueued = 16384

// maxInstances is the most instances of inotify of this process: a user has only 128 of them by default, which also the
// daemons of this machine need. The watches of one directory of the host, such as a volume, share one.
const maxInstances = 16

// An inotify is an instance of the kernel's inotify. It exists while there are watches.
type inotify struct {
	slot *slot
	file *os.File
	conn syscall.RawConn
	done chan struct{} // closed when readLoop has returned

	perWatch, total int // the most directories of one watch, and of all

	mu   sync.Mutex
	dirs map[int32]map[*watch]struct{} // the watches of a directory, by watch descriptor
	buf  []byte
}

// A slot has an instance, and the number of its watches.
type slot struct {
	mu      sync.Mutex
	notify  *inotify
	watches int
}

// The instances of this process, and the directories that they watch.
var (
	slots       [maxInstances]slot
	watchedDirs atomic.Int64
)

// acquireInotify returns the instance for the directory root of the host. The caller releases it.
func acquireInotify(root string) (*inotify, error) {
	s := &slots[crc32.ChecksumIEEE([]byte(root))%maxInstances]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.notify == nil {
		n, err := openInotify()
		if err != nil {
			return nil, err
		}
		n.slot, s.notify = s, n
	}
	s.watches++
	return s.notify, nil
}

// releaseInotify reverts acquireInotify for w, and forgets its directories.
func releaseInotify(n *inotify, w *watch) {
	for wd := range w.dirs {
		n.removeDir(w, wd)
	}
	s := n.slot
	s.mu.Lock()
	s.watches--
	last := s.watches == 0
	if last {
		s.notify = nil
		n.file.Close()
	}
	s.mu.Unlock()
	if last {
		<-n.done
	}
}

func openInotify() (*inotify, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, limitError(err)
	}
	n := &inotify{file: os.NewFile(uintptr(fd), "inotify"), dirs: map[int32]map[*watch]struct{}{}, done: make(chan struct{}), buf: make([]byte, 64<<10)}
	n.perWatch, n.total = watchLimits()
	if n.conn, err = n.file.SyscallConn(); err != nil {
		n.file.Close()
		return nil, err
	}
	go n.readLoop()
	return n, nil
}

// watchLimits returns the most directories of one watch and of all watches, which leave some of this user's to others.
func watchLimits() (perWatch, total int) {
	text, _ := os.ReadFile("/proc/sys/fs/inotify/max_user_watches")
	most, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil { // not there in every sandbox
		return maxEntries, maxEntries
	}
	return max(most/4, 1), max(most/2, 1)
}

// addDir adds an open directory to those of w, and returns its watch descriptor. w gets no event from before.
func (n *inotify) addDir(w *watch, dir *os.File) (wd int32, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(w.dirs) >= n.perWatch || watchedDirs.Load() >= int64(n.total) {
		return 0, atoll.Errorf("watch", "", atoll.ErrExhausted,
			"too many directories: one watch may have %d, and all together %d; watch a smaller directory, or raise fs.inotify.max_user_watches", n.perWatch, n.total)
	}
	cerr := n.conn.Control(func(fd uintptr) {
		n.readPending(fd)
		var id int
		id, err = unix.InotifyAddWatch(int(fd), fmt.Sprintf("/proc/self/fd/%d", dir.Fd()), watchMask)
		wd = int32(id)
	})
	if err = errors.Join(err, cerr); err != nil {
		return 0, limitError(err)
	}
	if n.dirs[wd] == nil {
		n.dirs[wd] = map[*watch]struct{}{}
		watchedDirs.Add(1)
	}
	n.dirs[wd][w] = struct{}{}
	return wd, nil
}

// removeDir reverts addDir.
func (n *inotify) removeDir(w *watch, wd int32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.dirs[wd], w)
	if watches, ok := n.dirs[wd]; ok && len(watches) == 0 {
		n.forgetDir(wd)
		_ = n.conn.Control(func(fd uintptr) {
			_, _ = unix.InotifyRmWatch(int(fd), uint32(wd)) // fails if the directory has been removed
		})
	}
}

// readLoop passes events on until the file is closed.
func (n *inotify) readLoop() {
	defer close(n.done)
	_ = n.conn.Read(func(fd uintptr) bool {
		for n.readSome(fd) {
		}
		return false
	})
}

// readSome is readEvents, and lets others have the lock between two calls.
func (n *inotify) readSome(fd uintptr) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.readEvents(fd)
}

// readPending reads the events that are there now, but not those that arrive meanwhile. n.mu is held.
func (n *inotify) readPending(fd uintptr) {
	size, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ) // also called FIONREAD
	for err == nil && size > 0 && n.readEvents(fd) {
		size -= len(n.buf) - maxEvent // what a read returns at least, if there is more
	}
}

// maxEvent is the size of the longest event.
const maxEvent = unix.SizeofInotifyEvent + unix.NAME_MAX + 1

// forgetDir ends the entry of a directory. n.mu is held.
func (n *inotify) forgetDir(wd int32) {
	delete(n.dirs, wd)
	watchedDirs.Add(-1)
}

// readEvents reads events, if there are any, and passes them on. n.mu is held.
func (n *inotify) readEvents(fd uintptr) bool {
	size, err := unix.Read(int(fd), n.buf)
	if err != nil || size <= 0 {
		return err == unix.EINTR
	}
	for b := n.buf[:size]; len(b) >= unix.SizeofInotifyEvent; {
		ev, used := parseEvent(b)
		b = b[used:]
		if ev.mask&unix.IN_Q_OVERFLOW != 0 {
			for _, watches := range n.dirs {
				for w := range watches {
					w.loseEvents()
				}
			}
			continue
		}
		for w := range n.dirs[ev.wd] {
			w.queueEvent(ev)
		}
		if _, ok := n.dirs[ev.wd]; ok && ev.mask&unix.IN_IGNORED != 0 {
			n.forgetDir(ev.wd)
		}
	}
	return true
}

// An event is an event of the kernel.
type event struct {
	wd           int32
	mask, cookie uint32
	name         string
}

// parseEvent parses one event, in the machine's byte order, and returns its size.
func parseEvent(b []byte) (ev event, size int) {
	var raw unix.InotifyEvent
	ev.wd = int32(binary.NativeEndian.Uint32(b[unsafe.Offsetof(raw.Wd):]))
	ev.mask = binary.NativeEndian.Uint32(b[unsafe.Offsetof(raw.Mask):])
	ev.cookie = binary.NativeEndian.Uint32(b[unsafe.Offsetof(raw.Cookie):])
	size = unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[unsafe.Offsetof(raw.Len):]))
	name, _, _ := bytes.Cut(b[unix.SizeofInotifyEvent:size], []byte{0})
	ev.name = string(name)
	return ev, size
}

func limitError(err error) error {
	if !isAny(err, unix.ENOSPC, unix.EMFILE) {
		return err
	}
	return atoll.Errorf("watch", "", atoll.ErrExhausted, "%w (raise fs.inotify.max_user_watches and max_user_instances)", err)
}
