package providertest

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

var volumePromises = []promise{
	{"Remove retains the data volume for the next sandbox with the id", []need{needVolumes, needFiles}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		h.writeFile(t, sb, "kept", "kept")
		if err := sb.Remove(h.newContext(t)); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		if v := h.findVolume(t, "", "data-"+sb.ID()); v.Sandbox != sb.ID() || v.InUse {
			t.Errorf("the volume is %+v, want it to belong to the sandbox and not in use", v)
		}
		again := h.createSandbox(t, atoll.Spec{ID: sb.ID()})
		h.checkContent(t, again, "kept", "kept")
		if v := h.findVolume(t, "", "data-"+sb.ID()); !v.InUse {
			t.Errorf("the volume is %+v, want it in use", v)
		}
	}},
	{"RemoveVolumes deletes the data volume", []need{needVolumes, needFiles}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		h.writeFile(t, sb, "dropped", "x")
		if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		h.checkNoVolume(t, "data-"+sb.ID())
		again := h.createSandbox(t, atoll.Spec{ID: sb.ID()})
		h.checkMissing(t, again, "dropped")
	}},
	{"RemoveVolumes deletes the data volume of a removed sandbox too", []need{needVolumes}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		for _, opts := range [][]atoll.RemoveOption{nil, {atoll.RemoveVolumes()}, {atoll.RemoveVolumes()}, nil} {
			if err := sb.Remove(h.newContext(t), opts...); err != nil {
				t.Errorf("Remove: %v", err)
			}
			if len(opts) > 0 {
				h.checkNoVolume(t, "data-"+sb.ID())
			}
		}
	}},
	{"a Create that fails, or whose context ends, leaves a retained data volume", []need{needVolumes, needFiles}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		h.writeFile(t, sb, "kept", "kept")
		if err := sb.Remove(h.newContext(t)); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		h.wantRefused(t, atoll.Spec{ID: sb.ID(), Cmd: []string{"no-such-program"}}, atoll.ErrExecFailed)
		for i := range 6 {
			ctx, cancel := context.WithTimeout(h.newContext(t), time.Duration(i*i)*time.Millisecond)
			again, err := h.p.Create(ctx, h.completeSpec(atoll.Spec{ID: sb.ID()}))
			cancel()
			if err == nil {
				err = again.Remove(h.newContext(t))
			} else {
				wantCtx(t, "Create", err, context.DeadlineExceeded)
				err = nil
			}
			if err != nil {
				t.Errorf("Remove: %v", err)
			}
		}
		if v := h.findVolume(t, "", "data-"+sb.ID()); v.InUse {
			t.Errorf("the volume is %+v, want it not in use", v)
		}
		h.checkContent(t, h.createSandbox(t, atoll.Spec{ID: sb.ID()}), "kept", "kept")
	}},
	{"a retained data volume can be removed by name", []need{needVolumes}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		name := "data-" + sb.ID()
		wantKind(t, "RemoveVolume while in use", atoll.RemoveVolume(h.newContext(t), h.p, atoll.DefaultProject, name), atoll.ErrConflict)
		if err := sb.Remove(h.newContext(t)); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		if err := atoll.RemoveVolume(h.newContext(t), h.p, atoll.DefaultProject, name); err != nil {
			t.Errorf("RemoveVolume: %v", err)
		}
		h.checkNoVolume(t, name)
		wantKind(t, "RemoveVolume again", atoll.RemoveVolume(h.newContext(t), h.p, atoll.DefaultProject, name), atoll.ErrNotExist)
	}},
	{"a named volume is shared in its project and outlives its sandboxes", []need{needVolumes, needFiles}, func(t *testing.T, h *harness) {
		mounts := []atoll.Mount{{Type: atoll.MountVolume, Source: "cache", Target: "/work/cache"}}
		a := h.createSandbox(t, atoll.Spec{Mounts: mounts})
		b := h.createSandbox(t, atoll.Spec{Mounts: mounts})
		t.Cleanup(func() { h.removeVolume(t, atoll.DefaultProject, "cache") })
		h.writeFile(t, a, "cache/shared", "shared")
		h.checkContent(t, b, "cache/shared", "shared")
		if h.runForCode(t, b, scriptCommand("store", "cache/back", "back")) != 0 {
			t.Error("the process could not write to the volume")
		}
		h.checkContent(t, a, "cache/back", "back\n")
		wantKind(t, "RemoveVolume while in use", atoll.RemoveVolume(h.newContext(t), h.p, atoll.DefaultProject, "cache"), atoll.ErrConflict)
		for _, sb := range []atoll.Sandbox{a, b} {
			if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
				t.Fatalf("Remove: %v", err)
			}
		}
		if v := h.findVolume(t, atoll.DefaultProject, "cache"); v.InUse || v.Sandbox != "" || v.Project != atoll.DefaultProject {
			t.Errorf("the volume is %+v, want it not in use", v)
		}
		c := h.createSandbox(t, atoll.Spec{Mounts: mounts})
		h.checkContent(t, c, "cache/shared", "shared")
		if err := c.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
	}},
	{"a file lock on a volume excludes the volume's other sandboxes", []need{needVolumes, needLocks, needFlock}, func(t *testing.T, h *harness) {
		spec := atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "locks", Target: "/work/locks"}}}
		if h.p.Info().Caps.Images {
			spec.Image = h.cfg.debian(t)
		}
		t.Cleanup(func() { h.removeVolume(t, atoll.DefaultProject, "locks") })
		a, b := h.createSandbox(t, spec), h.createSandbox(t, spec)
		holder, _ := h.startReady(t, a, scriptCommand("lock", "locks/l", "hold"))
		if code := h.runForCode(t, b, scriptCommand("lock", "locks/l")); code != 3 {
			t.Errorf("a second sandbox took the lock: exit code %d, want 3", code)
		}
		if err := holder.Signal(h.newContext(t), atoll.SIGKILL); err != nil {
			t.Fatal(err)
		}
		h.waitExit(t, holder)
		if code := h.runForCode(t, b, scriptCommand("lock", "locks/l")); code != 0 {
			t.Errorf("nobody holds the lock: exit code %d, want 0", code)
		}
		for _, sb := range []atoll.Sandbox{a, b} {
			if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
				t.Errorf("Remove: %v", err)
			}
		}
	}},
	{"the volumes of a sandbox are in use, whichever program created it", []need{needVolumes, needFiles, needElsewhere}, func(t *testing.T, h *harness) {
		open, id, _, kill := h.createElsewhere(t, atoll.Spec{
			Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "cache", Target: "/work/cache"}},
			Cmd:    scriptArgs("stay", "kept", "kept", "cache/kept"),
		})
		beside := open()
		for _, name := range []string{"cache", "data-" + id} {
			all, err := atoll.Volumes(h.newContext(t), beside, "")
			if !slices.ContainsFunc(all, func(v atoll.Volume) bool { return v.Name == name && v.InUse }) {
				t.Errorf("Volumes = %+v, %v; want %s, in use", all, err, name)
			}
			wantKind(t, "RemoveVolume "+name, atoll.RemoveVolume(h.newContext(t), beside, atoll.DefaultProject, name), atoll.ErrConflict)
		}
		if err := beside.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		kill()
		p, sb := h.findSandbox(t, open, id)
		for _, name := range []string{"kept", "cache/kept"} {
			h.checkContent(t, sb, name, "kept\n")
		}
		if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Errorf("Remove: %v", err)
		}
		if err := atoll.RemoveVolume(h.newContext(t), p, atoll.DefaultProject, "cache"); err != nil {
			t.Errorf("RemoveVolume: %v", err)
		}
	}},
	{"no sandbox can mount the data volume of another", []need{needVolumes, needFiles}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		h.writeFile(t, sb, "kept", "kept")
		other := func(id string) atoll.Spec {
			return atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "data-" + id, Target: "/work/other"}}}
		}
		h.wantRefused(t, other(sb.ID()), atoll.ErrInvalid)
		if err := sb.Remove(h.newContext(t)); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		h.wantRefused(t, other(sb.ID()), atoll.ErrInvalid)
		h.checkContent(t, h.createSandbox(t, atoll.Spec{ID: sb.ID()}), "kept", "kept")
		none := atoll.NewID()
		h.wantRefused(t, other(none), atoll.ErrInvalid)
		h.checkNoVolume(t, "data-"+none)
	}},
	{"a sandbox of another project does not get the data volume", []need{needVolumes, needFiles}, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Project: "one"})
		h.writeFile(t, sb, "kept", "of one")
		if err := sb.Remove(h.newContext(t)); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		other, err := h.p.Create(h.newContext(t), h.completeSpec(atoll.Spec{ID: sb.ID(), Project: "two"}))
		if err == nil {
			h.checkMissing(t, other, "kept")
			if err := other.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
				t.Fatalf("Remove: %v", err)
			}
		} else {
			wantKind(t, "Create with the id of another project's sandbox", err, atoll.ErrConflict)
		}
		h.checkContent(t, h.createSandbox(t, atoll.Spec{ID: sb.ID(), Project: "one"}), "kept", "of one")
	}},
	{"projects do not share named volumes", []need{needVolumes, needFiles}, func(t *testing.T, h *harness) {
		mounts := []atoll.Mount{{Type: atoll.MountVolume, Source: "cache", Target: "/work/cache"}}
		a := h.createSandbox(t, atoll.Spec{Mounts: mounts, Project: "one"})
		b := h.createSandbox(t, atoll.Spec{Mounts: mounts, Project: "two"})
		t.Cleanup(func() { h.removeVolume(t, "one", "cache"); h.removeVolume(t, "two", "cache") })
		h.writeFile(t, a, "cache/f", "of one")
		h.checkMissing(t, b, "cache/f")
		of, err := atoll.Volumes(h.newContext(t), h.p, "one")
		if err != nil {
			t.Fatalf("Volumes: %v", err)
		}
		for _, v := range of {
			if v.Project != "one" {
				t.Errorf("Volumes(one) has %+v", v)
			}
		}
		for _, sb := range []atoll.Sandbox{a, b} {
			if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
				t.Fatalf("Remove: %v", err)
			}
		}
	}},
	{"RemoveProject removes all of one project and nothing of another", nil, func(t *testing.T, h *harness) {
		spec := atoll.Spec{Project: "one"}
		if h.p.Info().Caps.Volumes {
			spec.Mounts = []atoll.Mount{{Type: atoll.MountVolume, Source: "cache", Target: "/work/cache"}}
		}
		spec.Cache = h.p.Info().Caps.Cache
		h.createSandbox(t, spec)
		h.createSandbox(t, spec)
		other := h.createSandbox(t, atoll.Spec{Project: "two"})
		kept := h.listProjects(t)
		if one, ok := kept["one"]; ok != (len(kept) > 0) || ok && (one.Sandboxes != 2 || one.Provider == "") {
			t.Errorf("Projects = %+v, want all or none, and two sandboxes of one", kept)
		}
		if err := atoll.RemoveProject(h.newContext(t), h.p, "one"); err != nil {
			t.Fatalf("RemoveProject: %v", err)
		}
		if ids := h.listIDs(t); !slices.Equal(ids, []string{other.ID()}) {
			t.Errorf("List has %q, want only %q", ids, other.ID())
		}
		if left := h.listProjects(t); left["one"].Name != "" || left["two"].Name != kept["two"].Name {
			t.Errorf("Projects = %+v, want two alone", left)
		}
		if h.p.Info().Caps.Volumes {
			if of, err := atoll.Volumes(h.newContext(t), h.p, "one"); err != nil || len(of) != 0 {
				t.Errorf("Volumes = %+v, %v; want none", of, err)
			}
		}
		if err := atoll.RemoveProject(h.newContext(t), h.p, "one"); err != nil {
			t.Errorf("RemoveProject again: %v", err)
		}
	}},
	{"the work directory can be reached while the sandbox is stopped", []need{needVolumes, needFiles}, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{NoStart: true})
		h.writeFile(t, sb, "before", "start")
		if err := sb.Start(h.newContext(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		if got := h.runForOutput(t, sb, programCommand("cat", "before")); got != "start" {
			t.Errorf("cat printed %q", got)
		}
		if err := sb.Stop(h.newContext(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		h.checkContent(t, sb, "before", "start")
		h.writeFile(t, sb, "while/stopped", "x")
		h.checkList(t, sb, "while", false, "/work/while/stopped")
		if !h.p.Info().Caps.Restart {
			return
		}
		if err := sb.Start(h.newContext(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		if got := h.runForOutput(t, sb, programCommand("cat", "while/stopped")); got != "x" {
			t.Errorf("cat printed %q", got)
		}
	}},
	{"a bind mount shows the directory, and writes reach it", []need{needBind}, func(t *testing.T, h *harness) {
		dir := h.newBindDir(t)
		sb := h.createSandbox(t, atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountBind, Source: dir, Target: "/work/bound"}}})
		if got := h.runForOutput(t, sb, programCommand("cat", "/work/bound/given")); got != "given" {
			t.Errorf("cat printed %q", got)
		}
		if h.runForCode(t, sb, scriptCommand("store", "/work/bound/made", "made")) != 0 {
			t.Error("the process could not write")
		}
		if b, err := os.ReadFile(filepath.Join(dir, "made")); string(b) != "made\n" {
			t.Errorf("on the host the file holds %q, %v", b, err)
		}
		if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		if b, err := os.ReadFile(filepath.Join(dir, "given")); string(b) != "given\n" {
			t.Errorf("after Remove the file holds %q, %v", b, err)
		}
	}},
	{"a bind mount may be a file, at any path", []need{needBind, needIsolation}, func(t *testing.T, h *harness) {
		dir := h.newBindDir(t)
		sb := h.createSandbox(t, atoll.Spec{Mounts: []atoll.Mount{
			{Type: atoll.MountBind, Source: filepath.Join(dir, "given"), Target: "/opt/place/file", ReadOnly: true},
			{Type: atoll.MountBind, Source: dir, Target: "/data"},
			{Type: atoll.MountBind, Source: filepath.Join(dir, "given"), Target: "/usr/local/bin/of-the-suite"},
			{Type: atoll.MountBind, Source: dir, Target: "/usr/of-the-suite"},
			{Type: atoll.MountBind, Source: dir, Target: "/bin/of/the-suite"},
		}})
		for _, name := range []string{"/opt/place/file", "/data/given", "/usr/local/bin/of-the-suite", "/usr/of-the-suite/given", "/bin/of/the-suite/given"} {
			if got := h.runForOutput(t, sb, programCommand("cat", name)); got != "given" {
				t.Errorf("cat %s printed %q", name, got)
			}
		}
	}},
	{"Create refuses to mount a file on a directory, or a directory on a file", []need{needBind, needIsolation}, func(t *testing.T, h *harness) {
		dir := h.newBindDir(t)
		file := filepath.Join(dir, "given")
		for _, tt := range []struct{ source, target string }{
			{file, "/etc"},
			{file, "/bin"},
			{dir, "/etc/passwd"},
			{dir, "/etc/passwd/below"},
			{file, atoll.DefaultWorkdir}, // where processes start, by default
		} {
			h.wantRefused(t, atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountBind, Source: tt.source, Target: tt.target}}}, atoll.ErrInvalid)
		}
	}},
	{"a read-only mount cannot be written to", []need{needBind, needIsolation}, func(t *testing.T, h *harness) {
		dir := h.newBindDir(t)
		sb := h.createSandbox(t, atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountBind, Source: dir, Target: "/data", ReadOnly: true}}})
		for _, name := range []string{"/data/given", "/data/new"} {
			if h.runForCode(t, sb, scriptCommand("store", name, "overwritten")) == 0 {
				t.Errorf("the process could write %s", name)
			}
			if h.p.Info().Caps.Files {
				err := atoll.WriteFile(h.newContext(t), sb, name, []byte("overwritten"), 0)
				wantKind(t, "WriteFile "+name, err, atoll.ErrDenied)
			}
		}
		if b, err := os.ReadFile(filepath.Join(dir, "given")); string(b) != "given\n" {
			t.Errorf("the file holds %q, %v", b, err)
		}
	}},
	{"Create refuses a missing mount source", []need{needBind}, func(t *testing.T, h *harness) {
		missing := filepath.Join(t.TempDir(), "missing")
		h.wantRefused(t, atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountBind, Source: missing, Target: "/work/m"}}}, atoll.ErrNotExist)
		if _, err := os.Stat(missing); err == nil {
			t.Error("the mount source was made")
		}
	}},
	{"Start fails while a mount source is missing", []need{needBind, needRestart}, func(t *testing.T, h *harness) {
		dir := h.newBindDir(t)
		sb := h.createSandbox(t, atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountBind, Source: dir, Target: "/work/m"}}})
		if err := sb.Stop(h.newContext(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		if err := os.Rename(dir, dir+"-away"); err != nil {
			t.Fatal(err)
		}
		err := sb.Start(h.newContext(t))
		wantKind(t, "Start", err, atoll.ErrNotExist)
		if !strings.Contains(err.Error(), dir) {
			t.Errorf("Start: %v, want %s in it", err, dir)
		}
		if err := os.Rename(dir+"-away", dir); err != nil {
			t.Fatal(err)
		}
		if err := sb.Start(h.newContext(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
	}},
	{"a tmpfs is writable, and empty at each start", []need{needTmpfs}, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountTmpfs, Target: "/scratch"}}})
		if got := h.runForOutput(t, sb, programCommand("ls", "/scratch")); got != "" {
			t.Errorf("the tmpfs holds %q", got)
		}
		if h.runForCode(t, sb, scriptCommand("store", "/scratch/f", "x")) != 0 {
			t.Error("the process could not write")
		}
		if !h.p.Info().Caps.Restart {
			return
		}
		if err := sb.Stop(h.newContext(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		if err := sb.Start(h.newContext(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		if got := h.runForOutput(t, sb, programCommand("ls", "/scratch")); got != "" {
			t.Errorf("after a stop the tmpfs holds %q", got)
		}
	}},
	{"a tmpfs has a size", []need{needTmpfs}, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountTmpfs, Target: "/scratch", Size: 4 << 20}}})
		if h.runForCode(t, sb, scriptCommand("fill", "/scratch/f", 2)) != 0 {
			t.Error("2 MiB do not fit into 4 MiB")
		}
		if h.runForCode(t, sb, scriptCommand("fill", "/scratch/g", 8)) == 0 {
			t.Error("8 MiB fit into 4 MiB")
		}
		if h.p.Info().Caps.Files {
			err := atoll.WriteFile(h.newContext(t), sb, "/scratch/h", make([]byte, 8<<20), 0)
			wantKind(t, "WriteFile of 8 MiB", err, atoll.ErrExhausted)
		}
	}},
}

