package filesync

import (
	"crypto/md5"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// fileOf returns the entry of a file without its content.
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
	f.setTimes(fi)
	return f
}

// setTimes sets what tells from the file's metadata whether it has changed.
func (f *File) setTimes(fi *atoll.FileInfo) {
	f.Modified, f.Nanos, f.changed, f.inode = fi.Modified.Unix(), int64(fi.Modified.Nanosecond()), 0, 0
	if f.isRegular() && !fi.Changed.IsZero() {
		f.changed, f.inode = fi.Changed.UnixNano(), fi.Inode
	}
}

// clearTimes makes the entry equal the metadata of no file, so that only its content can
// tell whether the file has changed.
func (f *File) clearTimes() { f.Modified, f.Nanos, f.changed, f.inode = 0, unknownNanos, 0, 0 }

// clearLocal clears the fields that only state files in directories have.
func (f *File) clearLocal() { f.changed, f.inode, f.here, f.mark = 0, 0, 0, "" }

// seemsUnchanged reports whether the file equals its entry in a state, as far as its
// metadata can tell for certain.
func (f *File) seemsUnchanged(fi *atoll.FileInfo, head *State) bool {
	if !f.matchesInfo(fi, head) || !f.isRegular() {
		return f.matchesInfo(fi, head)
	}
	// Programs can set the time of the content, but not that of the last change.
	last, nanos := fi.Changed, int64(fi.Changed.Nanosecond())
	switch {
	case last.IsZero():
		last, nanos = fi.Modified, f.Nanos
	case f.changed == 0:
		return false
	}
	return !isRacy(last, nanos, head)
}

// isRacy reports whether a file with that time may have been written again, within the
// same tick of the clock, after it was read for the state.
func isRacy(last time.Time, nanos int64, head *State) bool {
	tick := clockTick
	if nanos <= 0 {
		tick = coarseTick
	}
	return !last.Add(tick).Before(time.Unix(head.LastSynced, head.SyncedNanos))
}

// clockTick is more than the interval between ticks of a kernel's clock, which dates
// files. coarseTick is that of file systems that round times.
const (
	clockTick  = 20 * time.Millisecond
	coarseTick = time.Second
)

// matchesInfo reports whether the file's metadata equals the entry, as far as both are
// known.
func (f *File) matchesInfo(fi *atoll.FileInfo, head *State) bool {
	if f.fileType() != fi.Type || f.Target != fi.Target || !f.matchesMode(fi.Mode, head.NoModes) {
		return false
	}
	return !f.isRegular() || f.Size == fi.Size && f.Modified == fi.Modified.Unix() &&
		(f.Nanos == unknownNanos || f.Nanos == int64(fi.Modified.Nanosecond())) &&
		(f.changed == 0 || fi.Changed.IsZero() || f.changed == fi.Changed.UnixNano()) &&
		(f.inode == 0 || fi.Inode == 0 || f.inode == fi.Inode)
}
