package supervisor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// The log of the network is in two files in the sandbox's directory, of which the supervisor is the only writer: the current one, and the one
// before that.
const (
	netLogName = "network.jsonl"
	oldLogName = "network.old.jsonl"
)

// maxNetLog is the size in bytes at which a file is full.
const maxNetLog = 1 << 20

// netLogDelay is the time from an event to the write of the file, which includes the events that come meanwhile.
const netLogDelay = time.Second

// A netLog records what the network of a sandbox decides. Its memory and its files are bounded, whatever the sandbox does.
type netLog struct {
	dir    string
	failed func(error) // logs an error

	writing sync.Mutex // held while the files are written; before mu

	mu      sync.Mutex
	all     atoll.NetworkLog
	written int64         // number of the last event in the files
	added   chan struct{} // closed at the next event
	timer   *time.Timer   // of the next write; nil if nothing has to be written
	closed  bool          // the files are not written any more
}

// newNetLog returns a log that continues that of the previous run.
func newNetLog(dir string, failed func(error)) *netLog {
	all, err := LoadNetLog(dir)
	if err != nil {
		failed(err)
	}
	return &netLog{dir: dir, failed: failed, all: all, written: all.Last, added: make(chan struct{})}
}

// A netLine is a line of a file: an event, or, at the beginning and where events are missing, the counts until then.
type netLine struct {
	Before *atoll.NetworkLog   `json:"before,omitempty"`
	Event  *atoll.NetworkEvent `json:"event,omitempty"`
}

// LoadNetLog returns the log that the last supervisor of an ended sandbox wrote to the sandbox's directory dir; an empty one if it wrote none.
// It returns what it could read, also with an error.
func LoadNetLog(dir string) (all atoll.NetworkLog, err error) {
	all = atoll.NetworkLog{Events: []atoll.NetworkEvent{}, First: 1}
	for _, name := range []string{oldLogName, netLogName} {
		data, readErr := os.ReadFile(filepath.Join(dir, name))
		if readErr != nil {
			if !errors.Is(readErr, fs.ErrNotExist) {
				err = readErr
			}
			continue
		}
		lines := bufio.NewScanner(bytes.NewReader(data))
		lines.Buffer(nil, len(data)+1)
		for lines.Scan() {
			var line netLine
			switch json.Unmarshal(lines.Bytes(), &line); { // of a write that was cut short, the rest of a line is lost
			case line.Before != nil:
				events := all.Events
				if line.Before.Last > all.Last { // the events between are lost
					events = []atoll.NetworkEvent{}
				}
				all = *line.Before
				all.Events = events
			case line.Event != nil && line.Event.ID > all.Last:
				addEvent(&all, *line.Event)
			}
		}
	}
	return all, err
}

// addEvent adds an event with a number, and drops the oldest one if there are too many.
func addEvent(all *atoll.NetworkLog, e atoll.NetworkEvent) {
	if len(all.Events) >= atoll.MaxNetworkEvents {
		all.Events = append(all.Events[:0:0], all.Events[len(all.Events)-atoll.MaxNetworkEvents/2:]...)
	}
	all.Events = append(all.Events, e)
	all.First, all.Last = all.Events[0].ID, e.ID
	if e.Verdict == atoll.NetworkRefused {
		all.Refused++
	} else {
		all.Allowed++
	}
	all.Sent += e.Sent
	all.Received += e.Received
}

// addEvent records an event, and has the file written soon.
func (l *netLog) addEvent(e atoll.NetworkEvent) {
	e.Time = time.Now().UTC()
	l.mu.Lock()
	defer l.mu.Unlock()
	e.ID = l.all.Last + 1
	addEvent(&l.all, e)
	close(l.added)
	l.added = make(chan struct{})
	if l.timer == nil && !l.closed {
		l.timer = time.AfterFunc(netLogDelay, l.writeFile)
	}
}

// listEvents returns the events after that number, and a channel that is closed when there is another one.
func (l *netLog) listEvents(after int64) (atoll.NetworkLog, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return CutNetLog(l.all, after), l.added
}

// CutNetLog returns a copy of the log with the events after that number.
func CutNetLog(all atoll.NetworkLog, after int64) atoll.NetworkLog {
	skip := min(max(after+1-all.First, 0), int64(len(all.Events)))
	all.Events = append([]atoll.NetworkEvent{}, all.Events[skip:]...)
	return all
}

// awaitEvents returns the events after that number. If there are none, it waits for one until ctx or the sandbox ends, at most for wait.
func (l *netLog) awaitEvents(ctx context.Context, over <-chan struct{}, after int64, wait time.Duration) atoll.NetworkLog {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		all, added := l.listEvents(after)
		if len(all.Events) > 0 || wait <= 0 {
			return all
		}
		select {
		case <-added:
		case <-timer.C:
			return all
		case <-over:
			return all
		case <-ctx.Done():
			return all
		}
	}
}

// writeFile appends the events that are not in the files yet.
func (l *netLog) writeFile() {
	l.writing.Lock() // the disk may be slow, and addEvent must not wait for it
	defer l.writing.Unlock()
	l.mu.Lock()
	due := l.timer != nil && !l.closed
	if due {
		l.timer.Stop()
		l.timer = nil
	}
	all := CutNetLog(l.all, l.written)
	l.mu.Unlock()
	if !due {
		return
	}
	if err := l.appendEvents(all); err != nil {
		l.failed(err)
	}
	l.written = all.Last // what could not be written is lost, or a full disk would be tried again and again
}

// appendEvents appends events to the current file, and begins another one if it is full.
func (l *netLog) appendEvents(all atoll.NetworkLog) error {
	path := filepath.Join(l.dir, netLogName)
	info, err := os.Stat(path)
	if err == nil && info.Size() >= maxNetLog {
		err = fsutil.Rename(path, filepath.Join(l.dir, oldLogName))
		info = nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var lines bytes.Buffer
	enc := json.NewEncoder(&lines)
	if err = nil; info != nil {
		lines.WriteByte('\n') // ends a line that was cut short
	}
	if info == nil || all.First > l.written+1 {
		err = enc.Encode(netLine{Before: countBefore(all)})
	}
	for i := range all.Events {
		err = errors.Join(err, enc.Encode(netLine{Event: &all.Events[i]}))
	}
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(lines.Bytes())
	return errors.Join(err, file.Close())
}

// countBefore returns the counts of the log before its events.
func countBefore(all atoll.NetworkLog) *atoll.NetworkLog {
	for i := range all.Events {
		e := &all.Events[i]
		if e.Verdict == atoll.NetworkRefused {
			all.Refused--
		} else {
			all.Allowed--
		}
		all.Sent -= e.Sent
		all.Received -= e.Received
		all.Last = e.ID - int64(i) - 1
	}
	all.Events = nil
	return &all
}

// closeFile writes the files for the last time.
func (l *netLog) closeFile() {
	l.writeFile()
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

// NetworkLog returns what the network has decided.
func (s *Sandbox) NetworkLog(ctx context.Context, after int64, wait time.Duration) (atoll.NetworkLog, error) {
	return s.netLog.awaitEvents(ctx, s.over, after, wait), nil
}

// NoteNetwork records an event of the engine's network. It does not block.
func (s *Sandbox) NoteNetwork(e atoll.NetworkEvent) {
	s.netLog.addEvent(e)
	if r, ok := e.Refusal(); ok {
		s.refused.addRefusal(r)
	}
}
