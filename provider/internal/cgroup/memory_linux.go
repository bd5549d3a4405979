package cgroup

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// FixedMemory returns the memory, in bytes, that the group uses and that the kernel cannot take
// back; 0 for the zero Group. The cache of files on disk does not count, nor does what the kernel
// remembers of their names. On v1 that cannot be told from the kernel's other memory for the group,
// of which none counts.
func (g Group) FixedMemory() int64 {
	if g.path == "" {
		return 0
	}
	used, stat, kernel := readNumber(g.filePath("memory", "memory.usage_in_bytes")), g.filePath("memory", "memory.stat"), int64(0)
	if g.h.v2 {
		used, stat = readNumber(g.filePath("", "memory.current")), g.filePath("", "memory.stat")
		kernel = readKey(stat, "slab_reclaimable")
	} else {
		kernel = readNumber(g.filePath("memory", "memory.kmem.usage_in_bytes"))
	}
	return max(used-kernel-readKey(stat, "inactive_file")-readKey(stat, "active_file"), 0)
}

// Throttle sets whether the kernel slows down processes of a group with these limits that use the
// reserve. It does nothing on v1, which never does that.
func (g Group) Throttle(l Limits, on bool) error {
	if g.path == "" || !g.h.v2 || l.Reserve <= 0 {
		return nil
	}
	high := "max"
	if on {
		high = strconv.FormatInt(l.Memory, 10)
	}
	return g.h.write(g.filePath("", "memory.high"), high)
}

// A MemoryWatch waits until the kernel reports that a group approaches its memory limit.
type MemoryWatch struct {
	v2     *os.File // memory.events; nil on v1
	signal *os.File // an eventfd: the kernel's on v1; on v2, Close writes to it

	ready  chan struct{} // closed when the watch works, or failed with err
	closed chan struct{} // closed by Close on v1: the rest of the thresholds is not needed
	err    error         // of the registration on v1
}

// watchSteps is the number of steps between half of the limit and its end at which v1 reports.
const watchSteps = 16

// watchDelay is the time after which v1 begins to watch, which slows down a sandbox that boots. Many end before.
const watchDelay = 250 * time.Millisecond

// WatchMemory watches a group that has these limits; nil for the zero Group or without a limit.
// The kernel of v1 takes long to begin, so WatchMemory does not wait for that: see Ready. Close the watch.
func (g Group) WatchMemory(l Limits) (_ *MemoryWatch, err error) {
	if g.path == "" || l.Memory <= 0 {
		return nil, nil
	}
	flags := unix.EFD_CLOEXEC
	if !g.h.v2 {
		flags |= unix.EFD_NONBLOCK
	}
	fd, err := unix.Eventfd(0, flags)
	if err != nil {
		return nil, fmt.Errorf("watch memory: %w", err)
	}
	w := &MemoryWatch{signal: os.NewFile(uintptr(fd), "eventfd"), ready: make(chan struct{}), closed: make(chan struct{})}
	if !g.h.v2 {
		go func() {
			defer close(w.ready)
			select {
			case <-w.closed:
			case <-time.After(watchDelay):
			}
			if w.err = w.registerThresholds(g, fd, l); w.err != nil {
				_ = w.signal.Close() // ends Wait
			}
		}()
		return w, nil
	}
	close(w.ready)
	if w.v2, err = os.Open(g.filePath("", "memory.events")); err != nil {
		return nil, errors.Join(fmt.Errorf("watch memory: %w", err), w.signal.Close())
	}
	return w, nil
}

// Ready reports whether Wait notices everything that happens from now on.
func (w *MemoryWatch) Ready() bool {
	select {
	case <-w.ready:
		return true
	default:
		return false
	}
}

// registerThresholds makes the kernel of v1 write to the eventfd when the memory that is used
// crosses one of several values, and when it takes memory back from the cache of files. Each of them
// takes a grace period of the kernel, some milliseconds.
func (w *MemoryWatch) registerThresholds(g Group, eventfd int, l Limits) error {
	register := func(name, argument string) error {
		select {
		case <-w.closed:
			return os.ErrClosed
		default:
		}
		f, err := os.Open(g.filePath("memory", name))
		if err != nil {
			return err
		}
		defer f.Close()
		return g.h.write(g.filePath("memory", "cgroup.event_control"), fmt.Sprintf("%d %d %s", eventfd, f.Fd(), argument))
	}
	half := l.Memory / 2
	for i := range int64(watchSteps + 1) {
		if err := register("memory.usage_in_bytes", strconv.FormatInt(half+(half+l.Reserve)*i/watchSteps, 10)); err != nil {
			return err
		}
	}
	return register("memory.pressure_level", "low")
}

// Wait blocks until the kernel reports that more memory is used. It returns an error after Close.
// One call may be in progress.
func (w *MemoryWatch) Wait() error {
	if w.v2 == nil {
		_, err := w.signal.Read(make([]byte, 8))
		if err != nil {
			<-w.ready
			err = cmp.Or(w.err, err)
		}
		return err
	}
	if _, err := w.v2.ReadAt(make([]byte, 1), 0); err != nil { // the kernel reports what changes afterwards
		return err
	}
	fds := []unix.PollFd{{Fd: int32(w.v2.Fd()), Events: unix.POLLPRI}, {Fd: int32(w.signal.Fd()), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, -1)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case fds[1].Revents != 0:
			return os.ErrClosed
		}
		return nil
	}
}

// Close ends the watch, and the call of Wait that is in progress.
func (w *MemoryWatch) Close() error {
	if w.v2 == nil {
		close(w.closed)
		<-w.ready // so that the kernel gets no other file with the same number
		if w.err != nil {
			return nil
		}
		return w.signal.Close()
	}
	_, err := w.signal.Write(binary.NativeEndian.AppendUint64(nil, 1))
	return err // the descriptors stay open for the call in progress, until the process ends
}
