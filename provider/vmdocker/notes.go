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

// notes is a directory with what was last heard of sandboxes, images and volumes, for
// when their machine is off: projects/project/sandboxes/id.json, and volumes.json and
// images.json beside them; and with what is left to do in machines: removed/.
type notes string

// all is where what is noted of projects is; project, of one.
func (n notes) all() string { return filepath.Join(string(n), "projects") }

func (n notes) project(project string) string { return filepath.Join(n.all(), project) }

func (n notes) sandboxes(project string) string {
	return filepath.Join(n.project(project), "sandboxes")
}

func (n notes) path(project, id string) string {
	return filepath.Join(n.sandboxes(project), id+".json")
}

// write notes the state of a sandbox. One that is being made is not there yet.
func (n notes) write(st atoll.Status) error {
	if st.State == atoll.StateCreating {
		return nil
	}
	if err := os.MkdirAll(n.sandboxes(st.Spec.Project), 0o700); err != nil {
		return err
	}
	return n.put(n.path(st.Spec.Project, st.ID), st)
}

// put replaces a file, which many may do at once, in many programs.
func (n notes) put(path string, v any) error {
	lock, err := fsutil.WaitLock(filepath.Join(string(n), "notes.lock"))
	if err != nil {
		return err
	}
	defer lock.Release()
	return fsutil.WriteJSON(path, v)
}

// forget drops what is noted of a sandbox.
func (n notes) forget(project, id string) error {
	err := os.Remove(n.path(project, id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// forgetThat is forget, unless another sandbox has its id.
func (n notes) forgetThat(st atoll.Status) error {
	noted, err := n.read(n.path(st.Spec.Project, st.ID))
	if err != nil || !noted.Created.Equal(st.Created) {
		return gone(err)
	}
	return n.forget(st.Spec.Project, st.ID)
}

// find finds a sandbox by its id. Kinds: ErrNotFound.
func (n notes) find(id string) (atoll.Status, error) {
	projects, err := n.projects()
	if err != nil {
		return atoll.Status{}, err
	}
	for _, project := range projects {
		st, err := n.read(n.path(project, id))
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

func (n notes) read(path string) (st atoll.Status, err error) {
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &st)
	}
	return st, err
}

// projects lists those of which anything is noted.
func (n notes) projects() ([]string, error) { return names(n.all(), "") }

// list lists what is noted of the sandboxes of a project.
func (n notes) list(project string) ([]atoll.Status, error) {
	ids, err := names(n.sandboxes(project), ".json")
	if err != nil {
		return nil, err
	}
	removed, err := n.removed(project)
	if err != nil {
		return nil, err
	}
	var list []atoll.Status
	for _, id := range ids {
		st, err := n.read(n.path(project, id))
		if errors.Is(err, fs.ErrNotExist) {
			continue // forgotten meanwhile
		}
		if err != nil {
			return nil, err
		}
		if !removed.have(st) {
			list = append(list, st)
		}
	}
	return list, nil
}

// names are those of what is in a directory and ends so, without that; none if there is
// no directory.
func names(dir, suffix string) ([]string, error) {
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

// keep notes what a project has of a kind; recall reads it, and nothing if nothing was
// noted.
func (n notes) keep(project, kind string, v any) error {
	if err := os.MkdirAll(n.sandboxes(project), 0o700); err != nil {
		return err
	}
	return n.put(filepath.Join(n.project(project), kind+".json"), v)
}

func (n notes) recall(project, kind string, v any) error {
	data, err := os.ReadFile(filepath.Join(n.project(project), kind+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

// drop forgets a project, with what is left to do in its machine.
func (n notes) drop(project string) error {
	list, err := n.removed(project)
	for _, r := range list {
		err = errors.Join(err, gone(os.Remove(n.removal(project, r.Status.ID))))
	}
	return errors.Join(err, os.RemoveAll(n.project(project)))
}
