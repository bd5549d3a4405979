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

// A workspaceKey identifies a workspace.
type workspaceKey struct{ project, name string }

// A store stores workspaces in a directory tree that several programs may share. Each workspace
// has a directory with its record, its clone, and a lock that a program holds while it adds,
// updates or removes the workspace. A clone does not change once it exists.
type store struct{ Options }

// The files in the directory of a workspace.
const (
	recordFile   = "workspace.json"
	lockFile     = "lock"
	progressFile = "progress" // exists during a clone, and after a crash in one
	clonePrefix  = "clone-"
)

// A record is the stored state of a workspace.
type record struct {
	Spec
	Created time.Time `json:"created"`

	Clone   string    `json:"clone,omitempty"` // name of the clone's directory; "" if there is none
	Commit  string    `json:"commit,omitempty"`
	Updated time.Time `json:"updated,omitzero"`

	Failed time.Time  `json:"failed,omitzero"` // time of the last attempt, if it failed
	Error  string     `json:"error,omitempty"`
	Kind   atoll.Kind `json:"kind,omitempty"`

	dir string // the directory of the workspace
}

func (k *record) failureError(op string) error {
	return atoll.Errorf(op, k.Name, k.Kind, "%s", k.Error)
}

func (s *store) workspaceDir(at workspaceKey) string {
	return filepath.Join(s.Dir, at.project, at.name)
}

// readRecord reads the record of a workspace. Kinds: ErrNotExist.
func (s *store) readRecord(at workspaceKey) (*record, error) {
	none := atoll.Errorf("workspace", at.name, atoll.ErrNotExist, "workspace not found in project %s", at.project)
	if !atoll.ValidName(at.project) || !atoll.ValidName(at.name) {
		return nil, none
	}
	k := &record{dir: s.workspaceDir(at)}
	data, err := os.ReadFile(filepath.Join(k.dir, recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, none
	}
	if err == nil {
		err = json.Unmarshal(data, k)
	}
	return k, err
}

func (k *record) writeRecord() error { return fsutil.SyncJSON(filepath.Join(k.dir, recordFile), k) }

// hasRecord reports whether a workspace exists.
func (s *store) hasRecord(at workspaceKey) bool {
	_, err := s.readRecord(at)
	return err == nil
}

// addWorkspace adds a workspace. It replaces one that was never ready. If the clone fails, the workspace
// remains with its error, or not at all unless keepFailed.
func (s *store) addWorkspace(ctx context.Context, spec *Spec, keepFailed bool, progress func(atoll.Progress)) (*record, error) {
	const op = "add workspace"
	at := workspaceKey{spec.Project, spec.Name}
	k := &record{Spec: *spec, Created: time.Now(), dir: s.workspaceDir(at)}
	if k.Type() == TypeLocal {
		if err := checkDirectory(op, k); err != nil {
			return nil, err
		}
	}
	lock, err := s.lockNew(ctx, at)
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	if err := k.writeRecord(); err != nil {
		return nil, err
	}
	if k.Type() == TypeGit {
		err = s.cloneWorkspace(ctx, op, k, progress)
	}
	if err != nil && !keepFailed {
		_ = s.deleteWorkspace(k.dir) // return the first error
	}
	return k, err
}

// wasReady reports whether the workspace has ever been ready.
func (k *record) wasReady() bool { return k.Type() == TypeLocal || k.Clone != "" }

// awaitReady returns the workspace when it is ready. If several callers need a clone, one of them
// clones and the others wait.
func (s *store) awaitReady(ctx context.Context, at workspaceKey, progress func(atoll.Progress)) (*record, error) {
	const op = "workspace"
	begun := time.Now()
	for {
		k, err := s.readRecord(at)
		switch {
		case err != nil:
			return nil, err
		case k.Type() == TypeLocal:
			return k, checkDirectory(op, k)
		case k.Clone != "":
			return k, nil
		case k.Failed.After(begun):
			return nil, k.failureError(op)
		}
		lock, err := waitLock(ctx, filepath.Join(k.dir, lockFile), s.echoProgress(k, progress))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		if now, err := s.readRecord(at); err == nil && now.Clone == "" && !now.Failed.After(begun) {
			k, err = now, s.cloneWorkspace(ctx, op, now, progress)
			lock.Release()
			return k, err
		}
		lock.Release() // another program has cloned it
	}
}

// echoProgress returns a function that reports the progress of a clone by another program.
func (s *store) echoProgress(k *record, progress func(atoll.Progress)) func() {
	last := ""
	return func() {
		if now := k.readProgress(); progress != nil && now != "" && now != last {
			last = now
			progress(atoll.Progress{Phase: "clone", Item: k.Name + ": " + now})
		}
	}
}

func (k *record) readProgress() string {
	data, err := os.ReadFile(filepath.Join(k.dir, progressFile))
	if err != nil {
		return ""
	}
	return string(data)
}

// updateWorkspace clones a workspace again. The old clone remains in use until the new one is
// complete.
func (s *store) updateWorkspace(ctx context.Context, at workspaceKey, progress func(atoll.Progress)) (*record, error) {
	const op = "update workspace"
	k, err := s.readRecord(at)
	if err != nil {
		return nil, err
	}
	if k.Type() == TypeLocal {
		return nil, atoll.Errorf(op, at.name, atoll.ErrInvalid, "a directory used in place needs no update")
	}
	lock, err := waitLock(ctx, filepath.Join(k.dir, lockFile), s.echoProgress(k, progress))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	defer lock.Release()
	if k, err = s.readRecord(at); err != nil {
		return nil, err
	}
	return k, s.cloneWorkspace(ctx, op, k, progress)
}

// cloneWorkspace creates a new clone of a workspace and records the result, unless ctx ended. The
// caller must hold the lock.
func (s *store) cloneWorkspace(ctx context.Context, op string, k *record, progress func(atoll.Progress)) error {
	s.removeOldClones(k)
	name := clonePrefix + atoll.NewID()[:8]
	temp := filepath.Join(k.dir, name+fsutil.Temporary)
	note := s.reportProgress(k, progress)
	note("")
	defer func() {
		_ = os.Remove(filepath.Join(k.dir, progressFile)) // ignored without the lock
		_ = fsutil.RemoveAll(temp)                        // or the next clone removes it
	}()
	commit, err := s.fetchSource(ctx, k, temp, note)
	if err == nil {
		err = os.Rename(filepath.Join(temp, ".git"), filepath.Join(k.dir, name))
	}
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		cause := rootCause(err)
		k.Failed, k.Kind, k.Error = time.Now(), kindOf(err), cause.Error()
		_ = k.writeRecord() // return the first error
		return atoll.E(op, k.Name, k.Kind, cause)
	}
	k.Clone, k.Commit, k.Updated = name, commit, time.Now()
	k.Failed, k.Kind, k.Error = time.Time{}, "", ""
	if err := k.writeRecord(); err != nil {
		return err
	}
	s.removeOldClones(k)
	return nil
}

