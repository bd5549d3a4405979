package inprocess

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"github.com/seed46cd37a8/atoll/internal/process"
)

// A record is a sandbox's Status as JSON in {dir}/sandboxes/{id}.json. The program that owns
// the sandbox holds a lock on {id}.lock. The kernel releases the lock however that program
// ends, so that nobody has to rely on a PID. {id}.ended holds the exit and output of the main
// process of the latest run.
type record struct {
	atoll.Status
	Fresh bool `json:"fresh,omitempty"` // Create made the data volume
}

func (p *Provider) recordDir() string           { return filepath.Join(p.opts.Dir, "sandboxes") }
func (p *Provider) recordPath(id string) string { return filepath.Join(p.recordDir(), id+".json") }
func (p *Provider) lockPath(id string) string   { return filepath.Join(p.recordDir(), id+".lock") }
func (p *Provider) mainPath(id string) string   { return filepath.Join(p.recordDir(), id+".ended") }

// checkNoRecord fails if there is a record of a sandbox with this id. Kinds: ErrAlreadyExists.
func (p *Provider) checkNoRecord(id string) error {
	_, err := os.Lstat(p.recordPath(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = atoll.Errorf("create", id, atoll.ErrAlreadyExists, "sandbox already exists")
	}
	return err
}

// lockSandbox takes the lock of a sandbox that this program is to own. Kinds: ErrAlreadyExists
// (another program holds it).
func (p *Provider) lockSandbox(id string) (*fsutil.Lock, error) {
	l, err := fsutil.TryLock(p.lockPath(id))
	if errors.Is(err, fsutil.ErrLocked) {
		return nil, atoll.Errorf("create", id, atoll.ErrAlreadyExists, "another program uses this sandbox id")
	}
	return l, err
}

// saveRecord writes the record atomically.
func (p *Provider) saveRecord(r record) error {
	if err := p.checkStep("record"); err != nil {
		return err
	}
	return fsutil.WriteJSON(p.recordPath(r.ID), r)
}

// saveMain saves the exit and output of the main process, after its run, for later programs.
func (s *sandbox) saveMain() {
	if len(s.place.Spec.Cmd) == 0 || s.place.Spec.AutoRemove {
		return
	}
	if err := s.table.Save(s.p.mainPath(s.id), atoll.MainProcess); err != nil {
		s.p.log.Warn("the output of the main process is lost", "sandbox", s.id, "err", err)
	}
}

// deleteSavedMain deletes the saved main process of an earlier run.
func (s *sandbox) deleteSavedMain() {
	if err := os.Remove(s.p.mainPath(s.id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.p.log.Warn("the main process of an earlier run is still known", "sandbox", s.id, "err", err)
	}
}

// loadSavedMain loads the main process that an earlier program saved.
func (s *sandbox) loadSavedMain() {
	table, err := process.Load(s.p.mainPath(s.id))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		s.p.log.Warn("the output of the main process is lost", "sandbox", s.id, "err", err)
		return
	}
	s.table = table
}

// eraseRecord removes the record and releases the lock.
func (p *Provider) eraseRecord(s *sandbox) {
	main, record := p.mainPath(s.id), p.recordPath(s.id)
	for _, name := range []string{main + fsutil.Temporary, main, record + fsutil.Temporary, record} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			p.log.Warn("erase", "sandbox", s.id, "err", err)
		}
	}
	_ = s.lock.Remove() // a remaining lock file is harmless
}

// adoptAll adopts the recorded sandboxes of programs that have ended.
func (p *Provider) adoptAll() error {
	ids, err := p.listRecordIDs()
	if err != nil {
		return atoll.E("open", p.opts.Dir, atoll.KindOf(err), err)
	}
	for _, id := range ids {
		if err := p.adoptSandbox(id); err != nil {
			p.log.Error("adopt", "sandbox", id, "err", err)
		}
	}
	return nil
}

// listRecordIDs returns the ids of all sandboxes with a record, whichever program owns them.
func (p *Provider) listRecordIDs() ([]string, error) {
	entries, err := os.ReadDir(p.recordDir())
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), ".json")
		if n, err := atoll.NormalizeID(id); ok && err == nil && n == id {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// adoptSandbox takes over one sandbox, unless a running program owns it.
func (p *Provider) adoptSandbox(id string) error {
	held, err := p.lockSandbox(id)
	if errors.Is(err, atoll.ErrAlreadyExists) {
		return nil // a running program owns it
	}
	if err != nil {
		return err
	}
	r, err := p.readRecord(id)
	if err != nil {
		held.Release()
		return err
	}
	s := newSandbox(p, &r.Spec)
	defer s.endOperation()
	s.st, s.lock, s.newDataVolume = r.Status, held, r.Fresh
	s.needsSweep.Store(true)
	s.st.Provider, s.st.Spec.Provider, s.st.Caps = p.opts.Info.Name, p.opts.Info.Name, p.capsOf(&r.Spec)
	if r.State == atoll.StateCreating {
		s.undoCreate()
		return nil
	}
	if err := s.sweepProcesses(); err != nil {
		p.log.Warn("sweep", "sandbox", id, "err", err)
	}
	if r.State == atoll.StateRunning {
		s.deleteSavedMain() // its program may have been killed before deleting it
	} else {
		s.loadSavedMain()
	}
	s.created = true
	p.mu.Lock()
	p.addLocked(s)
	p.mu.Unlock()
	if r.State == atoll.StateRunning {
		s.updateStatusOrLog(func(st *atoll.Status) {
			st.State, st.Reason, st.Stopped = atoll.StateFailed, "the program that ran it died", time.Now()
		})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setTimers()
	return nil
}

// errDamagedRecord marks the error of a record that cannot be decoded or is inconsistent.
var errDamagedRecord = errors.New("record is damaged")

// readRecord reads the record of a sandbox. With errDamagedRecord, it also returns the fields that it
// could decode.
func (p *Provider) readRecord(id string) (r record, err error) {
	data, err := os.ReadFile(p.recordPath(id))
	if err != nil {
		return r, err
	}
	if err = json.Unmarshal(data, &r); err == nil {
		err = r.Spec.Validate()
	}
	if err == nil && (r.ID != id || r.Spec.ID != id) {
		err = errors.New("record belongs to another sandbox")
	}
	if err != nil {
		return r, fmt.Errorf("%w: %w", errDamagedRecord, err)
	}
	return r, nil
}
