//go:build linux

package keeper

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"github.com/seed46cd37a8/atoll/provider/native/internal/quota"
)

// makeChanges makes a directory for the changes of the root file system, unless it exists, and limits what they take up on disk if
// the file system can.
func (e *engine) makeChanges(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if limit := int64(e.job.Spec.Resources.Disk); limit > 0 && e.job.Caps.DiskLimit {
		return quota.Limit(dir, limit)
	}
	return nil
}

// A diskWatch limits the changes of the root file system. It is for file systems that cannot limit a directory: it measures
// the changes, and ends all programs when they take up more than they may. Programs can still run then, to remove files: they are ended only if they add more.
type diskWatch struct {
	limit   int64
	running atomic.Bool  // the programs are being watched
	ended   atomic.Int64 // when programs were ended last, in nanoseconds since 1970

	mu       sync.Mutex
	known    bool // changes and free have been measured
	changes  int64
	free     int64 // on the file system
	allowed  int64 // the limit, or what the changes took up when programs were ended last, and a little more
	measured time.Time
	took     time.Duration
}

const (
	diskInterval     = 200 * time.Millisecond // between looks at the free space while a command runs
	diskIdleInterval = 2 * time.Second        // the same while only processes that commands left run
	diskTrust        = 30 * time.Second       // after this time, less in use elsewhere may hide what programs have written
	diskShare        = 20                     // measuring takes at most this part of the time
	diskSlack        = 1 << 20                // bytes that programs may add above the limit, since removing a file can take some
)

// newDiskWatch returns the watch over the changes of a sandbox. fresh means that there are none yet.
func (e *engine) newDiskWatch(fresh bool) (*diskWatch, error) {
	limit := int64(e.job.Spec.Resources.Disk)
	if limit <= 0 || e.job.Spec.ReadOnlyRoot || !e.job.Caps.DiskWatch {
		return &diskWatch{}, nil
	}
	free, err := e.root.freeSpace()
	return &diskWatch{limit: limit, allowed: limit, known: fresh, free: free, measured: time.Now()}, err
}

// watchDisk watches as long as processes run. It returns at once if it does so already.
func (e *engine) watchDisk() {
	w := e.disk
	if w.limit <= 0 || !w.running.CompareAndSwap(false, true) {
		return
	}
	go func() {
		for {
			wait := diskInterval
			if e.table.Running() == 0 {
				wait = diskIdleInterval
			}
			select {
			case <-e.exited:
				return
			case <-time.After(wait):
			}
			if err := e.checkDisk(); err != nil && !e.hasEnded() {
				e.sandbox.Log.Warn("disk limit", "err", err)
			}
			if e.table.Running() > 0 {
				continue
			}
			if n, err := e.countProcesses(); n == 0 && err == nil {
				w.running.Store(false)
				// A process that has been added since relies on this goroutine.
				if e.table.Running() == 0 || !w.running.CompareAndSwap(false, true) {
					return
				}
			}
		}
	}()
}

// checkDisk ends all programs if they have written more than they may.
func (e *engine) checkDisk() error {
	w := e.disk
	w.mu.Lock()
	defer w.mu.Unlock()
	free, err := e.root.freeSpace()
	if err != nil || e.Frozen() || !w.mustMeasure(free) {
		return err
	}
	known := w.known
	if err := w.measureFiles(e); err != nil {
		return err
	}
	if !known { // what an earlier run has left
		w.allowed = max(w.limit, w.changes+diskSlack)
	}
	if w.changes <= w.allowed {
		w.allowed = max(w.limit, min(w.allowed, w.changes+diskSlack))
		return nil
	}
	e.sandbox.Log.Warn("disk limit", "used", w.changes, "limit", w.limit)
	w.ended.Store(time.Now().UnixNano())
	err = e.endPrograms()
	e.files.closeGuest()                 // it was ended, too
	w.ended.Store(time.Now().UnixNano()) // calls may have used the guest meanwhile
	if err != nil {
		return err
	}
	if err := w.measureFiles(e); err != nil { // files without a name are gone
		return err
	}
	w.allowed = max(w.limit, w.changes+diskSlack)
	return nil
}

