package workspace_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/workspace"
	"github.com/seed46cd37a8/atoll/provider/mock"
)

// runGitIn runs git in dir, with an author and nothing of the user's configuration.
func runGitIn(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-C", dir, "-c", "protocol.file.allow=always", "-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_SYSTEM="+os.DevNull)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
}

// makeLayouts makes repositories whose parts are elsewhere, and returns the directory with all of them.
func makeLayouts(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"repo", "super"} {
		runGitIn(t, dir, "init", "-q", name)
		runGitIn(t, at(name), "commit", "-q", "--allow-empty", "-m", "one")
	}
	runGitIn(t, at("repo"), "worktree", "add", "-q", at("tree"))
	runGitIn(t, at("super"), "submodule", "--quiet", "add", at("repo"), "libs/sub")
	runGitIn(t, dir, "clone", "-q", "--separate-git-dir="+at("separate.git"), at("repo"), "separate")
	runGitIn(t, dir, "clone", "-q", "--shared", at("repo"), "shared")
	return dir
}

func writeLink(t *testing.T, dir, to string) {
	t.Helper()
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, ".git"), []byte("gitdir: "+to+"\n"), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// forgeLinks makes directories that name others as their git directories, which name them in return, but are no repositories.
func forgeLinks(t *testing.T, dir string) {
	t.Helper()
	writeLink(t, filepath.Join(dir, "worktrees/b"), "../a")
	writeLink(t, filepath.Join(dir, "worktrees/b/in"), "..")
	writeLink(t, filepath.Join(dir, "worktrees/c"), "../d")
	writeLink(t, filepath.Join(dir, "module"), "../home")
	for name, text := range map[string]string{
		"worktrees/a/gitdir": filepath.Join(dir, "worktrees/b/.git"), "worktrees/a/commondir": "../..",
		"worktrees/b/gitdir": "in/.git", "worktrees/b/commondir": "../..",
		"worktrees/d/gitdir": "../c/.git",
		"home/config":        "[core]\n\tworktree = ../module\n",
	} {
		name = filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(name), 0o755)
		if err == nil {
			err = os.WriteFile(name, []byte(text+"\n"), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// FindGitDir finds the parts of each layout, and verifies only what names the directory of the files in return.
func TestFindGitDir(t *testing.T) {
	dir := makeLayouts(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	writeLink(t, at("relative"), "../repo/.git/worktrees/relative")
	own := at("repo/.git/worktrees/relative")
	for name, text := range map[string]string{"gitdir": "../../../../relative/.git\n", "commondir": "../..\n", "HEAD": "ref: refs/heads/main\n"} {
		if err := os.MkdirAll(own, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(own, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	forgeLinks(t, dir)
	writeLink(t, at("thief"), at("repo/.git/worktrees/tree"))
	writeLink(t, at("robber"), dir)
	writeLink(t, at("forger"), "fake/worktrees/x")
	writeLink(t, at("forger/fake/worktrees/x"), "nowhere")
	if err := os.WriteFile(at("forger/fake/worktrees/x/commondir"), []byte(dir), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct {
		path     string
		verified bool
		needs    []string
	}{
		"tree":           {at("repo/.git"), true, []string{at("repo/.git")}},
		"relative":       {at("repo/.git"), true, []string{at("repo/.git")}},
		"super/libs/sub": {at("super/.git/modules/libs/sub"), true, []string{at("super/.git/modules/libs/sub")}},
		"separate":       {at("separate.git"), false, []string{at("separate.git")}},
		"thief":          {at("repo/.git"), false, []string{at("repo/.git")}},
		"robber":         {dir, false, []string{dir}},
		"worktrees/b":    {dir, false, []string{dir}},
		"worktrees/b/in": {dir, false, []string{dir}},
		"worktrees/c":    {dir, false, []string{dir}},
		"module":         {at("home"), false, []string{at("home")}},
		"forger":         {}, // all of it is in the directory
		"shared":         {"", false, []string{at("repo/.git/objects")}},
		"repo":           {},
		"super":          {},
		"none":           {},
	} {
		got, ok := workspace.FindGitDir(at(name))
		if ok != (want.path != "") || got.Path != want.path || got.Real != want.path || got.Verified != want.verified {
			t.Errorf("%s: %+v, %v, want %+v", name, got, ok, want)
		}
		if needs := workspace.GitNeeds(at(name)); !slices.Equal(needs, want.needs) {
			t.Errorf("%s needs %q, want %q", name, needs, want.needs)
		}
	}
}

// A bindRecorder records the specs of sandboxes with bind mounts, which the provider below it does not have.
type bindRecorder struct {
	atoll.Provider
	spec *atoll.Spec
}

func (r *bindRecorder) Info() atoll.Info {
	info := r.Provider.Info()
	info.Caps.BindMounts = true
	return info
}

func (r *bindRecorder) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	r.spec = spec
	sb, err := r.Provider.Create(ctx, &atoll.Spec{})
	return recorded{atoll.SandboxLayer{Sandbox: sb}, spec}, err
}

type recorded struct {
	atoll.SandboxLayer
	spec *atoll.Spec
}

func (r recorded) Status(context.Context) (atoll.Status, error) {
	return atoll.Status{Spec: *r.spec.Clone()}, nil
}

// A worktree is mounted at its own path, with its repository, which is read-only but for what git in the worktree writes. Specs show
// only the workspace.
func TestWorktreeInPlace(t *testing.T) {
	dir := makeLayouts(t)
	tree, git := filepath.Join(dir, "tree"), filepath.Join(dir, "repo", ".git")
	const own = "worktrees/tree"
	runGitIn(t, tree, "config", "extensions.worktreeConfig", "true")
	m, err := mock.New(mock.Options{Dir: t.TempDir()})
	r := &bindRecorder{Provider: m}
	p := newLayer(t, r, err, workspace.Options{Dir: filepath.Join(t.TempDir(), "w")})
	mine := atoll.Mount{Type: atoll.MountBind, Source: dir, Target: "/mine"}
	for _, readOnly := range []bool{false, true} {
		for workdir, want := range map[string]string{"": tree, workspace.Dir + "/sub": tree + "/sub", "/opt": "/opt"} {
			sb := createSandbox(t, p, atoll.Spec{Workspace: atoll.WorkspaceRef{Source: tree, ReadOnly: readOnly}, Mounts: []atoll.Mount{mine}, Workdir: workdir})
			st, err := sb.Status(t.Context())
			if s := st.Spec; err != nil || s.Workspace.Name == "" || s.Workspace.ReadOnly != readOnly || !slices.Equal(s.Mounts, []atoll.Mount{mine}) || s.Workdir != want {
				t.Errorf("workdir %q: the spec is %+v, %v, want workdir %s", workdir, s, err, want)
			}
			mounts := []atoll.Mount{mine, {Type: atoll.MountBind, Source: tree, Target: tree, ReadOnly: readOnly}, {Type: atoll.MountBind, Source: git, Target: git, ReadOnly: true}}
			for _, part := range []struct {
				name     string
				readOnly bool
			}{{"objects", false}, {"refs", false}, {"logs", false}, {own, false}, {own + "/commondir", true}, {own + "/config.worktree", true}, {own + "/gitdir", true}} {
				if at := filepath.Join(git, part.name); !readOnly {
					mounts = append(mounts, atoll.Mount{Type: atoll.MountBind, Source: at, Target: at, ReadOnly: part.readOnly})
				}
			}
			if !slices.Equal(r.spec.Mounts, mounts) {
				t.Errorf("read-only %v: the mounts are %+v, want %+v", readOnly, r.spec.Mounts, mounts)
			}
			if !slices.Contains(r.spec.System.Env, workspace.Var+"="+tree) {
				t.Errorf("the environment is %q", r.spec.System.Env)
			}
		}
	}
}
