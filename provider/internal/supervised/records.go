package supervised

import (
	"os"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
)

// A recordCache has the records that were read before, so that a list of many sandboxes decodes only those that have changed.
type recordCache struct {
	mu      sync.Mutex
	records map[string]cachedRecord // by sandbox id
}

// A cachedRecord is a record, and the file that it was read from.
type cachedRecord struct {
	file os.FileInfo
	rec  *statedir.Record
}

// settledAge is the age of a file whose next version has another time or place: a record is a new file each time, but the
// place of a deleted one can be used again within a tick of the clock.
const settledAge = time.Second

// readRecord returns the record of a sandbox, as statedir.Dir.Read does. The caller may change its Status.
func (c *recordCache) readRecord(dir statedir.Dir, id string) (*statedir.Record, error) {
	file, err := os.Stat(dir.Record(id))
	if err != nil {
		c.dropRecord(id)
		return dir.Read(id)
	}
	c.mu.Lock()
	old, ok := c.records[id]
	c.mu.Unlock()
	if ok && os.SameFile(old.file, file) && old.file.ModTime().Equal(file.ModTime()) && old.file.Size() == file.Size() {
		return copyRecord(old.rec), nil
	}
	rec, err := dir.Read(id)
	if err != nil || rec.Damaged || time.Since(file.ModTime()) < settledAge {
		c.dropRecord(id)
		return rec, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.records == nil {
		c.records = map[string]cachedRecord{}
	}
	c.records[id] = cachedRecord{file, copyRecord(rec)}
	return rec, nil
}

func (c *recordCache) dropRecord(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.records, id)
}

// copyRecord returns a copy of rec with a Status of its own.
func copyRecord(rec *statedir.Record) *statedir.Record {
	r := *rec
	r.Status = rec.Status.Clone()
	return &r
}
