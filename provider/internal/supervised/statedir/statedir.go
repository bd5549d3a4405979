// Package statedir implements the layout of a state directory, which a provider and its
// supervisors share without communicating:
//
//	sandboxes/{id}/           lock, keeper.lock, keeper.sock, keeper.log, main.ended, cgroup, files of its provider
//	sandboxes/.mark-{id}      names a thing that is made before a record names it
//	records/{id}.json         the sandbox's Record; one directory, so that one watch sees all
//	locks/{id}                on Windows the sandbox's "lock", which elsewhere is in its directory
//	names/{project}/{name}    holds the id of the sandbox with that name
//	volumes/{project}/{name}/ data volumes ("data-{id}") and named volumes
//	snapshots/{id}/           snapshot.json and the files that its provider restores
//	snapshots/.new-{id}-{id}/ a sandbox's snapshot until it is complete
//	images/                   the image store
//
// A process holds a sandbox's "lock" while it changes its life: create, start, stop,
// remove, sweep. The supervisor holds the sandbox's "keeper.lock" as long as it
// lives, so a free keeper.lock proves that nothing runs.
package statedir

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"github.com/seed46cd37a8/atoll/provider/internal/volume"
)

// A Dir is a state directory.
type Dir string

// A Record is the state of a sandbox on disk.
type Record struct {
	Status     atoll.Status `json:"status"`
	Image      string       `json:"image,omitempty"`  // root file system directory; "" for the host's
	Digest     string       `json:"digest,omitempty"` // the image's; "" for a directory that is used in place
	Env        []string     `json:"env,omitempty"`    // the image's
	User       string       `json:"user,omitempty"`   // the image's
	Supervisor Identity     `json:"keeper,omitzero"`  // the latest supervisor
	Run        string       `json:"run,omitempty"`    // the sandbox's run directory
	Cgroup     string       `json:"cgroup,omitempty"` // path of its cgroup, removed with the sandbox

	// Fresh says that the creation made the data volume: a failed creation removes it, and
	// the first start gives all of it to the default user.
	Fresh bool `json:"fresh,omitempty"`
	// Removing, once set, means that the removal is in progress: there is no way back.
	Removing *atoll.RemoveOptions `json:"removing,omitempty"`

	// Secrets are the values of the sandbox's secrets, by name, if the process that has the record knows them. No file has them.
	Secrets map[string]string `json:"-"`

	// Damaged says that the record could not be read, and this is all that is known. See
	// Read.
	Damaged bool `json:"-"`
}

// Open makes the missing directories, for their owner only. It returns fs.ErrPermission if
// other users own one of them or can write to it: records decide about deletions, kills and
// mounts, with root's rights if root reads them.
func Open(path string) (Dir, error) {
	for _, sub := range []string{"", "sandboxes", "records", "names", "volumes", "snapshots"} {
		dir := filepath.Join(path, sub)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return "", err
		}
		info, err := os.Stat(dir)
		if err != nil {
			return "", err
		}
		if fault := ownershipFault(dir, info); fault != "" {
			return "", fmt.Errorf("state directory %s %s, but must belong to this user alone; choose another with --state-dir or XDG_STATE_HOME (%w)", dir, fault, fs.ErrPermission)
		}
	}
	return Dir(path), nil
}

// Sandbox returns the sandbox's own directory.
func (d Dir) Sandbox(id string) string { return filepath.Join(string(d), "sandboxes", id) }

// Record returns the path of the sandbox's Record.
func (d Dir) Record(id string) string { return filepath.Join(string(d), "records", id+".json") }

// Volumes returns the store of the volumes.
func (d Dir) Volumes() volume.Store { return volume.Store(filepath.Join(string(d), "volumes")) }

// Volume returns the directory of a volume.
func (d Dir) Volume(project, name string) string { return d.Volumes().Path(project, name) }

// DataVolume returns the name of a sandbox's data volume.
func DataVolume(id string) string { return volume.DataName(id) }

// Images returns the directory of the image store.
func (d Dir) Images() string { return filepath.Join(string(d), "images") }

func (d Dir) namePath(project, name string) string {
	return filepath.Join(string(d), "names", project, name)
}

// Read returns the sandbox's record, or fs.ErrNotExist. Instead of a damaged record, or one
// that this user may not read, it returns what is known without it, with Damaged set: one
// bad file must not block access to all others.
func (d Dir) Read(id string) (*Record, error) {
	data, err := fsutil.ReadFile(d.Record(id))
	if isUnreadable(err) {
		return d.salvageRecord(id, err), nil
	}
	if err != nil {
		return nil, err
	}
	var r Record
	err = json.Unmarshal(data, &r)
	if err == nil {
		err = r.checkRecord(id)
	}
	if err != nil {
		return d.salvageRecord(id, err), nil
	}
	return &r, nil
}

// isUnreadable reports whether reading the file will fail again.
func isUnreadable(err error) bool {
	for _, permanent := range []error{fs.ErrPermission, syscall.EIO, unclean, syscall.EISDIR} {
		if errors.Is(err, permanent) {
			return true
		}
	}
	return false
}

