package vmdocker

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// Projects lists a project that has only a disk, a machine or sandboxes, until it is removed.
// It starts no machine.
func TestProjects(t *testing.T) {
	p := off(t)
	list := func(want ...atoll.Project) {
		t.Helper()
		got, err := p.Projects(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i, one := range got {
			if one.Disk > 0 { // the size depends on the file system
				got[i].Disk = 1
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("Projects: %+v, want %+v", got, want)
		}
	}
	list()

	dir := p.opts.Config.DataDir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]int{"project-disk-data.img": 1 << 16, "project-x.img": 1, "project-data.img": 1, "other-y-data.img": 1, "project-..-data.img": 1} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	home := filepath.Join(dir, "project-home-data.img") // a directory, if machines have no disks
	if err := os.MkdirAll(filepath.Join(home, "of", "wsl"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "of", "wsl", "disk"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := diskUsage(home); err != nil || got < 1<<20 || got > 2<<20 {
		t.Errorf("a directory with 1 MiB takes up %d (%v)", got, err)
	}
	sb, err := p.opts.Machines.Create(t.Context(), &atoll.Spec{Name: machineName, Project: "machine"})
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	for _, project := range []string{"noted", "noted", "disk"} {
		id := atoll.NewID()
		st := atoll.Status{ID: id, State: atoll.StateStopped, Created: time.Now(), Spec: atoll.Spec{ID: id, Project: project}}
		if err := p.notes.writeStatus(st); err != nil {
			t.Fatal(err)
		}
	}
	disk := atoll.Project{Name: "disk", Provider: Name, Sandboxes: 1, Disk: 1}
	noted := atoll.Project{Name: "noted", Provider: Name, Sandboxes: 2}
	of := atoll.Project{Name: "home", Provider: Name, Disk: 1}
	list(disk, of, atoll.Project{Name: "machine", Provider: Name, Machine: atoll.StateStopped}, noted)
	if st, err := sb.Status(t.Context()); err != nil || st.State != atoll.StateStopped {
		t.Errorf("the machine is %s, %v: it was started", st.State, err)
	}

	if err := p.RemoveProject(t.Context(), "machine"); err != nil {
		t.Fatal(err)
	}
	list(disk, of, noted)
	if err := p.RemoveProject(t.Context(), "disk"); err != nil {
		t.Fatal(err)
	}
	list(of, noted)
}
