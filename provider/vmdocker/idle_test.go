//go:build linux

package vmdocker_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/vmdocker"
)

// idleTime is the idle time of machines in these tests: longer than the start of one.
const idleTime = "20s"

// machineOf returns the status of a project's machine.
func machineOf(t *testing.T, p *place, project string) atoll.Status {
	t.Helper()
	list, err := p.machines.List(t.Context(), atoll.Filter{Project: project})
	if err != nil || len(list) > 1 {
		t.Fatalf("machines of project %s: %+v (%v)", project, list, err)
	}
	if len(list) == 0 {
		return atoll.Status{}
	}
	return list[0]
}

// await waits until ok returns true.
func await(t *testing.T, what string, within time.Duration, ok func() bool) {
	t.Helper()
	within = testenv.Scale(within)
	begin := time.Now()
	for !ok() {
		if time.Since(begin) > within {
			t.Fatalf("%s: not within %s", what, within)
		}
		time.Sleep(200 * time.Millisecond)
	}
	t.Logf("%s: after %d ms", what, time.Since(begin).Milliseconds())
}

// The life of one project. Its machine runs as long as a sandbox in it. When the machine crashes, its
// sandboxes have stopped, read-only calls do not start it, and a sandbox that is removed meanwhile is gone at
// once: its name and id are free. The next use, here by another provider, finds everything again. When nothing
// runs in it, the machine stops, even if a caller watches. When the project is removed, nothing is left. A
// sandbox of another project has another machine.
func TestLifeOfAProject(t *testing.T) {
	const project = "life"
	p := open(t, func(o *vmdocker.Options) { o.Config.IdleTimeout = idleTime })
	t.Cleanup(func() {
		if err := p.RemoveProject(context.WithoutCancel(t.Context()), project); err != nil {
			t.Error(err)
		}
	})
	events := startWatch(t, p)
	sb := create(t, p, atoll.Spec{Project: project, Name: "box", Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "v", Target: "/v"}}})
	run(t, sb, "echo kept >/work/f; echo kept >/etc/f; echo kept >/v/f")
	events.awaitState(t, sb.ID(), atoll.StateRunning)
	stranger := create(t, p, atoll.Spec{Project: atoll.DefaultProject})
	if bootID(t, sb) == bootID(t, stranger) {
		t.Error("sandboxes of two projects have one kernel")
	}
	if err := stranger.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Error(err)
	}
	removed := create(t, p, atoll.Spec{Project: project, Name: "removed"})
	run(t, removed, "echo kept >/work/f")
	if err := removed.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	time.Sleep(25 * time.Second)
	if st := machineOf(t, p, project); st.State != atoll.StateRunning {
		t.Fatalf("the machine is %s while a sandbox runs in it", st.State)
	}

	run(t, sb, "sync") // a crash loses what the kernel has not written
	if err := syscall.Kill(qemuOf(t, p, project), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	events.awaitState(t, sb.ID(), atoll.StateStopped)
	begin := time.Now()
	if err := removed.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	events.awaitState(t, removed.ID(), atoll.StateRemoved)
	other := open(t, func(o *vmdocker.Options) { o.Config.IdleTimeout, o.Disk = idleTime, 6<<30 })
	if st := status(t, sb); st.State != atoll.StateStopped || st.Reason == "" || st.Spec.Name != "box" || st.Provider != vmdocker.Name {
		t.Errorf("Status: %+v", st)
	}
	for _, p := range []atoll.Provider{p, other} {
		list, err := p.List(t.Context(), atoll.Filter{Project: project, States: []atoll.State{atoll.StateStopped}})
		if err != nil || len(list) != 1 || list[0].ID != sb.ID() {
			t.Errorf("List: %+v, %v; want the one that has stopped", list, err)
		}
		got, err := atoll.Resolve(t.Context(), p, project, "box")
		if err != nil || got.ID() != sb.ID() {
			t.Errorf("Resolve: %v, %v", got, err)
		}
		volumes, err := atoll.Volumes(t.Context(), p, project)
		if err != nil || len(volumes) != 3 {
			t.Errorf("Volumes: %+v, %v; want its own, that of the removed sandbox, and v", volumes, err)
		}
		if images, err := atoll.Images(t.Context(), p); err != nil || len(images) != 1 {
			t.Errorf("Images: %+v, %v; want one", images, err)
		}
	}
	if _, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"true"}}); !errors.Is(err, atoll.ErrStopped) {
		t.Errorf("Exec: %v, want ErrStopped", err)
	}
	if err := sb.Stop(t.Context(), 0); err != nil {
		t.Errorf("Stop of what has stopped: %v", err)
	}
	if st := machineOf(t, p, project); st.State != atoll.StateFailed {
		t.Errorf("after a crash and read-only calls the machine is %s", st.State)
	}
	t.Logf("looking took %d ms", time.Since(begin).Milliseconds())

	// Another provider starts the machine and closes; the watching one gets the events.
	second := create(t, other, atoll.Spec{ID: removed.ID(), Name: "removed", Project: project})
	if st := status(t, sb); st.State != atoll.StateStopped {
		t.Errorf("when the machine runs again the sandbox of before is %s (%s)", st.State, st.Reason)
	}
	again, err := other.Get(t.Context(), sb.ID())
	if err == nil {
		err = again.Start(t.Context())
	}
	if err := errors.Join(err, other.Close()); err != nil {
		t.Fatal(err)
	}
	events.awaitState(t, sb.ID(), atoll.StateRunning)
	if out := run(t, sb, "cat /work/f /etc/f /v/f"); out != strings.Repeat("kept\n", 3) {
		t.Errorf("after a crash there is %q", out)
	}
	if out := strings.Fields(run(t, sb, "df -Pm /work | tail -1")); len(out) < 2 || len(out[1]) != 4 || out[1] < "5500" { // MiB
		t.Errorf("after the disk was made larger it is %q", out)
	}
	if second, err = p.Get(t.Context(), second.ID()); err != nil {
		t.Fatal(err)
	}
	if out := run(t, second, "cat /work/f"); out != "kept\n" {
		t.Errorf("the data volume that was kept has %q", out)
	}
	if err := second.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Error(err)
	}

	if err := sb.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	events.awaitState(t, sb.ID(), atoll.StateStopped)
	await(t, "the machine stops", 3*time.Minute, func() bool {
		return status(t, sb).State == atoll.StateStopped && machineOf(t, p, project).State == atoll.StateStopped
	})

	if err := p.RemoveProject(t.Context(), project); err != nil {
		t.Fatal(err)
	}
	events.awaitState(t, sb.ID(), atoll.StateRemoved)
	if _, err := p.Get(t.Context(), sb.ID()); !errors.Is(err, atoll.ErrNotFound) {
		t.Errorf("Get after the project was removed: %v", err)
	}
	if st := machineOf(t, p, project); st.ID != "" {
		t.Errorf("the machine of a removed project is %s", st.State)
	}
	left, err := filepath.Glob(filepath.Join(shared.dir, "*", "project-"+project+"*"))
	if err != nil || len(left) > 0 {
		t.Errorf("of the project there is left %q (%v)", left, err)
	}
	for _, dir := range []string{"projects", "engines"} {
		if _, err := os.Stat(filepath.Join(shared.dir, "state", dir, project)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("of the project there is left %s: %v", dir, err)
		}
	}
}

