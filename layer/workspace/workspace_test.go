package workspace_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/workspace"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/provider/providertest"
	"github.com/seed46cd37a8/atoll/server/api"
	"github.com/seed46cd37a8/atoll/server/api/client"
)

// The layer fills the work directory of a sandbox at its start, hides its own variables in specs, and removes
// the workspaces of a project. Over local only the check-out differs: its files are real.
func TestConformance(t *testing.T) {
	for name, tt := range map[string]struct {
		open   func(testing.TB, workspace.Options) atoll.Provider
		groups []string
	}{
		"mock over the wire": {newClient, []string{"create", "volumes", "workspaces", "images", "restart", "watch", "errors", "caps"}},
		"local":              {newOnLocal, []string{"workspaces", "restart", "caps"}},
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && name == "local" {
				t.Skip("-short: one provider only")
			}
			r := newRepo(t)
			r.write("README", "hello\n")
			r.commit()
			providertest.Run(t, func(t *testing.T) atoll.Provider { return tt.open(t, workspace.Options{}) },
				providertest.Only(tt.groups...), providertest.PullableImage("docker.io/library/app:1"), providertest.Repository("file://"+r.dir, "README", "hello\n"))
		})
	}
}

// newClient returns a client of a mock with workspaces.
func newClient(t testing.TB, opts workspace.Options) atoll.Provider {
	t.Helper()
	p := newOnMock(t, opts)
	h, err := api.NewHandler(p, api.Options{})
	if err != nil {
		t.Fatal(err)
	}
	url := "unix://" + filepath.Join(t.TempDir(), "socket")
	l, err := api.Listen(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- api.Serve(ctx, h, l) }()
	c, err := client.New(t.Context(), client.Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	return wired{c, sync.OnceValue(func() error {
		cancel()
		return errors.Join(<-served, p.Close())
	})}
}

type wired struct {
	*client.Client
	end func() error
}

func (w wired) Close() error { return errors.Join(w.Client.Close(), w.end()) }

func TestLayer(t *testing.T) {
	providertest.CheckLayer(t, func(p atoll.Provider) atoll.Provider { return workspace.New(p, workspace.Options{Dir: t.TempDir()}) },
		"Sandbox.Start") // calls Status first
}

// A check-out equals that of git for all file names, and is a working repository at the commit.
func TestCheckOut(t *testing.T) {
	r := newRepo(t)
	large := strings.Repeat("0123456789abcdef", 1<<20)
	names := []string{"plain", "with space", "new\nline", "not\xffutf-8", "\"quoted\"", "-dash", "ünïcode", "a/deep/er/file", strings.Repeat("long", 60)}
	for _, name := range names {
		r.write(name, "in "+name)
	}
	r.write("large", large)
	r.write("script", "#!/bin/sh\necho ran\n")
	r.write("converted", "$Id$\n")
	r.write(".gitattributes", "converted ident filter=evil export-subst\nplain export-ignore\n")
	if err := os.Chmod(filepath.Join(r.dir, "script"), 0o755); err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(t.TempDir(), "outside")
	for name, target := range map[string]string{"link": "plain", "absolute": outside, "up": "../../../../outside", "dangling": "none"} {
		if err := os.Symlink(target, filepath.Join(r.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	commit := r.commit()
	p := newOnLocal(t, workspace.Options{})
	w := addWorkspace(t, p, workspace.Spec{Name: "w", Source: "file://" + r.dir})
	if w.State != workspace.StateReady || w.Commit != commit || w.Type != workspace.TypeGit || w.Updated.IsZero() || w.Created.IsZero() || w.InUse {
		t.Errorf("the workspace is %+v, want it ready at %s", w, commit)
	}
	sb := createSandbox(t, p, useWorkspace("w"))
	for _, name := range names {
		checkFile(t, sb, name, "in "+name)
	}
	checkFile(t, sb, "large", large)
	if got := gitOutput(t, sb, "./script"); got != "ran" {
		t.Errorf("the script printed %q", got)
	}
	for name, want := range map[string]string{"link": "plain", "absolute": outside, "up": "../../../../outside", "dangling": "none"} {
		info, err := atoll.Files(sb).Stat(t.Context(), name)
		if err != nil || info.Type != atoll.TypeSymlink || info.Target != want {
			t.Errorf("%s is %+v, %v, want a link to %s", name, info, err, want)
		}
	}
	if got := gitOutput(t, sb, "git", "status", "--porcelain", "--branch"); got != "## main...origin/main" {
		t.Errorf("git status printed %q", got)
	}
	gitOutput(t, sb, "sh", "-c", "echo more >> plain && git -c user.name=a -c user.email=a@b commit -qam agent")
	if got := gitOutput(t, sb, "git", "rev-parse", "HEAD^"); got != commit {
		t.Errorf("the new commit is on %s, want %s", got, commit)
	}
	if got := gitOutput(t, sb, "sh", "-c", "echo $ATOLL_WORKSPACE $ATOLL_WORKSPACE_NAME $ATOLL_WORKSPACE_SOURCE $ATOLL_WORKSPACE_COMMIT"); got != "/work w file://"+r.dir+" "+commit {
		t.Errorf("the environment is %q", got)
	}
	st := getStatus(t, sb)
	if want := (atoll.WorkspaceRef{Name: "w", Commit: commit}); st.Spec.Workspace != want || len(st.Spec.Env) > 0 || !st.Caps.Workspaces {
		t.Errorf("the sandbox has workspace %+v, env %q, caps %+v, want %+v", st.Spec.Workspace, st.Spec.Env, st.Caps, want)
	}
	all, err := p.List(t.Context(), atoll.Filter{})
	if err != nil || len(all) != 1 || all[0].Spec.Workspace != st.Spec.Workspace {
		t.Errorf("List = %+v, %v", all, err)
	}
	for ev, err := range p.Watch(t.Context()) {
		if err != nil || ev.Status.Spec.Workspace != st.Spec.Workspace {
			t.Errorf("Watch yields %+v, %v", ev, err)
		}
		break
	}
}

// A clone does not reveal the local user to sandboxes.
func TestCloneNamesNobody(t *testing.T) {
	r := newRepo(t)
	r.write("f", "x")
	r.commit()
	t.Setenv("GIT_COMMITTER_NAME", "nobody to know")
	t.Setenv("GIT_COMMITTER_EMAIL", "nobody@example.com")
	p := newOnLocal(t, workspace.Options{})
	addWorkspace(t, p, workspace.Spec{Name: "w", Source: "file://" + r.dir})
	sb := createSandbox(t, p, useWorkspace("w"))
	if got := gitOutput(t, sb, "sh", "-c", "grep -rl nobody .git || true"); got != "" {
		t.Errorf("%q reveals the local user", got)
	}
	gitOutput(t, sb, "git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "agent")
	if got := gitOutput(t, sb, "git", "reflog"); !strings.Contains(got, "agent") {
		t.Errorf("the log of the sandbox's own commits is %q", got)
	}
}

// A clone of a repository with hooks, filters and submodules runs none of them.
func TestNothingRuns(t *testing.T) {
	sub := newRepo(t)
	sub.write("inside", "x")
	sub.commit()
	r := newRepo(t)
	trap := filepath.Join(t.TempDir(), "ran")
	script := "#!/bin/sh\ntouch " + trap + "\ncat\n"
	r.write(".gitattributes", "* filter=trap diff=trap merge=trap\n")
	r.write("file", "text\n")
	r.git("submodule", "-q", "add", "file://"+sub.dir, "module")
	r.commit()
	for _, hook := range []string{"post-checkout", "post-receive", "pre-receive", "update", "reference-transaction", "post-index-change", "fsmonitor-watchman"} {
		r.write(".git/hooks/"+hook, script)
		if err := os.Chmod(filepath.Join(r.dir, ".git/hooks", hook), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// A user's configuration, which must have no effect.
	global := filepath.Join(t.TempDir(), "gitconfig")
	hooks := filepath.Join(r.dir, ".git/hooks")
	text := "[filter \"trap\"]\nsmudge = " + hooks + "/update\nclean = " + hooks + "/update\nrequired = true\n[core]\nhooksPath = " + hooks +
		"\nfsmonitor = " + hooks + "/fsmonitor-watchman\n[init]\ntemplateDir = " + filepath.Join(r.dir, ".git") + "\n[submodule]\nrecurse = true\n[fetch]\nrecurseSubmodules = true\n"
	if err := os.WriteFile(global, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GIT_CONFIG_GLOBAL", global)
	t.Setenv("GIT_DIR", filepath.Join(t.TempDir(), "elsewhere")) // as in a git hook that runs this program
	p := newOnMock(t, workspace.Options{})
	addWorkspace(t, p, workspace.Spec{Name: "w", Source: r.dir, Revision: "main"})
	if _, err := workspace.Update(t.Context(), p, "", "w", nil); err != nil {
		t.Errorf("UpdateWorkspace: %v", err)
	}
	sb := createSandbox(t, p, useWorkspace("w"))
	checkFile(t, sb, "file", "text\n")
	if info, err := atoll.Files(sb).Stat(t.Context(), "module"); err != nil || info.Type != atoll.TypeDirectory {
		t.Errorf("the submodule is %+v, %v, want an empty directory", info, err)
	}
	if list, err := atoll.Files(sb).List(t.Context(), ".git", false); err != nil || slices.ContainsFunc(list, func(f atoll.FileInfo) bool { return f.Name == "hooks" }) {
		t.Errorf(".git holds %+v, %v, want no hooks", list, err)
	}
	if _, err := os.Stat(trap); err == nil {
		t.Error("a program of the repository ran")
	}
}

// A clone rejects a tree that git would not check out.
func TestHostileTree(t *testing.T) {
	for _, name := range []string{".git", ".GIT", "..", "."} {
		r := newRepo(t)
		r.write("x", "x")
		r.commit()
		blob := r.git("rev-parse", "HEAD:x")
		tree := r.gitIn("100644 "+name+"\x00"+string(unhex(t, blob)), "hash-object", "-t", "tree", "-w", "--literally", "--stdin")
		r.git("update-ref", "refs/heads/main", r.gitIn("", "-c", "user.name=t", "-c", "user.email=t@t", "commit-tree", "-m", "x", tree))
		p := newOnMock(t, workspace.Options{})
		_, err := workspace.Add(t.Context(), p, &workspace.Spec{Name: "w", Source: "file://" + r.dir}, nil)
		wantKind(t, "AddWorkspace of a tree with "+name, err, atoll.ErrInvalid)
	}
}

// Sandboxes get the commit of the first use until the workspace is updated. Existing sandboxes
// keep theirs.
func TestSameCommit(t *testing.T) {
	r := newRepo(t)
	r.write("f", "one")
	one := r.commit()
	p := newOnMock(t, workspace.Options{})
	addWorkspace(t, p, workspace.Spec{Name: "w", Source: "file://" + r.dir})
	r.write("f", "two")
	r.write("g", "new")
	two := r.commit()
	first := createSandbox(t, p, useWorkspace("w"))
	checkFile(t, first, "f", "one")
	if w, err := workspace.Update(t.Context(), p, "", "w", nil); err != nil || w.Commit != two || !w.InUse {
		t.Errorf("UpdateWorkspace = %+v, %v, want %s, in use", w, err, two)
	}
	second := createSandbox(t, p, useWorkspace("w"))
	checkFile(t, second, "f", "two")
	checkFile(t, first, "f", "one")

	// The spec of a Status creates the same sandbox again.
	spec := getStatus(t, first).Spec
	spec.ID = ""
	third := createSandbox(t, p, spec)
	checkFile(t, third, "f", "one")
	if got := getStatus(t, third).Spec.Workspace.Commit; got != one {
		t.Errorf("the commit is %s, want %s", got, one)
	}
	_, err := p.Create(t.Context(), &atoll.Spec{Workspace: atoll.WorkspaceRef{Name: "w", Commit: strings.Repeat("ab", 20)}})
	wantKind(t, "Create with a commit that there is not", err, atoll.ErrNotExist)

	// A failed update changes nothing.
	if err := os.Rename(r.dir, r.dir+"-moved"); err != nil {
		t.Fatal(err)
	}
	_, err = workspace.Update(t.Context(), p, "", "w", nil)
	wantKind(t, "UpdateWorkspace without the source", err, atoll.ErrNotExist)
	all, err := workspace.List(t.Context(), p, "")
	if err != nil || len(all) != 1 || all[0].State != workspace.StateReady || all[0].Commit != two || all[0].Error == "" {
		t.Errorf("Workspaces = %+v, %v, want one that is ready, and the error", all, err)
	}
	checkFile(t, createSandbox(t, p, useWorkspace("w")), "f", "two")
}

func TestRevisions(t *testing.T) {
	r := newRepo(t)
	r.write("f", "one")
	one := r.commit()
	r.git("tag", "-a", "-m", "x", "v1")
	r.git("switch", "-q", "-c", "side/line")
	r.write("f", "side")
	side := r.commit()
	r.git("switch", "-q", "main")
	r.write("f", "two")
	r.commit()
	p := newOnLocal(t, workspace.Options{})
	for i, tt := range []struct{ revision, commit, branch string }{{"v1", one, "HEAD"}, {"side/line", side, "side/line"}, {one, one, "HEAD"}} {
		name := "w" + string(rune('0'+i))
		// With a revision the path of a repository is cloned.
		if w := addWorkspace(t, p, workspace.Spec{Name: name, Source: r.dir, Revision: tt.revision}); w.Commit != tt.commit || w.Type != workspace.TypeGit {
			t.Errorf("%s: the workspace is %+v, want commit %s", tt.revision, w, tt.commit)
		}
		sb := createSandbox(t, p, useWorkspace(name))
		if got := gitOutput(t, sb, "git", "rev-parse", "HEAD", "--abbrev-ref", "HEAD"); got != tt.commit+"\n"+tt.branch {
			t.Errorf("%s: the check-out is at %q, want %s on %s", tt.revision, got, tt.commit, tt.branch)
		}
		if got := gitOutput(t, sb, "git", "status", "--porcelain"); got != "" {
			t.Errorf("%s: git status printed %q", tt.revision, got)
		}
		// Another commit of its history.
		sb = createSandbox(t, p, atoll.Spec{Workspace: atoll.WorkspaceRef{Name: name, Commit: one}})
		if got := gitOutput(t, sb, "sh", "-c", "git rev-parse HEAD; git status --porcelain; cat f"); got != one+"\none" {
			t.Errorf("%s: the first commit has %q", tt.revision, got)
		}
	}
}

// A directory used in place is mounted if the provider has bind mounts.
func TestInPlace(t *testing.T) {
	dir := t.TempDir()
	p, err := mock.New(mock.Options{Dir: t.TempDir()})
	w := newLayer(t, p, err, workspace.Options{})
	add := func(name, source string, readOnly bool) error {
		_, err := workspace.Add(t.Context(), w, &workspace.Spec{Name: name, Source: source, ReadOnly: readOnly}, nil)
		return err
	}
	if err := add("empty", t.TempDir(), false); err != nil { // a new project
		t.Errorf("AddWorkspace of an empty directory: %v", err)
	}
	if err := workspace.Remove(t.Context(), w, "", "empty"); err != nil {
		t.Error(err)
	}
	wantKind(t, "AddWorkspace of none", add("w", dir+"/none", false), atoll.ErrNotExist)
	if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "AddWorkspace of a file", add("w", dir+"/f", false), atoll.ErrInvalid)
	if all, err := workspace.List(t.Context(), w, ""); err != nil || len(all) != 0 {
		t.Errorf("after failures: %+v, %v", all, err)
	}
	if err := add("w", dir, false); err != nil {
		t.Fatalf("AddWorkspace: %v", err)
	}
	wantKind(t, "AddWorkspace again", add("w", dir, false), atoll.ErrAlreadyExists)
	_, err = workspace.Update(t.Context(), w, "", "w", nil)
	wantKind(t, "UpdateWorkspace", err, atoll.ErrInvalid)
	_, err = w.Create(t.Context(), &atoll.Spec{Workspace: atoll.WorkspaceRef{Name: "w", Commit: strings.Repeat("a", 40)}})
	wantKind(t, "Create with a commit", err, atoll.ErrInvalid)
	spec := useWorkspace("w")
	_, err = w.Create(t.Context(), &spec)
	wantKind(t, "Create where there are no bind mounts", err, atoll.ErrUnsupported)
	if err == nil || !strings.Contains(err.Error(), "file://"+dir) {
		t.Errorf("the error %v does not say what to do", err)
	}
	checkEmpty(t, w)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	_, err = w.Create(t.Context(), &spec)
	wantKind(t, "Create with a directory that is gone", err, atoll.ErrNotExist)
	if err := exec.Command("mkfifo", dir).Run(); err != nil { // as a sandbox with the parent directory can
		t.Fatal(err)
	}
	_, err = w.Create(t.Context(), &spec)
	wantKind(t, "Create with a pipe in its place", err, atoll.ErrInvalid)
	if all, err := workspace.List(t.Context(), w, ""); err != nil || len(all) != 1 || all[0].State != workspace.StateError || all[0].Error == "" {
		t.Errorf("of one that is gone there is %+v, %v, want an error", all, err)
	}
}

func TestRefused(t *testing.T) {
	r := newRepo(t)
	r.write("f", "x")
	r.commit()
	p := newOnMock(t, workspace.Options{})
	addWorkspace(t, p, workspace.Spec{Name: "w", Source: "file://" + r.dir})
	for name, spec := range map[string]atoll.Spec{
		"its environment":     {Env: []string{"ATOLL_WORKSPACE_NAME=w"}},
		"another workdir":     {Workdir: "/elsewhere", Workspace: atoll.WorkspaceRef{Name: "w"}},
		"a mount in the way":  {Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "v", Target: "/work/m"}}, Workspace: atoll.WorkspaceRef{Name: "w"}},
		"a read-only copy":    {Workspace: atoll.WorkspaceRef{Name: "w", ReadOnly: true}},
		"a name and a source": {Workspace: atoll.WorkspaceRef{Name: "w", Source: "/x"}},
		"half a commit":       {Workspace: atoll.WorkspaceRef{Name: "w", Commit: "abcdef"}},
	} {
		_, err := p.Create(t.Context(), &spec)
		wantKind(t, name, err, atoll.ErrInvalid)
	}
	spec := useWorkspace("none")
	_, err := p.Create(t.Context(), &spec)
	wantKind(t, "a workspace that is not there", err, atoll.ErrNotExist)
	wantKind(t, "RemoveWorkspace of a path", workspace.Remove(t.Context(), p, "..", "x"), atoll.ErrNotExist)
	checkEmpty(t, p)
}

// A workspace in use cannot be removed. Removing a project removes its workspaces, but no
// directories used in place.
func TestRemove(t *testing.T) {
	r := newRepo(t)
	r.write("f", "x")
	r.commit()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	opts := workspace.Options{Dir: filepath.Join(t.TempDir(), "w")}
	p := newOnMock(t, opts)
	for _, name := range []string{"one", "two"} {
		addWorkspace(t, p, workspace.Spec{Project: "p", Name: name, Source: "file://" + r.dir})
	}
	addWorkspace(t, p, workspace.Spec{Project: "p", Name: "here", Source: dir})
	addWorkspace(t, p, workspace.Spec{Project: "q", Name: "one", Source: "file://" + r.dir})
	spec := useWorkspace("one")
	spec.Project = "p"
	sb := createSandbox(t, p, spec)
	wantKind(t, "RemoveWorkspace in use", workspace.Remove(t.Context(), p, "p", "one"), atoll.ErrConflict)
	if err := sb.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "RemoveWorkspace of a stopped sandbox", workspace.Remove(t.Context(), p, "p", "one"), atoll.ErrConflict)
	if err := workspace.Remove(t.Context(), p, "p", "two"); err != nil {
		t.Errorf("RemoveWorkspace: %v", err)
	}
	wantKind(t, "RemoveWorkspace again", workspace.Remove(t.Context(), p, "p", "two"), atoll.ErrNotExist)
	for _, none := range []string{"", "..", ".", "p/one", "other"} {
		_ = atoll.RemoveProject(t.Context(), p, none) // independent of the provider
	}
	if all, err := workspace.List(t.Context(), p, ""); err != nil || len(all) != 3 {
		t.Fatalf("after RemoveProject of an invalid name: %+v, %v", all, err)
	}
	if err := atoll.RemoveProject(t.Context(), p, "p"); err != nil {
		t.Errorf("RemoveProject: %v", err)
	}
	all, err := workspace.List(t.Context(), p, "")
	if err != nil || len(all) != 1 || all[0].Project != "q" || all[0].Name != "one" {
		t.Errorf("after RemoveProject there are %+v, %v, want that of the other project", all, err)
	}
	if entries, err := os.ReadDir(opts.Dir); err != nil || slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == "p" }) {
		t.Errorf("the directory has %v, %v", entries, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "mine")); err != nil {
		t.Errorf("the directory that was used in place: %v", err)
	}
}

// A source instead of a name adds a workspace, once.
func TestSource(t *testing.T) {
	r := newRepo(t)
	r.write("f", "one")
	r.commit()
	p := newOnMock(t, workspace.Options{})
	spec := atoll.Spec{Workspace: atoll.WorkspaceRef{Source: "file://" + r.dir}}
	if err := atoll.Prepare(t.Context(), p, &spec, nil); err != nil {
		t.Fatalf("Prepare: %v", err)
	}
	r.write("f", "two")
	r.commit()
	first, second := createSandbox(t, p, spec), createSandbox(t, p, spec)
	checkFile(t, first, "f", "one")
	checkFile(t, second, "f", "one")
	ref := getStatus(t, second).Spec.Workspace
	if !strings.HasPrefix(ref.Name, "project-") || ref.Source != "" {
		t.Errorf("the sandbox has %+v, want the name of its workspace", ref)
	}
	if all, err := workspace.List(t.Context(), p, "default"); err != nil || len(all) != 1 || all[0].Name != ref.Name || !all[0].InUse {
		t.Errorf("Workspaces = %+v, %v, want %s, in use", all, err, ref.Name)
	}
}
