package objectstore

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// A Presence is an optional ability of a Bucket that programs of one machine use: it
// tells at once whether a program still runs.
type Presence interface {
	// ShowPresence makes this program present under a name, until end is called or the
	// program ends. IsGone needs the returned mark.
	ShowPresence(name string) (mark string, end func(), err error)

	// IsGone reports whether the program that was present under the name has ended, or
	// called end. It reports false if it cannot tell: if a program on another machine,
	// or before this machine was started, made the mark.
	IsGone(name, mark string) bool
}

var _ Presence = (*Dir)(nil)

// presencePath returns the path of the file that a present program locks.
func (d *Dir) presencePath(name string) string {
	return filepath.Join(d.root.Name(), lockDir, "by-"+name)
}

// ShowPresence implements Presence. A name has the characters of an id.
func (d *Dir) ShowPresence(name string) (mark string, end func(), err error) {
	mark, err = bootID()
	if err != nil {
		return "", nil, atoll.E("show presence", d.url, atoll.ErrUnsupported, err)
	}
	if err := d.root.Mkdir(lockDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", nil, atoll.E("show presence", d.url, kindOf(err), err)
	}
	lock, err := fsutil.TryLock(d.presencePath(name))
	if err != nil {
		return "", nil, atoll.E("show presence", d.url, kindOf(err), err)
	}
	return mark, func() { _ = lock.Remove() }, nil // a file that stays is unlocked
}

// IsGone implements Presence.
func (d *Dir) IsGone(name, mark string) bool {
	if here, err := bootID(); err != nil || mark == "" || here != mark || path.Base(name) != name {
		return false
	}
	lock, err := fsutil.TryLockExisting(d.presencePath(name))
	if errors.Is(err, fs.ErrNotExist) {
		_, err := os.Stat(d.root.Name()) // else the directory itself is gone
		return err == nil
	}
	if err != nil {
		return false
	}
	_ = lock.Remove() // if this fails, the next call tries again
	return true
}
