package providertest

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/layer/workspace"
)

var capsPromises = []promise{
	{"Status.Caps equals Info.Caps", nil, func(t *testing.T, h *harness) {
		if got, want := h.getStatus(t, h.plainSandbox(t)).Caps, h.p.Info().Caps; got != want {
			t.Errorf("Status.Caps = %+v, Info().Caps = %+v", got, want)
		}
	}},
	{"each optional ability works exactly if its cap is set", nil, func(t *testing.T, h *harness) {
		checkAbilities(t, h, h.plainSandbox(t))
	}},
	{"a sandbox from Get has the abilities of one from Create", nil, func(t *testing.T, h *harness) {
		sb, err := h.p.Get(h.newContext(t), h.plainSandbox(t).ID())
		if err != nil {
			t.Fatalf("Get: %v", err)
		}
		checkAbilities(t, h, sb)
	}},
	{"Create refuses a feature of a spec exactly if its cap is missing", nil, checkWishes},
	{"the stores work exactly if their caps are set", nil, func(t *testing.T, h *harness) {
		caps := h.p.Info().Caps
		_, err := atoll.Volumes(h.newContext(t), h.p, "")
		checkCap(t, "Volumes", caps.Volumes, err)
		err = atoll.RemoveVolume(h.newContext(t), h.p, atoll.DefaultProject, "none")
		if caps.Volumes {
			wantKind(t, "RemoveVolume of none", err, atoll.ErrNotExist)
		} else {
			wantKind(t, "RemoveVolume", err, atoll.ErrUnsupported)
		}
		_, err = workspace.List(h.newContext(t), h.p, "")
		checkCap(t, "Workspaces", caps.Workspaces, err)
		err = workspace.Remove(h.newContext(t), h.p, atoll.DefaultProject, "none")
		_, updateErr := workspace.Update(h.newContext(t), h.p, atoll.DefaultProject, "none", nil)
		if caps.Workspaces {
			wantKind(t, "RemoveWorkspace of none", err, atoll.ErrNotExist)
			wantKind(t, "UpdateWorkspace of none", updateErr, atoll.ErrNotExist)
		} else {
			wantKind(t, "RemoveWorkspace", err, atoll.ErrUnsupported)
			wantKind(t, "UpdateWorkspace", updateErr, atoll.ErrUnsupported)
			_, err = workspace.Add(h.newContext(t), h.p, &workspace.Spec{Name: "w", Source: "/"}, nil)
			wantKind(t, "AddWorkspace", err, atoll.ErrUnsupported)
		}
		_, err = session.List(h.newContext(t), h.p, "")
		checkCap(t, "Sessions", caps.Sessions, err)
		err = session.Close(h.newContext(t), h.p, "", "workflow_none_sandbox")
		if caps.Sessions {
			wantKind(t, "CloseSession of none", err, atoll.ErrNotExist)
		} else {
			wantKind(t, "CloseSession", err, atoll.ErrUnsupported)
			_, err = session.Open(h.newContext(t), h.p, &session.Spec{Scope: session.Scope{Kind: session.ScopeWorkflow, ID: "none"}})
			wantKind(t, "OpenSession", err, atoll.ErrUnsupported)
		}
		_, err = atoll.Images(h.newContext(t), h.p)
		checkCap(t, "Images", caps.ImageStore, err)
		_, err = atoll.PruneImages(h.newContext(t), h.p, atoll.PruneOptions{UnusedFor: atoll.Duration(1000 * time.Hour)})
		checkCap(t, "PruneImages", caps.ImageStore, err)
		err = atoll.RemoveImage(h.newContext(t), h.p, "registry.example.com/none:1", false)
		if caps.ImageStore {
			wantKind(t, "RemoveImage of none", err, atoll.ErrNotExist)
		} else {
			wantKind(t, "RemoveImage", err, atoll.ErrUnsupported)
		}
		_, err = atoll.Snapshots(h.newContext(t), h.p)
		checkCap(t, "Snapshots", caps.Snapshot, err)
		err = atoll.RemoveSnapshot(h.newContext(t), h.p, atoll.NewID())
		if caps.Snapshot {
			wantKind(t, "RemoveSnapshot of none", err, atoll.ErrNotExist)
		} else {
			wantKind(t, "RemoveSnapshot", err, atoll.ErrUnsupported)
		}
	}},
	{"Caps.Restart says whether a stopped sandbox can start again", nil, func(t *testing.T, h *harness) {
		caps := h.p.Info().Caps
		if caps.Durable != atoll.DurableNone && !caps.Restart {
			t.Errorf("Durable is %q without Restart", caps.Durable)
		}
		sb := h.plainSandbox(t)
		if err := sb.Stop(h.newContext(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		err := sb.Start(h.newContext(t))
		checkCap(t, "Start", caps.Restart, err)
		if err == nil {
			h.runForOutput(t, sb, programCommand("echo", "again"))
		}
	}},
}

// checkAbilities calls each optional method of the sandbox once.
func checkAbilities(t *testing.T, h *harness, sb atoll.Sandbox) {
	t.Helper()
	ctx, caps := h.newContext(t), h.p.Info().Caps

	_, err := atoll.Files(sb).Stat(ctx, ".")
	checkCap(t, "Files", caps.Files, err)
	_, err = atoll.SpaceOf(ctx, atoll.Files(sb), ".")
	checkCap(t, "Files, to be changed in place", caps.Files, err)
	if !caps.Files {
		checkFileCallsRefused(t, ctx, atoll.Files(sb))
	}
	if err := atoll.Extend(ctx, sb, atoll.Duration(time.Hour)); caps.Extend { // the sandbox has no TTL
		wantKind(t, "Extend", err, atoll.ErrInvalid)
	} else {
		wantKind(t, "Extend", err, atoll.ErrUnsupported)
	}
	checkCap(t, "Pause", caps.Pause, atoll.Pause(ctx, sb))
	checkCap(t, "Resume", caps.Pause, atoll.Resume(ctx, sb))
	_, err = atoll.UsageOf(ctx, sb)
	checkCap(t, "Usage", caps.Usage, err)
	_, err = atoll.RefusalsOf(ctx, sb)
	checkCap(t, "Refusals", caps.Refusals, err)
	_, err = atoll.NetworkLogOf(ctx, sb, 0, 0)
	checkCap(t, "NetworkLog", caps.NetworkLog, err)
	if err := atoll.UpdateNetwork(ctx, sb, atoll.NetworkChange{}); caps.NetworkUpdate { // the sandbox has no network
		wantKind(t, "UpdateNetwork", err, atoll.ErrInvalid)
	} else {
		wantKind(t, "UpdateNetwork", err, atoll.ErrUnsupported)
	}
	_, err = atoll.Dial(ctx, sb, 9)
	if caps.Dial {
		wantKind(t, "Dial of a port without a listener", err, atoll.ErrUnavailable)
	} else {
		wantKind(t, "Dial", err, atoll.ErrUnsupported)
	}
	snap, err := atoll.TakeSnapshot(ctx, sb)
	checkCap(t, "Snapshot", caps.Snapshot, err)
	if err == nil {
		last := h.p
		if h.closed {
			last = h.lastProvider()
		}
		if err := atoll.RemoveSnapshot(ctx, last, snap.ID); err != nil {
			t.Errorf("RemoveSnapshot: %v", err)
		}
	}
	p, err := sb.Exec(ctx, addTTY(scriptCommand("ready")))
	checkCap(t, "Exec with a terminal", caps.TTY, err)
	if err == nil {
		if err := atoll.Resize(ctx, p, atoll.Size{Rows: 5, Cols: 5}); err != nil {
			t.Errorf("Resize: %v", err)
		}
		h.killProcess(t, p)
	}
}

// checkFileCallsRefused checks that every method of the FS returns ErrUnsupported.
func checkFileCallsRefused(t *testing.T, ctx context.Context, f atoll.FS) {
	t.Helper()
	_, _, read := f.Read(ctx, "f", 0)
	_, write := f.Write(ctx, "f", failingReader{}, atoll.WriteOptions{})
	_, list := f.List(ctx, ".", true)
	var watch error
	for _, watch = range f.Watch(ctx, ".", true) {
	}
	_, open := atoll.OpenFile(ctx, f, "f", atoll.OpenOptions{Read: true})
	_, space := atoll.SpaceOf(ctx, f, ".")
	for what, err := range map[string]error{
		"Read": read, "Write": write, "List": list, "Watch": watch, "Open": open, "Space": space,
		"Change": atoll.ChangeFile(ctx, f, "f", atoll.FileChange{}), "Link": atoll.LinkFile(ctx, f, "a", "b"),
		"Mkdir": f.Mkdir(ctx, "d", 0o755), "Rename": f.Rename(ctx, "a", "b"), "Remove": f.Remove(ctx, "f", false),
		"WriteTar": f.WriteTar(ctx, ".", newScreen()), "ReadTar": f.ReadTar(ctx, ".", failingReader{}),
	} {
		wantKind(t, what, err, atoll.ErrUnsupported)
	}
}

// checkCap checks that a call succeeded if its cap is set, and returned ErrUnsupported otherwise.
func checkCap(t *testing.T, what string, has bool, err error) {
	t.Helper()
	switch {
	case has && err != nil:
		t.Errorf("%s: %v, although its cap is true", what, err)
	case !has:
		wantKind(t, what+", whose cap is false", err, atoll.ErrUnsupported)
	}
}

// checkWishes creates a sandbox for each feature that has a cap.
func checkWishes(t *testing.T, h *harness) {
	caps := h.p.Info().Caps
	for name, w := range map[string]struct {
		has  bool
		spec atoll.Spec
	}{
		"bind mount":     {caps.BindMounts, atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountBind, Source: h.newBindDir(t), Target: "/work/m"}}}},
		"named volume":   {caps.Volumes, atoll.Spec{Project: "wishes", Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "v", Target: "/work/m"}}}},
		"tmpfs":          {caps.Tmpfs, atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountTmpfs, Target: "/work/m"}}}},
		"read-only root": {caps.ReadOnlyRoot, atoll.Spec{ReadOnlyRoot: true}},
		"memory limit":   {caps.MemoryLimit, atoll.Spec{Resources: atoll.Resources{Memory: 256 << 20}}},
		"cpu limit":      {caps.CPULimit, atoll.Spec{Resources: atoll.Resources{CPUs: 0.5}}},
		"process limit":  {caps.ProcessLimit, atoll.Spec{Resources: atoll.Resources{Processes: 100}}},
		"disk limit":     {caps.DiskLimit || caps.DiskWatch, atoll.Spec{Resources: atoll.Resources{Disk: 1 << 30}}},
		"network":        {caps.NetworkOn, atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkOn}}},
		"egress list":    {caps.Egress, atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"192.0.2.7"}}}},
		"named network":  {caps.NetworkNamed, atoll.Spec{Network: h.namedNetwork()}},
		"published port": {caps.Publish, atoll.Spec{Network: h.publishNetwork(), Ports: []atoll.Port{{Port: 80, Publish: true}}}},
		"cache":          {caps.Cache, atoll.Spec{Project: "wishes", Cache: true}},
		"idle stop":      {caps.IdleStop, atoll.Spec{IdleStop: atoll.DefaultIdleStop}},
		"user":           {caps.Users, atoll.Spec{User: "1234:2345"}},
		"terminal":       {caps.TTY, atoll.Spec{Cmd: scriptArgs("ready"), TTY: &atoll.Size{Rows: 24, Cols: 80}}},
	} {
		t.Run(name, func(t *testing.T) {
			if !w.has {
				h.wantRefused(t, w.spec, atoll.ErrUnsupported)
				return
			}
			if w.spec.Network.Mode == atoll.NetworkNamed && h.cfg.network == nil {
				t.Skip("the option Network is not given")
			}
			sb := h.createSandbox(t, w.spec)
			if got := h.runForOutput(t, sb, programCommand("echo", "works")); got != "works" {
				t.Errorf("echo printed %q", got)
			}
			checkSpec(t, name, h.getStatus(t, sb).Spec, h.completeSpec(w.spec))
			if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
				t.Errorf("Remove: %v", err)
			}
		})
	}
	if caps.Volumes {
		h.removeVolume(t, "wishes", "v")
	}
	if caps.Cache {
		h.removeVolume(t, "wishes", atoll.CacheVolume)
	}
	checkGPUWish(t, h)
	if !caps.Workspaces {
		h.wantRefused(t, atoll.Spec{Workspace: atoll.WorkspaceRef{Name: "none"}}, atoll.ErrUnsupported)
	} else {
		h.wantRefused(t, atoll.Spec{Workspace: atoll.WorkspaceRef{Name: "none"}}, atoll.ErrNotExist)
	}
	if !caps.Images {
		h.wantRefused(t, atoll.Spec{Image: "docker.io/library/busybox"}, atoll.ErrUnsupported)
	}
	if !caps.Snapshot {
		h.wantRefused(t, atoll.Spec{Snapshot: atoll.NewID()}, atoll.ErrUnsupported)
	} else {
		h.wantRefused(t, atoll.Spec{Snapshot: atoll.NewID()}, atoll.ErrNotExist)
	}
}

// checkGPUWish requests GPUs. A machine may lack them although the provider supports them.
func checkGPUWish(t *testing.T, h *harness) {
	t.Helper()
	spec := atoll.Spec{Resources: atoll.Resources{GPUs: "all"}}
	if !h.p.Info().Caps.GPU {
		h.wantRefused(t, spec, atoll.ErrUnsupported)
		return
	}
	sb, err := h.p.Create(h.newContext(t), h.completeSpec(spec))
	if err != nil {
		wantKind(t, "Create with GPUs", err, atoll.ErrUnavailable)
		return
	}
	h.removeAtEnd(sb.ID())
	checkSpec(t, "GPUs", h.getStatus(t, sb).Spec, h.completeSpec(spec))
}

// sameFields reports whether got equals want in all fields that want sets.
func sameFields(got, want any) bool {
	g, w := reflect.ValueOf(got), reflect.ValueOf(want)
	for i := range w.NumField() {
		if !w.Field(i).IsZero() && !w.Field(i).Equal(g.Field(i)) {
			return false
		}
	}
	return true
}
