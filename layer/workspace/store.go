package workspace

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// A key names a workspace.
type key struct{ project, name string }

// A store keeps workspaces: for each a directory with its record, a lock that is
// held as long as it is being made, updated or removed, and the clone, which does
// not change once it is there. All who use Dir are equal.
type store struct{ Options }

// The files in the directory of a workspace.
const (
	recordFile   = "workspace.json"
	lockFile     = "lock"
	progressFile = "progress" // there while somebody clones, or was killed doing so
	clonePrefix  = "clone-"
)

// kept is what is remembered of a workspace.
type kept struct {
	Spec
	Created time.Time `json:"created"`

	Clone   string    `json:"clone,omitempty"` // the directory that has it; "" if there is none
	Commit  string    `json:"commit,omitempty"`
	Updated time.Time `json:"updated,omitzero"`

	Failed time.Time  `json:"failed,omitzero"` // the last attempt, unless one has succeeded since
	Error  string     `json:"error,omitempty"`
	Kind   atoll.Kind `json:"kind,omitempty"`

	dir string // its own
}

func (k *kept) failure(op string) error { return atoll.Errorf(op, k.Name, k.Kind, "%s", k.Error) }

func (s *store) dir(at key) string { return filepath.Join(s.Dir, at.project, at.name) }

// read returns what is remembered. Kinds: ErrNotExist.
func (s *store) read(at key) (*kept, error) {
	none := atoll.Errorf("workspace", at.name, atoll.ErrNotExist, "project %s has no workspace of that name", at.project)
	if !atoll.ValidName(at.project) || !atoll.ValidName(at.name) {
		return nil, none
	}
	k := &kept{dir: s.dir(at)}
	data, err := os.ReadFile(filepath.Join(k.dir, recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, none
	}
	if err == nil {
		err = json.Unmarshal(data, k)
	}
	return k, err
}

func (k *kept) write() error { return fsutil.SyncJSON(filepath.Join(k.dir, recordFile), k) }

// add makes a workspace. One that is there and was never ready is replaced.
func (s *store) add(ctx context.Context, spec *Spec, progress func(atoll.Progress)) (*kept, error) {
	const op = "add workspace"
	at := key{spec.Project, spec.Name}
	k := &kept{Spec: *spec, Created: time.Now(), dir: s.dir(at)}
	if k.Type() == TypeLocal {
		if err := usable(op, k); err != nil {
			return nil, err
		}
	}
	lock, err := s.vacant(ctx, at)
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	if err := k.write(); err != nil {
		return nil, err
	}
	if k.Type() == TypeGit {
		err = s.clone(ctx, op, k, progress)
	}
	return k, err
}

// made reports whether it has been ready.
func (k *kept) made() bool { return k.Type() == TypeLocal || k.Clone != "" }

// ready returns the workspace when it can be used. One that is not cloned yet is
// cloned, by one for all who wait.
func (s *store) ready(ctx context.Context, at key, progress func(atoll.Progress)) (*kept, error) {
	const op = "workspace"
	begun := time.Now()
	for {
		k, err := s.read(at)
		switch {
		case err != nil:
			return nil, err
		case k.Type() == TypeLocal:
			return k, usable(op, k)
		case k.Clone != "":
			return k, nil
		case k.Failed.After(begun):
			return nil, k.failure(op)
		}
		lock, err := waitLock(ctx, filepath.Join(k.dir, lockFile), s.echo(k, progress))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was removed
		}
		if err != nil {
			return nil, err
		}
		if now, err := s.read(at); err == nil && now.Clone == "" && !now.Failed.After(begun) {
			k, err = now, s.clone(ctx, op, now, progress)
			lock.Release()
			return k, err
		}
		lock.Release() // another one was faster
	}
}

// echo returns what passes on the progress of another one who clones.
func (s *store) echo(k *kept, progress func(atoll.Progress)) func() {
	last := ""
	return func() {
		if now := k.progress(); progress != nil && now != "" && now != last {
			last = now
			progress(atoll.Progress{Phase: "clone", Item: k.Name + ": " + now})
		}
	}
}

func (k *kept) progress() string {
	data, err := os.ReadFile(filepath.Join(k.dir, progressFile))
	if err != nil {
		return ""
	}
	return string(data)
}

