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

// A sandbox's record is its Status as JSON in {dir}/sandboxes/{id}.json. The
// program that answers for it holds a lock on {id}.lock, which the kernel
// releases however that program ends: no PID has to be trusted. {id}.ended is
// what was left of the main process of its latest run.

type record struct {
	atoll.Status
	Fresh bool `json:"fresh,omitempty"` // the data volume was made for it
}

func (p *Provider) recordDir() string           { return filepath.Join(p.opts.Dir, "sandboxes") }
func (p *Provider) recordPath(id string) string { return filepath.Join(p.recordDir(), id+".json") }
func (p *Provider) lockPath(id string) string   { return filepath.Join(p.recordDir(), id+".lock") }
func (p *Provider) mainPath(id string) string   { return filepath.Join(p.recordDir(), id+".ended") }

// free fails when there is a record of another program's sandbox.
func (p *Provider) free(id string) error {
	_, err := os.Lstat(p.recordPath(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = atoll.Errorf("create", id, atoll.ErrAlreadyExists, "a sandbox with this id is there already")
	}
	return err
}

// lock takes the lock of a sandbox that this program is to answer for. Kinds:
// ErrAlreadyExists (another one does).
func (p *Provider) lock(id string) (*fsutil.Lock, error) {
	l, err := fsutil.TryLock(p.lockPath(id))
	if errors.Is(err, fsutil.ErrLocked) {
		return nil, atoll.Errorf("create", id, atoll.ErrAlreadyExists, "another program has a sandbox with this id")
	}
	return l, err
}

// save writes the record, at once and as a whole.
func (p *Provider) save(r record) error {
	if err := p.step("record"); err != nil {
		return err
	}
	return fsutil.WriteJSON(p.recordPath(r.ID), r)
}

// saveMain keeps the main process of a run that has ended for later programs.
func (b *box) saveMain() {
	if len(b.place.Spec.Cmd) == 0 || b.place.Spec.AutoRemove {
		return
	}
	if err := b.table.Save(b.p.mainPath(b.id), atoll.MainProcess); err != nil {
		b.p.log.Warn("the output of the main process is lost", "sandbox", b.id, "err", err)
	}
}

// dropMain forgets the main process of the run before one that is recorded.
func (b *box) dropMain() {
	if err := os.Remove(b.p.mainPath(b.id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		b.p.log.Warn("the main process of an earlier run is still known", "sandbox", b.id, "err", err)
	}
}

// loadMain finds the main process of the run that an earlier program made.
func (b *box) loadMain() {
	table, err := process.Load(b.p.mainPath(b.id))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		b.p.log.Warn("the output of the main process is lost", "sandbox", b.id, "err", err)
		return
	}
	b.table = table
}

// erase removes the record and releases the lock.
func (p *Provider) erase(b *box) {
	main, record := p.mainPath(b.id), p.recordPath(b.id)
	for _, name := range []string{main + fsutil.Temporary, main, record + fsutil.Temporary, record} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			p.log.Warn("erase", "sandbox", b.id, "err", err)
		}
	}
	_ = b.lock.Remove() // a file that is left does no harm
}

// load adopts the sandboxes of programs that have ended.
func (p *Provider) load() error {
	ids, err := p.recorded()
	if err != nil {
		return atoll.E("open", p.opts.Dir, atoll.KindOf(err), err)
	}
	for _, id := range ids {
		if err := p.adopt(id); err != nil {
			p.log.Error("adopt", "sandbox", id, "err", err)
		}
	}
	return nil
}

// recorded lists the sandboxes that have a record, whoever answers for them.
func (p *Provider) recorded() ([]string, error) {
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

// adopt takes over one sandbox.
func (p *Provider) adopt(id string) error {
	held, err := p.lock(id)
	if errors.Is(err, atoll.ErrAlreadyExists) {
		return nil // of a program that lives
	}
	if err != nil {
		return err
	}
	r, err := p.read(id)
	if err != nil {
		held.Release()
		return err
	}
	b := newBox(p, &r.Spec)
	defer b.release()
	b.st, b.lock, b.fresh = r.Status, held, r.Fresh
	b.dirty.Store(true)
	b.st.Provider, b.st.Spec.Provider, b.st.Caps = p.opts.Info.Name, p.opts.Info.Name, p.opts.Info.Caps
	if r.State == atoll.StateCreating {
		b.undo()
		return nil
	}
	if err := b.sweep(); err != nil {
		p.log.Warn("sweep", "sandbox", id, "err", err)
	}
	if r.State == atoll.StateRunning {
		b.dropMain() // its program may have been killed before it did
	} else {
		b.loadMain()
	}
	b.made = true
	p.mu.Lock()
	p.enter(b)
	p.mu.Unlock()
	if r.State == atoll.StateRunning {
		b.settle(func(st *atoll.Status) {
			st.State, st.Reason, st.Stopped = atoll.StateFailed, "the program that ran it died", time.Now()
		})
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.arm()
	return nil
}

// errDamaged is why a record says nothing.
var errDamaged = errors.New("the record is damaged")

func (p *Provider) read(id string) (r record, err error) {
	b, err := os.ReadFile(p.recordPath(id))
	if err != nil {
		return r, err
	}
	if err = json.Unmarshal(b, &r); err == nil {
		err = r.Spec.Validate()
	}
	if err == nil && (r.ID != id || r.Spec.ID != id) {
		err = errors.New("it is that of another sandbox")
	}
	if err != nil {
		return r, fmt.Errorf("%w: %w", errDamaged, err)
	}
	return r, nil
}
