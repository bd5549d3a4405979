package statedir

import (
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Using notes that the sandbox is being used, until end is called, for its supervisor
// to see, which is not asked for everything. A sandbox that is gone is none of its
// business.
func (d Dir) Using(id string) (end func()) {
	d.noteUse(id)
	done := make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		for {
			select {
			case <-time.After(useInterval):
				d.noteUse(id)
			case <-done:
				return
			}
		}
	})
	return func() {
		close(done)
		work.Wait()
	}
}

// useInterval is how often the use of a sandbox is noted that lasts: more often than
// any supervisor looks that has more than seconds to wait.
const useInterval = time.Second

func (d Dir) noteUse(id string) {
	now := time.Now()
	_ = os.Chtimes(d.usePath(id), now, now)
}

// Used is when the sandbox was last used so, or when it was made.
func (d Dir) Used(id string) (time.Time, error) {
	info, err := os.Stat(d.usePath(id))
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

// usePath is the file whose time is the time of the last use: one that is there
// anyhow and is never written to.
func (d Dir) usePath(id string) string { return filepath.Join(d.Sandbox(id), "keeper.lock") }