// update clones a workspace once more. What is there is used until that is done.
func (s *store) update(ctx context.Context, at key, progress func(atoll.Progress)) (*kept, error) {
	const op = "update workspace"
	k, err := s.read(at)
	if err != nil {
		return nil, err
	}
	if k.Type() == TypeLocal {
		return nil, atoll.Errorf(op, at.name, atoll.ErrInvalid, "it is a directory that is used in place: there is nothing to update")
	}
	lock, err := waitLock(ctx, filepath.Join(k.dir, lockFile), s.echo(k, progress))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	defer lock.Release()
	if k, err = s.read(at); err != nil {
		return nil, err
	}
	return k, s.clone(ctx, op, k, progress)
}

// clone makes a new clone of a workspace, and remembers how that went, unless it
// is the caller who gives up. The caller has the lock.
func (s *store) clone(ctx context.Context, op string, k *kept, progress func(atoll.Progress)) error {
	s.tidy(k)
	name := clonePrefix + atoll.NewID()[:8]
	temp := filepath.Join(k.dir, name+fsutil.Temporary)
	note := s.note(k, progress)
	note("")
	defer func() {
		_ = os.Remove(filepath.Join(k.dir, progressFile)) // nobody believes it without the lock
		_ = fsutil.RemoveAll(temp)                        // the next one does it else
	}()
	commit, err := s.fetch(ctx, k, temp, note)
	if err == nil {
		err = os.Rename(filepath.Join(temp, ".git"), filepath.Join(k.dir, name))
	}
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		cause := cause(err)
		k.Failed, k.Kind, k.Error = time.Now(), kindOf(err), cause.Error()
		_ = k.write() // the first error counts
		return atoll.E(op, k.Name, k.Kind, cause)
	}
	k.Clone, k.Commit, k.Updated = name, commit, time.Now()
	k.Failed, k.Kind, k.Error = time.Time{}, "", ""
	if err := k.write(); err != nil {
		return err
	}
	s.tidy(k)
	return nil
}

// cause is err without what it is about.
func cause(err error) error {
	if e, ok := errors.AsType[*atoll.Error](err); ok && e.Err != nil {
		return cause(e.Err)
	}
	return err
}

// note returns what tells everybody of progress, a few times a second.
func (s *store) note(k *kept, progress func(atoll.Progress)) func(string) {
	var last time.Time
	return func(text string) {
		if time.Since(last) < 200*time.Millisecond {
			return
		}
		last = time.Now()
		_ = fsutil.WriteFile(filepath.Join(k.dir, progressFile), []byte(text)) // the clone matters more
		if progress != nil {
			progress(atoll.Progress{Phase: "clone", Item: strings.TrimSuffix(k.Name+": "+text, ": ")})
		}
	}
}

// tidy removes clones that are not that of the record, finished or not, unless
// somebody still reads them: the next one does it then.
func (s *store) tidy(k *kept) {
	entries, _ := os.ReadDir(k.dir)
	for _, e := range entries {
		path := filepath.Join(k.dir, e.Name())
		if strings.HasPrefix(e.Name(), clonePrefix) && e.Name() != k.Clone {
			_ = removeUnheld(path)
		}
	}
}

// remove forgets a workspace, if check lets it.
func (s *store) remove(ctx context.Context, at key, check func() error) error {
	const op = "remove workspace"
	if _, err := s.read(at); err != nil {
		return err
	}
	lock, err := s.tryLock(at, false)
	if errors.Is(err, fsutil.ErrLocked) {
		return atoll.Errorf(op, at.name, atoll.ErrConflict, "it is being cloned")
	}
	if err != nil {
		return err
	}
	defer lock.Release()
	if err := cmp.Or(check(), ctx.Err()); err != nil {
		return err
	}
	return s.erase(s.dir(at))
}