// qemuOf returns the process that runs a project's machine.
func qemuOf(t *testing.T, p *place, project string) int {
	t.Helper()
	m := machineOf(t, p, project)
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		text, err := os.ReadFile(path)
		name, rest, _ := strings.Cut(string(text), "\x00")
		if err == nil && strings.HasPrefix(filepath.Base(name), "qemu-system") && strings.Contains(rest, m.ID) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatal("the machine has no process")
	return 0
}

// A watch has the events of a provider.
type watch struct {
	events chan atoll.Status
	ended  chan error
}

// startWatch watches p until the test ends.
func startWatch(t *testing.T, p atoll.Provider) *watch {
	t.Helper()
	w := &watch{make(chan atoll.Status, 100), make(chan error, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	synced := make(chan struct{})
	go func() {
		var last error
		for ev, err := range p.Watch(ctx) {
			last = err
			if err == nil && ev.Type == atoll.EventSynced {
				close(synced)
			}
			if err == nil && ev.Type == atoll.EventState {
				w.events <- ev.Status
			}
		}
		w.ended <- last
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-w.ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Watch: %v", err)
		}
	})
	<-synced
	return w
}

// awaitState waits for an event with the sandbox in that state.
func (w *watch) awaitState(t *testing.T, id string, state atoll.State) {
	t.Helper()
	for timeout := time.After(testenv.Scale(time.Minute)); ; {
		select {
		case st := <-w.events:
			if st.ID == id && st.State == state {
				return
			}
		case <-timeout:
			t.Fatalf("Watch has not reported within a minute that %s is %s", id, state)
		}
	}
}