// endPrograms kills all processes inside, and waits until they have closed their files.
func (e *engine) endPrograms() error {
	all, err := e.listProcesses()
	if err != nil {
		return err
	}
	if err := e.init.Signal(-1, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	for deadline := time.Now().Add(killTimeout); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		now, err := e.listProcesses()
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(now, func(p processInfo) bool { return slices.Contains(all, p) }) {
			return nil
		}
	}
	return fmt.Errorf("processes do not end within %s", killTimeout)
}

// mustMeasure reports whether programs can have written more than they may, if that many bytes are free now.
func (w *diskWatch) mustMeasure(free int64) bool {
	switch age := time.Since(w.measured); {
	case !w.known:
		return true
	case age < diskShare*w.took:
		return false
	default:
		return w.free-free >= max(w.allowed-w.changes, 1) || w.free != free && age >= diskTrust
	}
}

// measureFiles measures the changes.
func (w *diskWatch) measureFiles(e *engine) (err error) {
	begun := time.Now()
	free, err := e.root.freeSpace()
	if err != nil {
		return err
	}
	changes := int64(0)
	for range 3 { // programs may move directories meanwhile
		if changes, err = fsutil.UsedBelow(e.root.partPath(layersName)); !errors.Is(err, fsutil.ErrMoved) {
			break
		}
	}
	if errors.Is(err, fsutil.ErrMoved) { // nobody does that for long except to hide files
		changes, err = w.allowed+1, nil
	}
	if err != nil {
		return err
	}
	w.known, w.changes, w.free = true, changes+e.measureNameless(), free
	w.measured, w.took = time.Now(), time.Since(begun)
	return nil
}

// freeSpace returns the number of free bytes where the changes are.
func (r *root) freeSpace() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(r.partPath(layersName), &st); err != nil {
		return 0, os.NewSyscallError("statfs", err)
	}
	return int64(st.Bfree) * st.Bsize, nil
}

// measureNameless returns the number of bytes in files of the overlays that have no name any more, but that a process has open, or
// has mapped, which only root can see.
func (e *engine) measureNameless() (used int64) {
	type inode struct{ dev, ino uint64 }
	seen := map[inode]bool{}
	for _, pid := range e.hostPIDs()[1:] {
		for _, dir := range []string{"fd", "map_files"} {
			dir := fmt.Sprintf("/proc/%d/%s/", pid, dir)
			entries, err := os.ReadDir(dir)
			if err != nil { // the process has ended
				continue
			}
			for _, entry := range entries {
				var st unix.Stat_t
				var system unix.Statfs_t
				name := dir + entry.Name()
				if unix.Stat(name, &st) != nil || st.Nlink != 0 || seen[inode{uint64(st.Dev), st.Ino}] ||
					unix.Statfs(name, &system) != nil || system.Type != unix.OVERLAYFS_SUPER_MAGIC {
					continue
				}
				seen[inode{uint64(st.Dev), st.Ino}] = true
				used += st.Blocks * 512
			}
		}
	}
	return used
}

// endedSince reports whether programs that ran at that time were ended because of the limit.
func (w *diskWatch) endedSince(started time.Time) bool { return w.ended.Load() > started.UnixNano() }

// endedDuring is endedSince for a call that began at that time and has failed. It waits while programs are being ended.
func (w *diskWatch) endedDuring(begun time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.endedSince(begun)
}

// explainEnd says why programs were ended, and what to do.
func (w *diskWatch) explainEnd() string {
	return fmt.Sprintf("disk limit: files outside of volumes took up more than %s; remove some, write to %s, or use a higher limit", atoll.Bytes(w.limit), atoll.DefaultWorkdir)
}
