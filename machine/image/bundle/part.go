package bundle

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// A part is the result of one step of a build, which later builds reuse.
type part struct {
	Kernel  *Kernel  `json:"kernel,omitempty"`
	Modules []string `json:"modules,omitempty"` // files below its directory modules
	Disk    *Disk    `json:"disk,omitempty"`

	dir string
}

const (
	partName   = "part.json"
	modulesDir = "modules"
	partFormat = 1 // version of the format of parts, and of the steps that make them
)

func (p *part) listFiles() (list []File) {
	if p.Kernel != nil {
		list = append(list, p.Kernel.File)
		if p.Kernel.ELF != nil {
			list = append(list, *p.Kernel.ELF)
		}
	}
	if p.Disk != nil {
		list = append(list, p.Disk.File)
	}
	return list
}

func (s *Store) readPart(id string) (*part, error) {
	dir := s.storePath(partsDir, id)
	b, err := os.ReadFile(filepath.Join(dir, partName))
	if err != nil {
		return nil, err
	}
	p := &part{dir: dir}
	if err := json.Unmarshal(b, p); err != nil {
		return nil, &fs.PathError{Op: "understand", Path: filepath.Join(dir, partName), Err: fs.ErrNotExist}
	}
	for _, f := range p.listFiles() {
		if fi, err := os.Stat(filepath.Join(dir, f.Name)); err != nil || fi.Size() != int64(f.Size) {
			return nil, &fs.PathError{Op: "find", Path: filepath.Join(dir, f.Name), Err: fs.ErrNotExist}
		}
	}
	return p, nil
}

// getPart returns the part with that key. If there is none, or fresh is set, it calls
// make to build the part in a directory; one process at a time does so for a key. No
// process removes the part until release is called.
func (s *Store) getPart(ctx context.Context, key any, fresh bool, make func(dir string) (*part, error)) (p *part, release func(), err error) {
	k, err := json.Marshal([]any{partFormat, key})
	if err != nil {
		return nil, nil, err
	}
	id := digestOf(k)[len("sha256:"):][:32]
	unlock, err := s.acquireLock(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			unlock()
		}
	}()
	if p, err := s.readPart(id); err == nil && !fresh {
		return p, unlock, nil
	}
	t, err := s.newTempDir()
	if err != nil {
		return nil, nil, err
	}
	defer t.close()
	dir := filepath.Join(t.dir, "part")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, nil, err
	}
	if p, err = make(dir); err != nil {
		return nil, nil, err
	}
	if err := fsutil.WriteJSON(filepath.Join(dir, partName), p); err != nil {
		return nil, nil, err
	}
	if err := fsutil.Sync(dir); err != nil {
		return nil, nil, err
	}
	place := s.storePath(partsDir, id)
	if err := s.discardDir(place); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	if err := os.Rename(dir, place); err != nil {
		return nil, nil, err
	}
	p, err = s.readPart(id)
	return p, unlock, err
}

// A meter reports the progress of a build to notify, unless that is nil.
type meter struct {
	notify func(atoll.Progress)
	phase  string
	item   string
	done   int64
	last   int64

	step, steps int // the present one, and how many there are
}

func (m *meter) startPhase(phase, item string) {
	m.phase, m.item, m.done, m.last = phase, item, 0, 0
	m.reportProgress()
}

// Write counts the bytes of p.
func (m *meter) Write(p []byte) (int, error) {
	m.done += int64(len(p))
	if m.done-m.last >= 1<<20 {
		m.last = m.done
		m.reportProgress()
	}
	return len(p), nil
}

func (m *meter) reportProgress() {
	if m.notify != nil {
		m.notify(atoll.Progress{Phase: m.phase, Item: m.item, Done: m.done, Step: m.step, Steps: m.steps})
	}
}
