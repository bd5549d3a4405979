package vmdocker

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/provider/mock"
)

// off returns a provider with no running machine.
func off(t *testing.T) *Provider {
	t.Helper()
	return offIn(t, t.TempDir())
}

// offIn is like off, with that directory.
func offIn(t *testing.T, dir string) *Provider {
	t.Helper()
	machines, err := mock.New(mock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(Options{
		Dir: filepath.Join(dir, "state"), Machines: machines, Guest: func() ([]byte, error) { return nil, errors.New("there is no guest") },
		Config: vm.Config{DataDir: filepath.Join(dir, "disks"), ConsoleLogDir: filepath.Join(dir, "consoles")},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(p.Close(), machines.Close()); err != nil {
			t.Error(err)
		}
	})
	return p
}

// While their machine is off, sandboxes have their recorded state: running ones have stopped,
// expired ones are gone, and the rest is unchanged.
func TestNotes(t *testing.T) {
	p := off(t)
	now := time.Now().Round(0)
	note := func(project string, st atoll.Status) string {
		t.Helper()
		st.ID = atoll.NewID()
		st.Spec.Project, st.Spec.ID, st.Created = project, st.ID, now
		if err := p.notes.writeStatus(st); err != nil {
			t.Fatal(err)
		}
		return st.ID
	}
	ran := note("one", atoll.Status{State: atoll.StateRunning, Ready: true, Spec: atoll.Spec{Name: "ran"}})
	failed := note("one", atoll.Status{State: atoll.StateFailed, Reason: "of itself"})
	expired := note("one", atoll.Status{State: atoll.StateStopped, Expires: now.Add(-time.Second)})
	other := note("two", atoll.Status{State: atoll.StatePaused})
	making := note("two", atoll.Status{State: atoll.StateCreating})

	for id, want := range map[string]atoll.Status{
		ran: {State: atoll.StateStopped, Reason: reasonMachineEnded}, failed: {State: atoll.StateFailed, Reason: "of itself"}, other: {State: atoll.StateStopped, Reason: reasonMachineEnded},
	} {
		sb, err := p.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if st, err := sb.Status(t.Context()); err != nil || st.State != want.State || st.Reason != want.Reason || st.Ready {
			t.Errorf("%s is %+v (%v), want %+v", id, st, err, want)
		}
		if _, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"x"}}); !errors.Is(err, atoll.ErrStopped) {
			t.Errorf("Exec: %v", err)
		}
	}
	for _, id := range []string{expired, making, atoll.NewID()} {
		if _, err := p.Get(t.Context(), id); !errors.Is(err, atoll.ErrNotFound) {
			t.Errorf("Get of what is not there: %v", err)
		}
	}
	if id, err := p.Resolve(t.Context(), "one", "ran"); err != nil || id != ran {
		t.Errorf("Resolve: %q, %v", id, err)
	}
	if _, err := p.Resolve(t.Context(), "two", "ran"); !errors.Is(err, atoll.ErrNotFound) {
		t.Errorf("Resolve in another project: %v", err)
	}
	list, err := p.List(t.Context(), atoll.Filter{Project: "one"})
	if err != nil || len(list) != 2 {
		t.Errorf("List: %+v, %v; want two", list, err)
	}

	disk := p.opts.Config.DataDisk("one")
	if err := errors.Join(os.MkdirAll(filepath.Dir(disk), 0o700), os.WriteFile(disk, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := p.RemoveProject(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(disk); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the disk of a removed project is there: %v", err)
	}
	list, err = p.List(t.Context(), atoll.Filter{})
	if err != nil || len(list) != 1 || list[0].ID != other {
		t.Errorf("List after a project was removed: %+v, %v", list, err)
	}
	if err := p.RemoveProject(t.Context(), "../two"); !errors.Is(err, atoll.ErrInvalid) {
		t.Errorf("RemoveProject of what is none: %v", err)
	}
}

// Create refuses unsupported specs before it starts a machine.
func TestRefused(t *testing.T) {
	p := off(t)
	for what, tt := range map[string]struct {
		spec atoll.Spec
		kind atoll.Kind
		says string
	}{
		"no project":   {atoll.Spec{}, atoll.ErrInvalid, "--project NAME"},
		"a bind mount": {atoll.Spec{Project: "p", Mounts: []atoll.Mount{{Type: atoll.MountBind, Source: "/tmp", Target: "/x"}}}, atoll.ErrUnsupported, "copy files in"},
		"a port":       {atoll.Spec{Project: "p", Network: atoll.Network{Mode: atoll.NetworkOn}, Ports: []atoll.Port{{Port: 80, Publish: true}}}, atoll.ErrUnsupported, "dial instead"},
		"a policy":     {atoll.Spec{Project: "p", Network: atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"example.com"}}}, atoll.ErrUnsupported, "use mode on"},
		"a network":    {atoll.Spec{Project: "p", Network: atoll.Network{Mode: atoll.NetworkNamed, Name: "bridge"}}, atoll.ErrUnsupported, "use mode on"},
		"no name":      {atoll.Spec{Project: "p", Image: "/srv/rootfs"}, atoll.ErrInvalid, "docker import"},
		"another":      {atoll.Spec{Project: "p", Provider: "docker"}, atoll.ErrInvalid, "not found"},
	} {
		_, err := p.Create(t.Context(), &tt.spec)
		if atoll.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want %s that says %q", what, err, tt.kind, tt.says)
		}
	}
	if all, err := p.opts.Machines.List(t.Context(), atoll.Filter{}); err != nil || len(all) > 0 {
		t.Errorf("machines were started: %+v (%v)", all, err)
	}
	for what, config := range map[string]vm.Config{
		"a data directory": {}, "CPUs": {DataDir: "/x", CPUCount: 99}, "memory": {DataDir: "/x", MemoryMB: 1}, "idle timeout": {DataDir: "/x", IdleTimeout: "soon"},
	} {
		_, err := New(Options{Dir: t.TempDir(), Machines: p.opts.Machines, Guest: p.opts.Guest, Config: config})
		if !errors.Is(err, atoll.ErrInvalid) {
			t.Errorf("New without %s: %v", what, err)
		}
	}
}

