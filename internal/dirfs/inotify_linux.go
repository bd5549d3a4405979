package dirfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
)

const watchMask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// maxQueued is the number of events that wait for a slow reader, as many as wait in the kernel by default.
const maxQueued = 16384

// An inotify is an instance of the kernel's inotify. All watches of this process share one, because a user has only
// 128 of them by default, which also the daemons of this machine need. It exists while there are watches.
type inotify struct {
	file *os.File
	conn syscall.RawConn
	done chan struct{} // closed when readLoop has returned

	perWatch, total int // the most directories of one watch, and of all

	mu   sync.Mutex
	dirs map[int32]map[*watch]struct{} // the watches of a directory, by watch descriptor
	buf  []byte
}

// process has the inotify of this process and the number of its watches.
var process struct {
	sync.Mutex
	notify  *inotify
	watches int
}

// acquireInotify returns the inotify of this process. The caller releases it.
func acquireInotify() (*inotify, error) {
	process.Lock()
	defer process.Unlock()
	if process.notify == nil {
		n, err := openInotify()
		if err != nil {
			return nil, err
		}
		process.notify = n
	}
	process.watches++
	return process.notify, nil
}

// releaseInotify reverts acquireInotify for w, and forgets its directories.
func releaseInotify(n *inotify, w *watch) {
	for wd := range w.dirs {
		n.removeDir(w, wd)
	}
	process.Lock()
	process.watches--
	last := process.watches == 0
	if last {
		process.notify = nil
		n.file.Close()
	}
	process.Unlock()
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
	return max(most/8, 1), max(most/2, 1)
}

// addDir adds an open directory to those of w, and returns its watch descriptor. w gets no event from before.
func (n *inotify) addDir(w *watch, dir *os.File) (wd int32, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(w.dirs) >= n.perWatch || len(n.dirs) >= n.total {
		return 0, atoll.Errorf("watch", "", atoll.ErrExhausted,
			"too many directories: one watch may have %d, and all together %d; watch a smaller directory, or raise fs.inotify.max_user_watches", n.perWatch, n.total)
	}
	cerr := n.conn.Control(func(fd uintptr) {
		for n.readEvents(fd) {
		}
		var id int
		id, err = unix.InotifyAddWatch(int(fd), fmt.Sprintf("/proc/self/fd/%d", dir.Fd()), watchMask)
		wd = int32(id)
	})
	if err = errors.Join(err, cerr); err != nil {
		return 0, limitError(err)
	}
	if n.dirs[wd] == nil {
		n.dirs[wd] = map[*watch]struct{}{}
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
		delete(n.dirs, wd)
		_ = n.conn.Control(func(fd uintptr) {
			_, _ = unix.InotifyRmWatch(int(fd), uint32(wd)) // fails if the directory has been removed
		})
	}
}

// readLoop passes events on until the file is closed.
func (n *inotify) readLoop() {
	defer close(n.done)
	_ = n.conn.Read(func(fd uintptr) bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		for n.readEvents(fd) {
		}
		return false
	})
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
		if ev.mask&unix.IN_IGNORED != 0 {
			delete(n.dirs, ev.wd)
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
