package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// refusalsName is the name of the file with the refusals in the sandbox's directory, of which the
// supervisor is the only writer.
const refusalsName = "refusals.json"

// refusalsDelay is the time from a refusal to the write of the file, which includes the refusals that
// come meanwhile.
const refusalsDelay = time.Second

// A refusalLog counts what the network of a sandbox refuses. Its memory and its file are bounded,
// whatever the sandbox asks for.
type refusalLog struct {
	path   string
	failed func(error) // logs an error

	writing sync.Mutex // held while the file is written; before mu

	mu     sync.Mutex
	all    atoll.Refusals
	timer  *time.Timer // of the next write; nil if nothing has to be written
	closed bool        // the file is not written any more
}

// newRefusalLog returns a log that continues the file of the previous run.
func newRefusalLog(dir string, failed func(error)) *refusalLog {
	all, err := LoadRefusals(dir)
	if err != nil {
		failed(err)
	}
	return &refusalLog{path: filepath.Join(dir, refusalsName), failed: failed, all: all}
}

// LoadRefusals returns the refusals that the last supervisor of an ended sandbox wrote to the sandbox's
// directory dir; none if it wrote none.
func LoadRefusals(dir string) (all atoll.Refusals, err error) {
	all.List = []atoll.Refusal{}
	all.Time = time.Now().UTC()
	data, err := os.ReadFile(filepath.Join(dir, refusalsName))
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	var stored atoll.Refusals
	if err == nil {
		err = json.Unmarshal(data, &stored)
	}
	if err != nil {
		return all, err
	}
	all.Total, all.List = stored.Total, append(all.List, stored.List...)
	return all, nil
}

// addRefusal counts r, and has the file written soon. Of different refusals it retains the latest.
func (l *refusalLog) addRefusal(r atoll.Refusal) {
	now := time.Now().UTC()
	l.mu.Lock()
	defer l.mu.Unlock()
	r.Count, r.First = 1, now
	if i := slices.IndexFunc(l.all.List, r.Same); i >= 0 {
		r.Count, r.First = l.all.List[i].Count+1, l.all.List[i].First
		l.all.List = slices.Delete(l.all.List, i, i+1)
	} else if len(l.all.List) >= atoll.MaxRefusals {
		l.all.List = slices.Delete(l.all.List, 0, 1)
	}
	r.Last = now
	l.all.List = append(l.all.List, r)
	l.all.Total++
	if l.timer == nil && !l.closed {
		l.timer = time.AfterFunc(refusalsDelay, l.writeFile)
	}
}

// listRefusals returns a copy of the refusals.
func (l *refusalLog) listRefusals() atoll.Refusals {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.all
	all.List, all.Time = slices.Clone(all.List), time.Now().UTC()
	return all
}

// writeFile writes the file if something has to be written.
func (l *refusalLog) writeFile() {
	l.writing.Lock() // the disk may be slow, and addRefusal must not wait for it
	defer l.writing.Unlock()
	l.mu.Lock()
	due := l.timer != nil && !l.closed
	if due {
		l.timer.Stop()
		l.timer = nil
	}
	all := l.all
	all.List = slices.Clone(all.List)
	l.mu.Unlock()
	if !due {
		return
	}
	if err := fsutil.WriteJSON(l.path, all); err != nil {
		l.failed(err)
	}
}

// closeFile writes the file for the last time.
func (l *refusalLog) closeFile() {
	l.writeFile()
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

// Refusals returns what the network has refused.
func (s *Sandbox) Refusals(context.Context) (atoll.Refusals, error) {
	return s.refused.listRefusals(), nil
}
