package vmdocker

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// noteStore is a directory with the last known state of sandboxes, images and volumes, for the
// time when their machine is off: projects/PROJECT/sandboxes/ID.json, and volumes.json and
// images.json in projects/PROJECT. Its directory removed has the removals that are still to be
// done in machines.
type noteStore string

// projectsDir returns the directory of all projects, and projectDir that of one.
func (n noteStore) projectsDir() string { return filepath.Join(string(n), "projects") }

func (n noteStore) projectDir(project string) string { return filepath.Join(n.projectsDir(), project) }

func (n noteStore) sandboxesDir(project string) string {
	return filepath.Join(n.projectDir(project), "sandboxes")
}

func (n noteStore) sandboxPath(project, id string) string {
	return filepath.Join(n.sandboxesDir(project), id+".json")
}

// writeStatus records the state of a sandbox. It skips one that is still being created.
func (n noteStore) writeStatus(st atoll.Status) error {
	if st.State == atoll.StateCreating {
		return nil
	}
	if err := os.MkdirAll(n.sandboxesDir(st.Spec.Project), 0o700); err != nil {
		return err
	}
	return n.replaceFile(n.sandboxPath(st.Spec.Project, st.ID), st)
}

// replaceFile replaces a file. Many programs may do so at the same time.
func (n noteStore) replaceFile(path string, v any) error {
	lock, err := fsutil.WaitLock(filepath.Join(string(n), "notes.lock"))
	if err != nil {
		return err
	}
	defer lock.Release()
	return fsutil.WriteJSON(path, v)
}

// removeStatus deletes the recorded state of a sandbox.
func (n noteStore) removeStatus(project, id string) error {
	err := os.Remove(n.sandboxPath(project, id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// removeStatusOf is like removeStatus, but does nothing if another sandbox has the id now.
func (n noteStore) removeStatusOf(st atoll.Status) error {
	noted, err := n.readStatus(n.sandboxPath(st.Spec.Project, st.ID))
	if err != nil || !noted.Created.Equal(st.Created) {
		return ignoreNotExist(err)
	}
	return n.removeStatus(st.Spec.Project, st.ID)
}

// findStatus finds a sandbox by its id. Kinds: ErrNotFound.
func (n noteStore) findStatus(id string) (atoll.Status, error) {
	projects, err := n.listProjects()
	if err != nil {
		return atoll.Status{}, err
	}
	for _, project := range projects {
		st, err := n.readStatus(n.sandboxPath(project, id))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		removed := false
		if err == nil {
			removed, err = n.isRemoved(st)
		}
		if err != nil || !removed {
			return st, err
		}
	}
	return atoll.Status{}, atoll.ErrNotFound
}

func (n noteStore) readStatus(path string) (st atoll.Status, err error) {
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &st)
	}
	return st, err
}

// listProjects lists the projects with any recorded state.
func (n noteStore) listProjects() ([]string, error) { return listNames(n.projectsDir(), "") }

// listStatuses lists the recorded states of a project's sandboxes.
func (n noteStore) listStatuses(project string) ([]atoll.Status, error) {
	ids, err := listNames(n.sandboxesDir(project), ".json")
	if err != nil {
		return nil, err
	}
	removed, err := n.listRemovals(project)
	if err != nil {
		return nil, err
	}
	var list []atoll.Status
	for _, id := range ids {
		st, err := n.readStatus(n.sandboxPath(project, id))
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		if !removed.containsSandbox(st) {
			list = append(list, st)
		}
	}
	return list, nil
}

// listNames returns the valid names in a directory with that suffix, without it; none if the
// directory does not exist.
func listNames(dir, suffix string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var list []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), suffix); ok && atoll.ValidName(name) {
			list = append(list, name)
		}
	}
	return list, err
}

// writeKind records a project's objects of a kind. readKind reads them; it leaves v unchanged
// if none are recorded.
func (n noteStore) writeKind(project, kind string, v any) error {
	if err := os.MkdirAll(n.sandboxesDir(project), 0o700); err != nil {
		return err
	}
	return n.replaceFile(filepath.Join(n.projectDir(project), kind+".json"), v)
}

func (n noteStore) readKind(project, kind string, v any) error {
	data, err := os.ReadFile(filepath.Join(n.projectDir(project), kind+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

// removeProject deletes the recorded state of a project, with its removals.
func (n noteStore) removeProject(project string) error {
	list, err := n.listRemovals(project)
	for _, r := range list {
		err = errors.Join(err, ignoreNotExist(os.Remove(n.removalPath(project, r.Status.ID))))
	}
	return errors.Join(err, os.RemoveAll(n.projectDir(project)))
}
