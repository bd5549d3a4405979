//go:build unix

package inprocess

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// writeRecord writes the record of a sandbox whose program died, and creates its data volume.
func writeRecord(t *testing.T, dir string, state atoll.State, fresh bool, change func(*atoll.Status)) (id string) {
	t.Helper()
	id = atoll.NewID()
	spec := (&atoll.Spec{ID: id, Name: "n" + id[:6]}).WithDefaults()
	r := record{atoll.Status{ID: id, State: state, Spec: *spec, Created: time.Now()}, fresh}
	if change != nil {
		change(&r.Status)
	}
	data, err := json.Marshal(r)
	must(t, "marshal", err)
	must(t, "mkdir", os.MkdirAll(filepath.Join(dir, "sandboxes"), 0o700))
	must(t, "write", os.WriteFile(filepath.Join(dir, "sandboxes", id+".json"), data, 0o600))
	must(t, "mkdir", os.MkdirAll(filepath.Join(dir, "volumes", spec.Project, "data-"+id), 0o755))
	return id
}

// New adopts the sandboxes of a program that died: running ones have failed, and unfinished ones are
// removed.
func TestAdoption(t *testing.T) {
	for _, tt := range []struct {
		name   string
		state  atoll.State
		fresh  bool
		change func(*atoll.Status)
		want   atoll.State // "" if New removes it
		volume bool
	}{
		{"running", atoll.StateRunning, true, nil, atoll.StateFailed, true},
		{"stopped", atoll.StateStopped, true, nil, atoll.StateStopped, true},
		{"created", atoll.StateCreated, true, nil, atoll.StateCreated, true},
		{"unfinished", atoll.StateCreating, true, nil, "", false},
		{"unfinished with an existing volume", atoll.StateCreating, false, nil, "", true},
		{"expired", atoll.StateStopped, true, func(st *atoll.Status) { st.Expires = time.Now().Add(-time.Hour) }, "", false},
		{"main process ended long ago", atoll.StateStopped, true, func(st *atoll.Status) {
			st.Spec.AutoRemove, st.Spec.Cmd, st.Exit, st.Stopped = true, []string{"exit"}, &atoll.Exit{}, time.Now().Add(-time.Hour)
		}, "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			id := writeRecord(t, dir, tt.state, tt.fresh, tt.change)
			l := newTestProvider(t, dir)
			if tt.want == "" {
				l.awaitRemoved(t, id)
				must(t, "close", l.Close())
			} else if st := statusOf(t, l.getSandbox(t, id)); st.State != tt.want || st.Provider != "pretended" || tt.want == atoll.StateFailed && st.Reason == "" {
				t.Errorf("found: %+v", st)
			}
			if got := strings.Contains(l.listFiles(t), "data-"+id); got != tt.volume {
				t.Errorf("its volume exists: %v, want %v", got, tt.volume)
			}
			if tt.want == "" && strings.Contains(l.listFiles(t), "sandboxes/") {
				t.Errorf("left: %s", l.listFiles(t))
			}
			if l.backend.swept == nil {
				t.Error("New did not sweep its processes")
			}
		})
	}
}

// If a program is killed before it deletes the saved main process of the previous run, the next
// program does not take it for that of the run that died.
func TestMainProcessOfTheRunBefore(t *testing.T) {
	dir := t.TempDir()
	l := newTestProvider(t, dir)
	sb := l.createSandbox(t, atoll.Spec{Cmd: []string{"fail"}})
	awaitState(t, sb, atoll.StateFailed)
	ended := filepath.Join(dir, "sandboxes", sb.ID()+".ended")
	kept, err := os.ReadFile(ended)
	must(t, "read", err)
	must(t, "close", l.Close())
	id := writeRecord(t, dir, atoll.StateRunning, true, func(st *atoll.Status) { st.Spec.Cmd = []string{"fail"} })
	must(t, "write", os.WriteFile(filepath.Join(dir, "sandboxes", id+".ended"), kept, 0o600))
	for range 2 { // the second one finds it in StateFailed
		l := newTestProvider(t, dir)
		_, err := l.getSandbox(t, id).Process(t.Context(), atoll.MainProcess)
		wantKind(t, "process", err, atoll.ErrStopped)
		must(t, "close", l.Close())
	}
}

// A running program keeps its sandboxes.
func TestOfAnotherProgram(t *testing.T) {
	dir := t.TempDir()
	theirs := newTestProvider(t, dir)
	sb := theirs.createSandbox(t, atoll.Spec{Cmd: []string{"run"}})
	ours := newTestProvider(t, dir)
	if _, err := ours.Get(t.Context(), sb.ID()); atoll.KindOf(err) != atoll.ErrNotFound {
		t.Errorf("get: %v", err)
	}
	_, err := ours.Create(t.Context(), &atoll.Spec{ID: sb.ID()})
	wantKind(t, "create", err, atoll.ErrAlreadyExists)
	if len(ours.backend.swept) > 0 {
		t.Errorf("swept %v", ours.backend.swept)
	}
	must(t, "close", theirs.Close())
	_, err = ours.Create(t.Context(), &atoll.Spec{ID: sb.ID()}) // the record exists, though ours did not adopt it
	wantKind(t, "create", err, atoll.ErrAlreadyExists)
	if st := statusOf(t, newTestProvider(t, dir).getSandbox(t, sb.ID())); st.State != atoll.StateStopped {
		t.Errorf("state %s", st.State)
	}
}

func (l *testProvider) getSandbox(t *testing.T, id string) atoll.Sandbox {
	t.Helper()
	sb, err := l.Get(t.Context(), id)
	must(t, "get", err)
	return sb
}

// awaitRemoved waits until the provider has no such sandbox.
func (l *testProvider) awaitRemoved(t *testing.T, id string) {
	t.Helper()
	for deadline := time.Now().Add(testenv.Scale(10 * time.Second)); ; time.Sleep(time.Millisecond) {
		_, err := l.Get(t.Context(), id)
		if atoll.KindOf(err) == atoll.ErrNotFound {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("sandbox %s still exists: %v", id, err)
		}
	}
}

// A record that is damaged, or belongs to another sandbox, does not affect the others.
func TestDamagedRecords(t *testing.T) {
	dir := t.TempDir()
	good := writeRecord(t, dir, atoll.StateStopped, true, nil)
	moved := writeRecord(t, dir, atoll.StateStopped, true, nil)
	sandboxes := filepath.Join(dir, "sandboxes")
	must(t, "rename", os.Rename(filepath.Join(sandboxes, moved+".json"), filepath.Join(sandboxes, atoll.NewID()+".json")))
	must(t, "write", os.WriteFile(filepath.Join(sandboxes, atoll.NewID()+".json"), []byte("{"), 0o600))
	must(t, "write", os.WriteFile(filepath.Join(sandboxes, "README.json"), []byte("{}"), 0o600))
	l := newTestProvider(t, dir)
	list, err := l.List(t.Context(), atoll.Filter{})
	if len(list) != 1 || list[0].ID != good || err != nil {
		t.Errorf("list: %v, %v, want %s", list, err, good)
	}
}