// checkRecord returns an error if the record belongs to another sandbox, or contains paths
// that lead elsewhere.
func (r *Record) checkRecord(id string) error {
	st := &r.Status
	if st.ID != id {
		return errors.New("it belongs to another sandbox")
	}
	for _, name := range []string{st.Spec.Project, st.Spec.Name} {
		if name != "" && !atoll.ValidName(name) {
			return fmt.Errorf("name %q is not valid", name)
		}
	}
	// The directory above it depends on its maker's environment.
	if r.Run != "" && (!filepath.IsAbs(r.Run) || filepath.Base(r.Run) != id) {
		return fmt.Errorf("%s: not the sandbox's run directory", r.Run)
	}
	return nil
}

// salvageRecord returns what is known of a sandbox without its record: everything that
// carries its id.
func (d Dir) salvageRecord(id string, cause error) *Record {
	r := &Record{Damaged: true, Status: atoll.Status{ID: id, Spec: atoll.Spec{ID: id}, State: atoll.StateFailed}}
	st := &r.Status
	st.Reason = fmt.Sprintf("its record cannot be read (%v): copy what you need from its work directory, then remove it", cause)
	if info, err := os.Stat(d.Record(id)); err == nil {
		st.Created = info.ModTime()
	}
	note, _ := os.ReadFile(d.cgroupNote(id)) // few sandboxes have one
	r.Cgroup, _ = parseMark(note)
	volumes, _ := d.Volumes().List("") // on an error, less is known
	for _, v := range volumes {
		if v.Sandbox == id {
			st.Spec.Project = v.Project
		}
	}
	_ = d.eachName(func(project, name, owner string) error {
		if owner == id {
			st.Spec.Project, st.Spec.Name = project, name
		}
		return nil
	})
	st.Spec = *st.Spec.WithDefaults()
	return r
}

// Write replaces the sandbox's record atomically. A power cut can damage the record of a
// creation in progress, of which nothing is worth saving, but no other.
func (d Dir) Write(r *Record) error {
	if r.Status.State == atoll.StateCreating {
		return fsutil.WriteJSON(d.Record(r.Status.ID), r) // no sync: it would slow down each creation
	}
	return fsutil.SyncJSON(d.Record(r.Status.ID), r)
}

// WriteCreated is Write for the record of a sandbox that has just been created, without the wait for the disk. Call Sync then: until it
// returns, a power cut may undo the creation.
func (d Dir) WriteCreated(r *Record) error { return fsutil.WriteJSON(d.Record(r.Status.ID), r) }

