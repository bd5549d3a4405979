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

// forge writes the record of a sandbox whose program died, and makes its volume.
func forge(t *testing.T, dir string, state atoll.State, fresh bool, change func(*atoll.Status)) (id string) {
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

// What a program that died has left is found as it was, or as it must be: what
// ran has failed, what was being made is taken back.
func TestAdoption(t *testing.T) {
	for _, tt := range []struct {
		name   string
		state  atoll.State
		fresh  bool
		change func(*atoll.Status)
		want   atoll.State // "" when it is gone
		volume bool
	}{
		{"running", atoll.StateRunning, true, nil, atoll.StateFailed, true},
		{"stopped", atoll.StateStopped, true, nil, atoll.StateStopped, true},
		{"created", atoll.StateCreated, true, nil, atoll.StateCreated, true},
		{"being made", atoll.StateCreating, true, nil, "", false},
		{"being made with a volume of before", atoll.StateCreating, false, nil, "", true},
		{"its time is over", atoll.StateStopped, true, func(st *atoll.Status) { st.Expires = time.Now().Add(-time.Hour) }, "", false},
		{"main process ended long ago", atoll.StateStopped, true, func(st *atoll.Status) {
			st.Spec.AutoRemove, st.Spec.Cmd, st.Exit, st.Stopped = true, []string{"exit"}, &atoll.Exit{}, time.Now().Add(-time.Hour)
		}, "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			id := forge(t, dir, tt.state, tt.fresh, tt.change)
			l := newLab(t, dir)
			if tt.want == "" {
				l.gone(t, id)
				must(t, "close", l.Close())
			} else if st := state(t, l.get(t, id)); st.State != tt.want || st.Provider != "pretended" || tt.want == atoll.StateFailed && st.Reason == "" {
				t.Errorf("found: %+v", st)
			}
			if got := strings.Contains(l.left(t), "data-"+id); got != tt.volume {
				t.Errorf("its volume is there: %v, want %v", got, tt.volume)
			}
			if tt.want == "" && strings.Contains(l.left(t), "sandboxes/") {
				t.Errorf("left: %s", l.left(t))
			}
			if l.crew.swept == nil {
				t.Error("nobody looked for its processes")
			}
		})
	}
}

// What a program had still kept of the run before, when it was killed, is not
// taken for what the run that it died in has left.
func TestMainProcessOfTheRunBefore(t *testing.T) {
	dir := t.TempDir()
	l := newLab(t, dir)
	sb := l.create(t, atoll.Spec{Cmd: []string{"fail"}})
	becomes(t, sb, atoll.StateFailed)
	ended := filepath.Join(dir, "sandboxes", sb.ID()+".ended")
	kept, err := os.ReadFile(ended)
	must(t, "read", err)
	must(t, "close", l.Close())
	id := forge(t, dir, atoll.StateRunning, true, func(st *atoll.Status) { st.Spec.Cmd = []string{"fail"} })
	must(t, "write", os.WriteFile(filepath.Join(dir, "sandboxes", id+".ended"), kept, 0o600))
	for range 2 { // the second finds that it has failed
		l := newLab(t, dir)
		_, err := l.get(t, id).Process(t.Context(), atoll.MainProcess)
		wantKind(t, "process", err, atoll.ErrStopped)
		must(t, "close", l.Close())
	}
}

// The sandboxes of a program that lives are its own.
func TestOfAnotherProgram(t *testing.T) {
	dir := t.TempDir()
	theirs := newLab(t, dir)
	sb := theirs.create(t, atoll.Spec{Cmd: []string{"run"}})
	ours := newLab(t, dir)
	if _, err := ours.Get(t.Context(), sb.ID()); atoll.KindOf(err) != atoll.ErrNotFound {
		t.Errorf("get: %v", err)
	}
	_, err := ours.Create(t.Context(), &atoll.Spec{ID: sb.ID()})
	wantKind(t, "create", err, atoll.ErrAlreadyExists)
	if len(ours.crew.swept) > 0 {
		t.Errorf("swept %v", ours.crew.swept)
	}
	must(t, "close", theirs.Close())
	_, err = ours.Create(t.Context(), &atoll.Spec{ID: sb.ID()}) // it is not there for us, but it is there
	wantKind(t, "create", err, atoll.ErrAlreadyExists)
	if st := state(t, newLab(t, dir).get(t, sb.ID())); st.State != atoll.StateStopped {
		t.Errorf("state %s", st.State)
	}
}

func (l *lab) get(t *testing.T, id string) atoll.Sandbox {
	t.Helper()
	sb, err := l.Get(t.Context(), id)
	must(t, "get", err)
	return sb
}

// gone waits until there is no such sandbox.
func (l *lab) gone(t *testing.T, id string) {
	t.Helper()
	for deadline := time.Now().Add(testenv.Scale(10 * time.Second)); ; time.Sleep(time.Millisecond) {
		_, err := l.Get(t.Context(), id)
		if atoll.KindOf(err) == atoll.ErrNotFound {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("sandbox %s is there: %v", id, err)
		}
	}
}

// A record that cannot be read, or is another's, harms nobody else.
func TestDamagedRecords(t *testing.T) {
	dir := t.TempDir()
	good := forge(t, dir, atoll.StateStopped, true, nil)
	moved := forge(t, dir, atoll.StateStopped, true, nil)
	sandboxes := filepath.Join(dir, "sandboxes")
	must(t, "rename", os.Rename(filepath.Join(sandboxes, moved+".json"), filepath.Join(sandboxes, atoll.NewID()+".json")))
	must(t, "write", os.WriteFile(filepath.Join(sandboxes, atoll.NewID()+".json"), []byte("{"), 0o600))
	must(t, "write", os.WriteFile(filepath.Join(sandboxes, "README.json"), []byte("{}"), 0o600))
	l := newLab(t, dir)
	list, err := l.List(t.Context(), atoll.Filter{})
	if len(list) != 1 || list[0].ID != good || err != nil {
		t.Errorf("list: %v, %v, want %s", list, err, good)
	}
}