// rootCause returns the innermost error of err without operations and names.
func rootCause(err error) error {
	if e, ok := errors.AsType[*atoll.Error](err); ok && e.Err != nil {
		return rootCause(e.Err)
	}
	return err
}

// reportProgress returns a function that writes the progress for other programs and passes it to
// progress, at most five times a second.
func (s *store) reportProgress(k *record, progress func(atoll.Progress)) func(string) {
	var last time.Time
	return func(text string) {
		if time.Since(last) < 200*time.Millisecond {
			return
		}
		last = time.Now()
		_ = fsutil.WriteFile(filepath.Join(k.dir, progressFile), []byte(text)) // not worth failing the clone
		if progress != nil {
			progress(atoll.Progress{Phase: "clone", Item: strings.TrimSuffix(k.Name+": "+text, ": ")})
		}
	}
}

// removeOldClones removes complete and partial clones other than that of the record, except those
// that are in use. The next call removes those.
func (s *store) removeOldClones(k *record) {
	entries, _ := os.ReadDir(k.dir)
	for _, e := range entries {
		path := filepath.Join(k.dir, e.Name())
		if strings.HasPrefix(e.Name(), clonePrefix) && e.Name() != k.Clone {
			_ = removeUnheld(path)
		}
	}
}

// removeWorkspace removes a workspace if check returns nil.
func (s *store) removeWorkspace(ctx context.Context, at workspaceKey, check func() error) error {
	const op = "remove workspace"
	if _, err := s.readRecord(at); err != nil {
		return err
	}
	lock, err := s.tryLock(at, false)
	if errors.Is(err, fsutil.ErrLocked) {
		return atoll.Errorf(op, at.name, atoll.ErrConflict, "a clone is in progress")
	}
	if err != nil {
		return err
	}
	defer lock.Release()
	if err := cmp.Or(check(), ctx.Err()); err != nil {
		return err
	}
	return s.deleteWorkspace(s.workspaceDir(at))
}