// A container that a starting engine found dead has stopped with its machine.
func TestSeen(t *testing.T) {
	boot := time.Now()
	e := &engine{project: "p", started: boot}
	for _, tt := range []struct {
		name             string
		started, stopped time.Duration // after the boot
		state, want      atoll.State
	}{
		{"it died with the machine", -time.Hour, time.Second, atoll.StateFailed, atoll.StateStopped},
		{"it failed before", -time.Hour, -time.Minute, atoll.StateFailed, atoll.StateFailed},
		{"it failed after", time.Minute, time.Hour, atoll.StateFailed, atoll.StateFailed},
		{"it runs", time.Minute, 0, atoll.StateRunning, atoll.StateRunning},
	} {
		st := e.ownStatus(atoll.Status{State: tt.state, Started: boot.Add(tt.started), Stopped: boot.Add(tt.stopped)})
		if st.State != tt.want || st.Provider != Name || st.Spec.Provider != Name {
			t.Errorf("%s: %+v, want %s", tt.name, st, tt.want)
		}
	}
	if c := engineCaps(atoll.Caps{BindMounts: true, Publish: true, Volumes: true}); c.BindMounts || c.Publish || !c.Volumes {
		t.Errorf("caps %+v", c)
	}
}

// If a machine has just ended or is gone, the recorded states of its sandboxes stay.
func TestEngineOfAMachineThatIsGone(t *testing.T) {
	p := off(t)
	m, err := p.opts.Machines.Create(t.Context(), &atoll.Spec{Project: "one", Name: machineName})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := dialEngine(t.Context(), "one", m); atoll.KindOf(err) != atoll.ErrUnavailable {
			t.Errorf("dial: %v, want unavailable", err)
		}
		d, err := p.openEngine("one", m, atoll.Status{ID: m.ID()})
		if err != nil {
			t.Fatal(err)
		}
		id := atoll.NewID()
		if list, err := d.listSandboxes(t.Context(), &id); atoll.KindOf(err) != atoll.ErrUnavailable {
			t.Errorf("look: %+v, %v, want unavailable", list, err)
		}
		if err := m.Remove(t.Context()); err != nil && atoll.KindOf(err) != atoll.ErrNotFound {
			t.Fatal(err)
		}
	}
}

// Many programs record one sandbox at the same time.
func TestNotesAtOnce(t *testing.T) {
	dir := t.TempDir()
	st := atoll.Status{ID: atoll.NewID(), State: atoll.StateRunning, Spec: atoll.Spec{Project: "p"}}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			n := noteStore(dir)
			for range 50 {
				if err := errors.Join(n.writeStatus(st), n.writeKind("p", kindVolumes, []string{"v"})); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}