// newBindDir returns a directory of this machine for bind mounts, with a file "given".
func (h *harness) newBindDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "given"), []byte("given\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	return dir
}

// findVolume returns the volume with the name, or fails the test.
func (h *harness) findVolume(t *testing.T, project, name string) atoll.Volume {
	t.Helper()
	all, err := atoll.Volumes(h.newContext(t), h.p, project)
	if err != nil {
		t.Fatalf("Volumes: %v", err)
	}
	var names []string
	for _, v := range all {
		if v.Name == name {
			return v
		}
		names = append(names, v.Name)
	}
	t.Fatalf("Volumes has no %q, only %s", name, strings.Join(names, ", "))
	return atoll.Volume{}
}

// checkNoVolume checks that no project has a volume with the name.
func (h *harness) checkNoVolume(t *testing.T, name string) {
	t.Helper()
	all, err := atoll.Volumes(h.newContext(t), h.p, "")
	if err != nil {
		t.Fatalf("Volumes: %v", err)
	}
	for _, v := range all {
		if v.Name == name {
			t.Errorf("the volume %q is still there: %+v", name, v)
		}
	}
}

// removeVolume removes a volume, if it exists. The sandboxes that use it must be gone.
func (h *harness) removeVolume(t *testing.T, project, name string) {
	t.Helper()
	err := atoll.RemoveVolume(h.newContext(t), h.p, project, name)
	if err != nil && atoll.KindOf(err) != atoll.ErrNotExist {
		t.Errorf("RemoveVolume(%s, %s): %v", project, name, err)
	}
}

// listProjects returns the projects by name, and checks their order.
func (h *harness) listProjects(t *testing.T) map[string]atoll.Project {
	t.Helper()
	list, err := atoll.Projects(h.newContext(t), h.p)
	if err != nil {
		t.Fatalf("Projects: %v", err)
	}
	all := map[string]atoll.Project{}
	for _, one := range list {
		all[one.Name] = one
	}
	if !slices.IsSortedFunc(list, func(a, b atoll.Project) int { return strings.Compare(a.Name, b.Name) }) || len(all) != len(list) {
		t.Errorf("Projects = %+v, want each once, sorted by name", list)
	}
	return all
}