// deleteWorkspace deletes the directory of a workspace, beginning with the record. The caller
// must hold the lock.
func (s *store) deleteWorkspace(dir string) error {
	if err := os.Remove(filepath.Join(dir, recordFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return fsutil.RemoveAll(dir)
}

// removeProject removes all workspaces of a project.
func (s *store) removeProject(ctx context.Context, project string) error {
	if !atoll.ValidName(project) {
		return nil // no workspaces
	}
	names, err := s.listNames(s.Dir, project)
	if err != nil || len(names) == 0 {
		return err
	}
	for _, name := range names {
		dir := s.workspaceDir(workspaceKey{project, name})
		lock, err := waitLock(ctx, filepath.Join(dir, lockFile), nil)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = s.deleteWorkspace(dir)
			lock.Release()
		}
		if err != nil {
			return err
		}
	}
	_ = os.Remove(filepath.Join(s.Dir, project)) // fails if it has a new workspace
	return nil
}

// listNames lists the directories in elem whose names are valid for workspaces and projects.
func (s *store) listNames(elem ...string) ([]string, error) {
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

// listWorkspaces describes the workspaces of a project, or of all projects if project is "".
func (s *store) listWorkspaces(ctx context.Context, project string) ([]Workspace, error) {
	projects, err := s.listNames(s.Dir)
	if err != nil {
		return nil, err
	}
	all := []Workspace{}
	for _, of := range projects {
		if project != "" && of != project {
			continue
		}
		names, err := s.listNames(s.Dir, of)
		if err := cmp.Or(err, ctx.Err()); err != nil {
			return nil, err
		}
		for _, name := range names {
			k, err := s.readRecord(workspaceKey{of, name})
			if atoll.KindOf(err) == atoll.ErrNotExist {
				s.removeRemains(workspaceKey{of, name})
				continue
			}
			if err != nil {
				return nil, err
			}
			all = append(all, s.describeWorkspace(k))
		}
	}
	slices.SortFunc(all, func(a, b Workspace) int {
		return cmp.Or(strings.Compare(a.Project, b.Project), strings.Compare(a.Name, b.Name))
	})
	return all, nil
}

// removeRemains removes the directory of a workspace without a record, which a killed program
// left.
func (s *store) removeRemains(at workspaceKey) {
	lock, err := s.tryLock(at, false)
	if err != nil {
		return
	}
	defer lock.Release()
	if _, err := s.readRecord(at); atoll.KindOf(err) == atoll.ErrNotExist {
		_ = fsutil.RemoveAll(s.workspaceDir(at)) // the next call retries
	}
}

// describeWorkspace returns the current state of a workspace.
func (s *store) describeWorkspace(k *record) Workspace {
	w := Workspace{
		Project: k.Project, Name: k.Name, Type: k.Type(), Source: k.Source, Revision: k.Revision, ReadOnly: k.ReadOnly,
		State: StateReady, Commit: k.Commit, Error: k.Error, Created: k.Created, Updated: k.Updated,
	}
	if w.Type == TypeLocal {
		if err := checkDirectory("workspace", k); err != nil {
			w.State, w.Error = StateError, rootCause(err).Error()
		}
		return w
	}
	cloning := s.isCloning(k)
	if cloning {
		w.Progress = k.readProgress()
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

// isCloning reports whether a program is cloning the workspace. A killed program may leave its
// progress file, but not its lock.
func (s *store) isCloning(k *record) bool {
	if _, err := os.Stat(filepath.Join(k.dir, progressFile)); err != nil {
		return false
	}
	lock, err := fsutil.TryLockExisting(filepath.Join(k.dir, lockFile))
	if err == nil {
		lock.Release()
	}
	return errors.Is(err, fsutil.ErrLocked)
}

// checkDirectory returns an error if the source of k is not usable in place.
func checkDirectory(op string, k *record) error {
	info, err := os.Stat(k.Source) // opening a pipe could block
	if err == nil && !info.IsDir() {
		return atoll.Errorf(op, k.Name, atoll.ErrInvalid, "%s is not a directory", k.Source)
	}
	var dir *os.File
	if err == nil {
		dir, err = os.Open(k.Source)
	}
	if err != nil {
		return atoll.E(op, k.Name, kindOf(err), err)
	}
	defer dir.Close()
	if _, err := dir.Readdirnames(1); err != nil && !errors.Is(err, io.EOF) { // it can be opened and not read
		return atoll.E(op, k.Name, kindOf(err), err)
	}
	return nil
}

func kindOf(err error) atoll.Kind {
	if fsutil.IsFull(err) {
		return atoll.ErrExhausted
	}
	return atoll.KindOf(err)
}

// nameOf returns the name of a workspace that was added by its source.
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