// erase deletes the directory of a workspace, the record first. The caller has the
// lock.
func (s *store) erase(dir string) error {
	if err := os.Remove(filepath.Join(dir, recordFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return fsutil.RemoveAll(dir)
}

// removeProject forgets all workspaces of a project.
func (s *store) removeProject(ctx context.Context, project string) error {
	if !atoll.ValidName(project) {
		return nil // it has none
	}
	names, err := s.names(s.Dir, project)
	if err != nil || len(names) == 0 {
		return err
	}
	for _, name := range names {
		dir := s.dir(key{project, name})
		lock, err := waitLock(ctx, filepath.Join(dir, lockFile), nil)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = s.erase(dir)
			lock.Release()
		}
		if err != nil {
			return err
		}
	}
	_ = os.Remove(filepath.Join(s.Dir, project)) // unless somebody has just added one
	return nil
}

// names lists the directories below dir that have the name of a workspace or a
// project.
func (s *store) names(elem ...string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(elem...))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && atoll.ValidName(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// list describes the workspaces of a project, or of all.
func (s *store) list(ctx context.Context, project string) ([]Workspace, error) {
	projects, err := s.names(s.Dir)
	if err != nil {
		return nil, err
	}
	all := []Workspace{}
	for _, of := range projects {
		if project != "" && of != project {
			continue
		}
		names, err := s.names(s.Dir, of)
		if err := cmp.Or(err, ctx.Err()); err != nil {
			return nil, err
		}
		for _, name := range names {
			k, err := s.read(key{of, name})
			if atoll.KindOf(err) == atoll.ErrNotExist {
				s.bury(key{of, name})
				continue
			}
			if err != nil {
				return nil, err
			}
			all = append(all, s.describe(k))
		}
	}
	slices.SortFunc(all, func(a, b Workspace) int {
		return cmp.Or(strings.Compare(a.Project, b.Project), strings.Compare(a.Name, b.Name))
	})
	return all, nil
}

// bury removes what one who was killed has left of a workspace without a record.
func (s *store) bury(at key) {
	lock, err := s.tryLock(at, false)
	if err != nil {
		return
	}
	defer lock.Release()
	if _, err := s.read(at); atoll.KindOf(err) == atoll.ErrNotExist {
		_ = fsutil.RemoveAll(s.dir(at)) // the next one goes on
	}
}

// describe says how it is with a workspace.
func (s *store) describe(k *kept) Workspace {
	w := Workspace{
		Project: k.Project, Name: k.Name, Type: k.Type(), Source: k.Source, Revision: k.Revision, ReadOnly: k.ReadOnly,
		State: StateReady, Commit: k.Commit, Error: k.Error, Created: k.Created, Updated: k.Updated,
	}
	if w.Type == TypeLocal {
		if err := usable("workspace", k); err != nil {
			w.State, w.Error = StateError, cause(err).Error()
		}
		return w
	}
	cloning := s.cloning(k)
	if cloning {
		w.Progress = k.progress()
	}
	switch {
	case k.Clone != "":
	case cloning:
		w.State, w.Error = StateCloning, ""
	case k.Error != "":
		w.State = StateError
	default:
		w.State = StateInitializing
	}
	return w
}

// cloning reports whether somebody does. The progress of one who was killed says
// nothing: he has lost the lock.
func (s *store) cloning(k *kept) bool {
	if _, err := os.Stat(filepath.Join(k.dir, progressFile)); err != nil {
		return false
	}
	lock, err := fsutil.TryLockExisting(filepath.Join(k.dir, lockFile))
	if err == nil {
		lock.Release()
	}
	return errors.Is(err, fsutil.ErrLocked)
}

// usable says what is wrong with a directory that is to be used in place. An
// empty one is a mistyped path more often than a project that is yet to begin.
func usable(op string, k *kept) error {
	info, err := os.Stat(k.Source) // to open what it has become may take for ever
	if err == nil && !info.IsDir() {
		return atoll.Errorf(op, k.Name, atoll.ErrInvalid, "%s is no directory", k.Source)
	}
	var dir *os.File
	if err == nil {
		dir, err = os.Open(k.Source)
	}
	if err != nil {
		return atoll.E(op, k.Name, kindOf(err), err)
	}
	defer dir.Close()
	if names, err := dir.Readdirnames(1); len(names) == 0 {
		if err != nil && !errors.Is(err, io.EOF) {
			return atoll.E(op, k.Name, kindOf(err), err)
		}
		return atoll.Errorf(op, k.Name, atoll.ErrInvalid, "directory %s is empty: put something into it, for instance by git init", k.Source)
	}
	return nil
}

func kindOf(err error) atoll.Kind {
	if fsutil.IsFull(err) {
		return atoll.ErrExhausted
	}
	return atoll.KindOf(err)
}

// nameOf is the name of the workspace of a source that was not given one.
func nameOf(source string) string {
	base := strings.TrimRight(strings.TrimSuffix(strings.TrimRight(source, "/"), ".git"), "/")
	base = base[strings.LastIndexAny(base, "/:")+1:]
	base = strings.Map(func(r rune) rune {
		if r < 128 && atoll.ValidName("x"+string(r)) {
			return r
		}
		return '-'
	}, base)
	base = strings.TrimLeft(base[:min(len(base), 40)], "-_")
	sum := sha256.Sum256([]byte(source))
	return cmp.Or(base, "workspace") + "-" + hex.EncodeToString(sum[:4])
}