// Sync waits until the sandbox's record is on disk. It returns nil if the sandbox has been removed.
func (d Dir) Sync(id string) error {
	if err := fsutil.SyncFile(d.Record(id)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// removeFile is os.Remove that accepts a missing file.
func removeFile(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// IDs lists the sandboxes that have a record.
func (d Dir) IDs() ([]string, error) { return d.listIDs("records", ".json") }

// Dirs lists the sandboxes that have a directory, with or without a record.
func (d Dir) Dirs() ([]string, error) { return d.listIDs("sandboxes", "") }

func (d Dir) listIDs(sub, suffix string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(string(d), sub))
	if err != nil {
		return nil, err
	}
	ids := make([]string, 0, len(entries))
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), suffix); ok && isID(id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// ClaimName gives the name in project to the sandbox id. It returns fs.ErrExist if another
// sandbox has the name, and that sandbox has a record or is being created.
func (d Dir) ClaimName(project, name, id string) error {
	unlock, err := fsutil.WaitLock(filepath.Join(string(d), "names.lock"))
	if err != nil {
		return err
	}
	defer unlock.Release()
	if owner, err := d.NameOwner(project, name); err == nil && owner != id && d.Known(owner) {
		return fs.ErrExist
	}
	path := d.namePath(project, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return fsutil.WriteFile(path, []byte(id)) // a valid name has no dot
}

// Known reports whether the sandbox has a record, or is being created.
func (d Dir) Known(id string) bool {
	return isID(id) && (pathExists(d.Record(id)) || pathExists(d.Sandbox(id)))
}

// isID reports whether id is a sandbox's id, in the one form that file names have here.
func isID(id string) bool {
	n, err := atoll.NormalizeID(id)
	return err == nil && n == id && id != ""
}

// NameOwner returns the id of the sandbox with that name in project, or fs.ErrNotExist.
func (d Dir) NameOwner(project, name string) (string, error) {
	data, err := os.ReadFile(d.namePath(project, name))
	if err != nil {
		return "", err
	}
	return string(data), nil
}

// ReleaseName frees the name if the sandbox id has it.
func (d Dir) ReleaseName(project, name, id string) error {
	unlock, err := fsutil.WaitLock(filepath.Join(string(d), "names.lock"))
	if err != nil {
		return err
	}
	defer unlock.Release()
	owner, err := d.NameOwner(project, name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && owner != id {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Remove(d.namePath(project, name))
}

// ReleaseNames frees all names of the sandbox id, whose record is lost, and removes the
// remains of an interrupted ClaimName.
func (d Dir) ReleaseNames(id string) error {
	unlock, err := fsutil.WaitLock(filepath.Join(string(d), "names.lock"))
	if err != nil {
		return err
	}
	defer unlock.Release()
	return d.eachName(func(project, name, owner string) error {
		if owner == id || strings.HasSuffix(name, fsutil.Temporary) {
			return removeFile(d.namePath(project, name))
		}
		return nil
	})
}

// eachName calls f with all names and their sandboxes' ids, until f fails.
func (d Dir) eachName(f func(project, name, owner string) error) error {
	return filepath.WalkDir(filepath.Join(string(d), "names"), func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || err == nil && e.IsDir() {
			return nil
		}
		owner, readErr := os.ReadFile(path)
		if errors.Is(readErr, fs.ErrNotExist) { // just released
			return nil
		}
		if err := cmp.Or(err, readErr); err != nil {
			return err
		}
		return f(filepath.Base(filepath.Dir(path)), filepath.Base(path), string(owner))
	})
}

// BeginRemoval records, unless r says so, that the sandbox is being removed: from then on
// any process that finds it finishes the removal. Call it before anything of the sandbox is
// lost.
func (d Dir) BeginRemoval(r *Record, opts atoll.RemoveOptions) error {
	if r.Removing != nil && (r.Removing.Volumes || !opts.Volumes) {
		return nil
	}
	r.Removing = &opts
	err := d.Write(r)
	if fsutil.IsFull(err) {
		return nil // on a full disk, the removal itself helps
	}
	return err
}

// Delete removes everything that the sandbox left on disk: its run directory, with
// opts.Volumes its data volume, its name, its directory, and last its record, which first
// says that it is being removed: the next Delete finishes an interrupted one. Nothing of
// the sandbox may run. The caller holds its lock.
func (d Dir) Delete(r *Record, opts atoll.RemoveOptions) error {
	st := &r.Status
	if err := d.BeginRemoval(r, opts); err != nil {
		return err
	}
	var errs []error
	if r.Run != "" {
		errs = append(errs, RemoveRun(r.Run))
	}
	if r.Removing.Volumes {
		err := d.Volumes().Remove(st.Spec.Project, DataVolume(st.ID), nil)
		if atoll.KindOf(err) != atoll.ErrNotExist {
			errs = append(errs, err)
		}
	}
	if st.Spec.Name != "" {
		errs = append(errs, d.ReleaseName(st.Spec.Project, st.Spec.Name, st.ID))
	}
	errs = append(errs, d.DropSnapshots(st.ID))
	if err := errors.Join(errs...); err != nil {
		return err // the next try needs the lock, which goes with the directory
	}
	if err := discardDir(d.Sandbox(st.ID)); err != nil {
		return err
	}
	return errors.Join(removeFile(d.Record(st.ID)+fsutil.Temporary), removeFile(d.Record(st.ID)), d.dropLock(st.ID))
}

// DropNames frees the project's names, except those of existing sandboxes.
func (d Dir) DropNames(project string) error {
	unlock, err := fsutil.WaitLock(filepath.Join(string(d), "names.lock"))
	if err != nil {
		return err
	}
	defer unlock.Release()
	dir := filepath.Dir(d.namePath(project, "x"))
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if owner, err := d.NameOwner(project, e.Name()); err != nil || !d.Known(owner) {
			errs = append(errs, os.Remove(d.namePath(project, e.Name())))
		}
	}
	_ = os.Remove(dir) // if none is left
	return errors.Join(errs...)
}

// Prefixes of the names of directories that are not sandboxes or snapshots yet, or not any
// more.
const (
	newPrefix   = ".new-"
	trashPrefix = ".trash-"
)

// discardDir deletes a directory, for all others at once, by renaming it first: nobody can
// open a lock in it, or add a file, while it is being emptied. It returns nil if there is
// no such directory.
func discardDir(path string) error {
	gone := filepath.Join(filepath.Dir(path), trashPrefix+atoll.NewID())
	err := fsutil.Rename(path, gone)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return fsutil.RemoveAll(gone)
}

// EmptyTrash removes what interrupted deletions, and creations that had hardly begun, have
// left.
func (d Dir) EmptyTrash() error {
	sandboxes, err1 := d.listPrefixed("sandboxes", trashPrefix)
	snapshots, err2 := d.listPrefixed("snapshots", trashPrefix)
	begun, err3 := d.listPrefixed("sandboxes", newPrefix)
	errs := []error{err1, err2, err3, d.Volumes().EmptyTrash(), d.sweepLocks()}
	for _, path := range begun {
		errs = append(errs, sweepBegun(path))
	}
	for _, path := range slices.Concat(sandboxes, snapshots) {
		errs = append(errs, fsutil.RemoveAll(path))
	}
	return errors.Join(errs...)
}

// listPrefixed lists the paths in a directory whose names begin with prefix.
func (d Dir) listPrefixed(sub, prefix string) ([]string, error) {
	dir := filepath.Join(string(d), sub)
	entries, err := os.ReadDir(dir)
	var paths []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	return paths, err
}
