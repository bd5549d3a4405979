package providertest

import (
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/workspace"
)

var workspacePromises = []promise{
	{"a repository is cloned, and each sandbox has its files before it starts", needsRepo, func(t *testing.T, h *harness) {
		w := h.addWorkspace(t, "", "w")
		if w.Project != atoll.DefaultProject || w.Type != workspace.TypeGit || w.State != workspace.StateReady || w.Commit == "" || w.InUse || w.Created.IsZero() {
			t.Errorf("AddWorkspace = %+v", w)
		}
		spec := atoll.Spec{NoStart: true, Workspace: atoll.WorkspaceRef{Name: "w"}}
		sb := h.createSandbox(t, spec)
		h.checkContent(t, sb, h.cfg.repo.file, h.cfg.repo.text)
		if err := sb.Start(h.newContext(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		h.checkContent(t, sb, h.cfg.repo.file, h.cfg.repo.text)
		h.writeFile(t, sb, h.cfg.repo.file, "changed")
		spec.Workspace.Commit = w.Commit
		checkSpec(t, "a sandbox with a workspace", h.getStatus(t, sb).Spec, h.completeSpec(spec))
		spec.NoStart = false
		other := h.createSandbox(t, spec)
		h.checkContent(t, other, h.cfg.repo.file, h.cfg.repo.text)
		checkSpec(t, "a sandbox that Create started", h.getStatus(t, other).Spec, h.completeSpec(spec))
	}},
	{"the workspace of a sandbox is in use, whether that runs or not", needsRepo, func(t *testing.T, h *harness) {
		h.addWorkspace(t, "", "w")
		_, err := workspace.Add(h.newContext(t), h.p, &workspace.Spec{Name: "w", Source: h.cfg.repo.source}, nil)
		wantKind(t, "AddWorkspace again", err, atoll.ErrAlreadyExists)
		sb := h.createSandbox(t, atoll.Spec{Workspace: atoll.WorkspaceRef{Name: "w"}})
		wantKind(t, "RemoveWorkspace", workspace.Remove(h.newContext(t), h.p, "", "w"), atoll.ErrConflict)
		if err := sb.Stop(h.newContext(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		wantKind(t, "RemoveWorkspace of a stopped sandbox", workspace.Remove(h.newContext(t), h.p, "", "w"), atoll.ErrConflict)
		if all, err := workspace.List(h.newContext(t), h.p, ""); err != nil || len(all) != 1 || !all[0].InUse {
			t.Errorf("Workspaces = %+v, %v, want one in use", all, err)
		}
		if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		if err := workspace.Remove(h.newContext(t), h.p, "", "w"); err != nil {
			t.Errorf("RemoveWorkspace: %v", err)
		}
		wantKind(t, "RemoveWorkspace again", workspace.Remove(h.newContext(t), h.p, "", "w"), atoll.ErrNotExist)
		if all, err := workspace.List(h.newContext(t), h.p, ""); err != nil || len(all) != 0 {
			t.Errorf("Workspaces = %+v, %v, want none", all, err)
		}
	}},
	{"a workspace does not replace the files of a retained data volume", needsRepo, func(t *testing.T, h *harness) {
		h.addWorkspace(t, "", "w")
		spec := atoll.Spec{ID: atoll.NewID(), Workspace: atoll.WorkspaceRef{Name: "w"}}
		sb := h.createSandbox(t, spec)
		h.writeFile(t, sb, h.cfg.repo.file, "changed")
		if err := sb.Remove(h.newContext(t)); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		h.checkContent(t, h.createSandbox(t, spec), h.cfg.repo.file, "changed")
	}},
	{"RemoveProject removes the workspaces of the project", needsRepo, func(t *testing.T, h *harness) {
		h.addWorkspace(t, "mine", "w")
		h.addWorkspace(t, "other", "w")
		h.createSandbox(t, atoll.Spec{Project: "mine", Workspace: atoll.WorkspaceRef{Name: "w"}})
		if err := atoll.RemoveProject(h.newContext(t), h.p, "mine"); err != nil {
			t.Fatalf("RemoveProject: %v", err)
		}
		if all, err := workspace.List(h.newContext(t), h.p, ""); err != nil || len(all) != 1 || all[0].Project != "other" {
			t.Errorf("Workspaces = %+v, %v, want the other project's", all, err)
		}
	}},
	{"Workspaces shows the error of a source that cannot be cloned", needsRepo, func(t *testing.T, h *harness) {
		_, err := workspace.Add(h.newContext(t), h.p, &workspace.Spec{Name: "w", Source: h.cfg.repo.source + "-none"}, nil)
		if err == nil {
			t.Fatal("AddWorkspace worked")
		}
		all, err := workspace.List(h.newContext(t), h.p, atoll.DefaultProject)
		if err != nil || len(all) != 1 || all[0].State != workspace.StateError || all[0].Error == "" {
			t.Errorf("Workspaces = %+v, %v, want one in error", all, err)
		}
		_, err = h.p.Create(h.newContext(t), h.completeSpec(atoll.Spec{Workspace: atoll.WorkspaceRef{Name: "w"}}))
		if err == nil {
			t.Error("Create worked")
		}
		if err := workspace.Remove(h.newContext(t), h.p, "", "w"); err != nil {
			t.Errorf("RemoveWorkspace: %v", err)
		}
	}},
}

// needsRepo are the needs of promises that clone the repository.
var needsRepo = []need{needWorkspaces, needFiles, needVolumes, needRestart, needRepo}

// addWorkspace adds a workspace of the repository.
func (h *harness) addWorkspace(t *testing.T, project, name string) workspace.Workspace {
	t.Helper()
	w, err := workspace.Add(h.newContext(t), h.p, &workspace.Spec{Project: project, Name: name, Source: h.cfg.repo.source}, nil)
	if err != nil {
		t.Fatalf("AddWorkspace: %v", err)
	}
	return w
}
