//go:build linux

package statedir

import (
	"os"
	"path/filepath"
	"time"
)

// Use notes that the sandbox is being used, for its keeper to see, which is not
// asked for everything. A sandbox that is gone is none of its business.
func (d Dir) Use(id string) {
	now := time.Now()
	_ = os.Chtimes(d.useMark(id), now, now)
}

// Used is when Use was last called for the sandbox, or when it was made.
func (d Dir) Used(id string) (time.Time, error) {
	info, err := os.Stat(d.useMark(id))
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

// useMark is the file whose time is the time of the last use: one that is there
// anyhow and is never written to.
func (d Dir) useMark(id string) string { return filepath.Join(d.Sandbox(id), "keeper.lock") }
