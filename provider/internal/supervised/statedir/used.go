package statedir

import (
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Using records, until end is called, that the sandbox is in use, for its supervisor, which
// does not see all calls. It does nothing for a sandbox that is gone.
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

// useInterval is the interval at which a lasting use is recorded: more often than any
// supervisor with an idle limit of more than some seconds looks.
const useInterval = time.Second

// noteUse sets the time of the sandbox's last use to now.
func (d Dir) noteUse(id string) {
	now := time.Now()
	_ = os.Chtimes(d.usePath(id), now, now)
}

// Used returns the time at which Using last recorded a use of the sandbox, or at which the
// sandbox was made.
func (d Dir) Used(id string) (time.Time, error) {
	info, err := os.Stat(d.usePath(id))
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

// usePath returns the file whose modification time is the time of the last use: one that
// exists anyway and whose content rarely changes.
func (d Dir) usePath(id string) string { return filepath.Join(d.Sandbox(id), "keeper.lock") }
