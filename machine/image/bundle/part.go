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

// A part is what one step of a build made, kept for the next one.
type part struct {
	Kernel  *Kernel  `json:"kernel,omitempty"`
	Modules []string `json:"modules,omitempty"` // files below its directory modules
	Disk    *Disk    `json:"disk,omitempty"`

	dir string
}

const (
	partName   = "part.json"
	modulesDir = "modules"
	partFormat = 1 // of parts, and of how they are made
)

func (p *part) files() (list []File) {
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
	dir := s.path(partsDir, id)
	b, err := os.ReadFile(filepath.Join(dir, partName))
	if err != nil {
		return nil, err
	}
	p := &part{dir: dir}
	if err := json.Unmarshal(b, p); err != nil {
		return nil, &fs.PathError{Op: "understand", Path: filepath.Join(dir, partName), Err: fs.ErrNotExist}
	}
	for _, f := range p.files() {
		if fi, err := os.Stat(filepath.Join(dir, f.Name)); err != nil || fi.Size() != int64(f.Size) {
			return nil, &fs.PathError{Op: "find", Path: filepath.Join(dir, f.Name), Err: fs.ErrNotExist}
		}
	}
	return p, nil
}

// part returns what was made with that key, and else what make makes of it in a
// directory, one at a time. Nobody removes it until release is called.
func (s *Store) part(ctx context.Context, key any, fresh bool, make func(dir string) (*part, error)) (p *part, release func(), err error) {
	k, err := json.Marshal([]any{partFormat, key})
	if err != nil {
		return nil, nil, err
	}
	id := digestOf(k)[len("sha256:"):][:32]
	unlock, err := s.lock(ctx, id)
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
	t, err := s.temp()
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
	place := s.path(partsDir, id)
	if err := s.discard(place); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	if err := os.Rename(dir, place); err != nil {
		return nil, nil, err
	}
	p, err = s.readPart(id)
	return p, unlock, err
}

// A meter tells how far a build is; nil tells nobody.
type meter struct {
	tell  func(atoll.Progress)
	phase string
	item  string
	done  int64
	last  int64
}

func (m *meter) start(phase, item string) {
	m.phase, m.item, m.done, m.last = phase, item, 0, 0
	m.report()
}

// Write counts what it is given.
func (m *meter) Write(p []byte) (int, error) {
	m.done += int64(len(p))
	if m.done-m.last >= 1<<20 {
		m.last = m.done
		m.report()
	}
	return len(p), nil
}

func (m *meter) report() {
	if m.tell != nil {
		m.tell(atoll.Progress{Phase: m.phase, Item: m.item, Done: m.done})
	}
}
