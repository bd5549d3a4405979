package agentgit

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

func TestMain(m *testing.M) { testenv.VerifyTestMain(m) }

// A desk is a repository of a user, and an agent at work on it.
type desk struct {
	t    *testing.T
	dir  string // of the user's files
	repo *Repo
	work *Work
}

// newDesk returns a repository with one commit, and a work on it.
func newDesk(t *testing.T) *desk {
	t.Helper()
	testenv.Need(t, testenv.Program("git", "git"))
	for _, role := range []string{"AUTHOR", "COMMITTER"} {
		t.Setenv("GIT_"+role+"_NAME", "me")
		t.Setenv("GIT_"+role+"_EMAIL", "me@example.com")
	}
	t.Setenv("HOME", t.TempDir())
	d := &desk{t: t, dir: filepath.Join(t.TempDir(), "repo")}
	d.run(filepath.Dir(d.dir), "git", "init", "-q", "-b", "main", d.dir)
	d.write(d.dir, "a", "one\ntwo\nthree\n")
	d.write(d.dir, "b", "b\n")
	d.run(d.dir, "git", "add", "-A")
	d.run(d.dir, "git", "commit", "-qm", "first")
	d.find()
	var err error
	if d.work, err = d.repo.AddWork(t.Context(), "claude", "atoll/claude", "HEAD", filepath.Join(t.TempDir(), "work")); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *desk) find() {
	d.t.Helper()
	var err error
	if d.repo, err = Find(d.t.Context(), d.dir); err != nil {
		d.t.Fatal(err)
	}
}

func (d *desk) write(dir, name, text string) {
	d.t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		d.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		d.t.Fatal(err)
	}
}

// read returns the text of a file of the user, "" if there is none.
func (d *desk) read(name string) string {
	data, _ := os.ReadFile(filepath.Join(d.dir, name))
	return string(data)
}

func (d *desk) run(dir string, args ...string) string {
	d.t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		d.t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// inside runs a script as the agent does in its sandbox, where its git directory has another path.
func (d *desk) inside(script string, args ...string) []byte {
	d.t.Helper()
	cmd := exec.Command("sh", append([]string{"-c", script, "sh"}, args...)...)
	cmd.Dir = d.work.Dir
	cmd.Env = append(os.Environ(), "GIT_DIR="+d.work.GitDir, "GIT_WORK_TREE="+d.work.Dir, "GIT_ALTERNATE_OBJECT_DIRECTORIES="+d.work.Shared)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		d.t.Fatalf("%s: %v\n%s", script, err, said.String())
	}
	return out
}

// take imports the work of the agent.
func (d *desk) take() string {
	d.t.Helper()
	commit, err := d.repo.Import(d.t.Context(), d.work.Name, d.work.Base, bytes.NewReader(d.inside(BundleScript, d.work.Base)))
	if err != nil {
		d.t.Fatal(err)
	}
	return commit
}

func (d *desk) apply(opts Options) (Result, error) {
	d.t.Helper()
	commit := d.take()
	d.find()
	opts.Name = d.work.Name
	return d.repo.Apply(d.t.Context(), d.work.Base, commit, opts)
}

func (d *desk) wantStatus(want string) {
	d.t.Helper()
	if got := d.run(d.dir, "git", "status", "--porcelain"); got != want {
		d.t.Errorf("git status: %q, want %q", got, want)
	}
}

// The agent's commits, and what it has not committed, arrive in the branch of the user.
func TestApply(t *testing.T) {
	d := newDesk(t)
	if commit := d.take(); commit != d.work.Base {
		t.Errorf("without work the commit is %s, want %s", commit, d.work.Base)
	}
	d.inside(`echo four >> a && git commit -qam second && rm b && mkdir c && echo new > "c/ü file" && chmod +x a`)
	res, err := d.apply(Options{})
	if err != nil || !res.Changed || len(res.Held) > 0 {
		t.Fatalf("got %+v, %v", res, err)
	}
	d.wantStatus("")
	if d.read("a") != "one\ntwo\nthree\nfour\n" || d.read("b") != "" || d.read("c/ü file") != "new\n" {
		t.Errorf("the files are %q %q %q", d.read("a"), d.read("b"), d.read("c/ü file"))
	}
	if got := d.run(d.dir, "git", "log", "--format=%s"); got != "Changes without a commit\nsecond\nfirst" {
		t.Errorf("the commits are %q", got)
	}
	if again, err := d.apply(Options{}); err != nil || again.Changed {
		t.Errorf("again: %+v, %v", again, err)
	}
	// More work, and commits of the user meanwhile, make a merge.
	d.write(d.dir, "mine", "mine\n")
	d.run(d.dir, "git", "add", "-A")
	d.run(d.dir, "git", "commit", "-qm", "mine")
	d.inside(`echo five >> a && git add -A && git commit -qm third`)
	if res, err := d.apply(Options{}); err != nil || !res.Changed {
		t.Fatalf("got %+v, %v", res, err)
	}
	d.wantStatus("")
	if got := d.run(d.dir, "git", "log", "-1", "--format=%s %P"); !strings.HasPrefix(got, "Merge the work of agent claude ") || len(strings.Fields(got)) != 8 || d.read("mine") != "mine\n" || !strings.HasSuffix(d.read("a"), "five\n") {
		t.Errorf("the merge is %q, a is %q", got, d.read("a"))
	}
}

// Work of the user that no commit has is never touched, and a conflict changes nothing.
func TestApplyRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		user, agent, want string
		opts              Options
	}{
		"a change without a commit": {`echo mine > a`, `echo four >> a`, `you have changes without a commit in "a"`, Options{}},
		"the same with a patch":     {`echo mine > a`, `echo four >> a`, `you have changes without a commit in "a"`, Options{Patch: true}},
		"a staged change":           {`echo mine > a; git add a`, `echo four >> a`, `without a commit in "a"`, Options{}},
		"a file of the user":        {`mkdir new; echo mine > new/f`, `mkdir new; echo x > new/f`, `without a commit in "new/f"`, Options{}},
		"an ignored file":           {`echo out > .git/info/exclude; mkdir out; echo mine > out/f`, `mkdir out; echo x > out/f; git add -f out`, `without a commit in "out/f"`, Options{}},
		"a file for a directory":    {`echo mine > new`, `mkdir new; echo x > new/f`, `changes`, Options{}},
		"a directory for a file":    {`mkdir new; echo mine > new/f`, `echo x > new`, `without a commit in "new"`, Options{}},
		"a conflict":                {`echo mine > a; git commit -qam mine`, `echo theirs > a`, `both you and the agent have changed "a"`, Options{}},
		"no such path":              {``, `echo x > new`, `new is not held back`, Options{Include: []string{"new"}}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			d.run(d.dir, "sh", "-c", tt.user)
			d.inside(tt.agent)
			before, head := d.run(d.dir, "git", "status", "--porcelain", "--ignored", "-uall"), d.run(d.dir, "git", "rev-parse", "HEAD")
			if _, err := d.apply(tt.opts); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if after, now := d.run(d.dir, "git", "status", "--porcelain", "--ignored", "-uall"), d.run(d.dir, "git", "rev-parse", "HEAD"); after != before || now != head {
				t.Errorf("the status was %q at %s, and is %q at %s", before, head, after, now)
			}
		})
	}
}

// Other changes of the user stay as they are, and a patch makes no commit.
func TestApplyBesideChanges(t *testing.T) {
	for _, patch := range []bool{false, true} {
		d := newDesk(t)
		d.write(d.dir, "b", "mine\n")
		d.write(d.dir, "untracked", "mine\n")
		d.inside(`echo four >> a && git commit -qam second && echo x > new`)
		if res, err := d.apply(Options{Patch: patch}); err != nil || !res.Changed {
			t.Fatalf("got %+v, %v", res, err)
		}
		want := "M b\n?? untracked"
		if patch {
			want = "M a\n M b\n?? new\n?? untracked"
		}
		d.wantStatus(want)
		if d.read("b") != "mine\n" || !strings.HasSuffix(d.read("a"), "four\n") || d.read("new") != "x\n" {
			t.Errorf("patch %t: the files are %q %q %q", patch, d.read("a"), d.read("b"), d.read("new"))
		}
	}
}

// Apply holds back files that programs of this machine obey, and the rest is one commit.
func TestHeldBack(t *testing.T) {
	d := newDesk(t)
	d.inside(`mkdir -p .vscode sub/.husky .github/workflows deep/.VSCode
		for f in .vscode/tasks.json .envrc sub/.husky/pre-commit .gitattributes .gitmodules .mcp.json .github/workflows/ci.yml deep/.VSCode/x; do echo x > $f; done
		ln -s /etc/passwd out; ln -s ../../x up; ln -s a in; ln -s .git/hooks hooks; echo four >> a; echo ok > new
		git add -A; git commit -qm second`)
	res, err := d.apply(Options{Include: []string{".envrc"}})
	if err != nil || !res.Changed {
		t.Fatalf("got %+v, %v", res, err)
	}
	var held []string
	for _, c := range res.Held {
		if c.Why == "" {
			t.Errorf("%s is held back without a reason", c.Path)
		}
		held = append(held, c.Path)
	}
	slices.Sort(held)
	want := []string{".gitattributes", ".github/workflows/ci.yml", ".gitmodules", ".mcp.json", ".vscode/tasks.json", "deep/.VSCode/x", "hooks", "out", "sub/.husky/pre-commit", "up"}
	if !slices.Equal(held, want) {
		t.Errorf("held back %q, want %q", held, want)
	}
	d.wantStatus("")
	if got := d.run(d.dir, "git", "ls-files"); got != ".envrc\na\nb\nin\nnew" {
		t.Errorf("the files are %q", got)
	}
	if got := d.run(d.dir, "git", "log", "-1", "--format=%B"); got != "Work of agent claude\n\n- second" {
		t.Errorf("the message is %q", got)
	}
}

// A bundle of a stranger moves nothing but the reference of its agent, and brings no object that is not valid.
func TestImportOfStrangers(t *testing.T) {
	d := newDesk(t)
	refs := d.run(d.dir, "git", "for-each-ref")
	d.inside(`echo x > x && git add x && git commit -qm x && git update-ref refs/heads/main HEAD && git tag t`)
	tree := func(entry string) string {
		return `git update-ref refs/atoll/work $(git commit-tree -p ` + d.work.Base + ` -m x $(` +
			`b=$(echo x | git hash-object -w --stdin); { printf '100644 ` + entry + `\0'; printf %s $b | sed 's/../\\x&/g' | xargs -0 printf '%b'; } | git hash-object --literally -t tree -w --stdin))
			git bundle create --quiet - refs/atoll/work ^` + d.work.Base
	}
	for name, tt := range map[string]struct{ script, want string }{
		"text":             {`echo hello`, "not a bundle"},
		"the end missing":  {`git update-ref refs/atoll/work HEAD; git bundle create --quiet - refs/atoll/work ^` + d.work.Base + ` | head -c 200`, "not valid"},
		"other references": {`git bundle create --quiet - main t ^` + d.work.Base, "other references"},
		"another history":  {`git update-ref refs/atoll/work $(git commit-tree -m x HEAD^{tree}); git bundle create --quiet - refs/atoll/work`, "does not follow"},
		"a path of git":    {tree(".git"), "not valid"},
		"a path of NTFS":   {tree("git~1"), "not valid"},
		"a path upwards":   {tree(".."), "not valid"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := d.repo.Import(t.Context(), "claude", d.work.Base, bytes.NewReader(d.inside(tt.script)))
			if atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if got := strings.ReplaceAll(d.run(d.dir, "git", "for-each-ref", "refs/heads", "refs/tags"), "\n\n", "\n"); got != refs {
				t.Errorf("the references are %q, want %q", got, refs)
			}
		})
	}
}

// No setting and no hook of the agent's git directory runs anything on this machine.
func TestHostileSettings(t *testing.T) {
	d := newDesk(t)
	mark := filepath.Join(t.TempDir(), "mark")
	script := filepath.Join(t.TempDir(), "evil")
	d.write(filepath.Dir(script), "evil", "#!/bin/sh\ntouch "+mark+"\n")
	if err := os.Chmod(script, 0o755); err != nil {
		t.Fatal(err)
	}
	d.inside(`echo x > x && git add x && git commit -qm x`)
	bundle := d.inside(BundleScript, d.work.Base)
	for _, setting := range []string{"core.fsmonitor", "core.sshCommand", "diff.external", "core.pager", "filter.x.smudge", "filter.x.clean", "diff.x.textconv", "core.editor", "gpg.program"} {
		d.inside(`git config "$1" "$2"`, setting, script)
	}
	d.inside(`mkdir -p "$GIT_DIR/hooks"; for h in post-checkout post-merge pre-commit reference-transaction; do cp "$1" "$GIT_DIR/hooks/$h"; done; echo '* filter=x diff=x' > .gitattributes`, script)
	// The agent replaces what this machine has at its place, as far as it can.
	d.inside(`rm -f .git; mkdir .git; cp -r "$GIT_DIR"/. .git/; mkdir -p sub; cp -r .git sub/.git`)
	commit, err := d.repo.Import(t.Context(), "claude", d.work.Base, bytes.NewReader(bundle))
	if err != nil {
		t.Fatal(err)
	}
	d.find()
	if _, err := d.repo.Apply(t.Context(), d.work.Base, commit, Options{Name: "claude"}); err != nil {
		t.Fatal(err)
	}
	if err := d.repo.Diff(t.Context(), d.work.Base, commit, false, &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	if err := d.repo.RemoveWork(t.Context(), d.work, true); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("a program of the agent ran")
	}
	if _, err := os.Stat(filepath.Dir(d.work.Dir)); err == nil {
		t.Error("the directory of the work remains")
	}
	if got := d.run(d.dir, "git", "worktree", "list"); strings.Count(got, "\n") != 0 {
		t.Errorf("the worktrees are %q", got)
	}
	if got := d.run(d.dir, "git", "for-each-ref", "refs/heads/atoll", "refs/atoll"); got != "" {
		t.Errorf("the references are %q", got)
	}
}

// The directory of the work does not lead out of itself when it is removed.
func TestRemoveFollowsNoLink(t *testing.T) {
	d := newDesk(t)
	precious := t.TempDir()
	d.write(precious, "file", "precious")
	d.inside(`ln -s "$1" link; rm -f .git; ln -s "$1" .git`, precious)
	if err := d.repo.RemoveWork(t.Context(), d.work, false); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(precious, "file")); err != nil {
		t.Error(err)
	}
	if got := d.run(d.dir, "git", "branch", "--list", "atoll/*"); got != "atoll/claude" {
		t.Errorf("the branches are %q", got)
	}
}

// Errors say what to do.
func TestFaults(t *testing.T) {
	d := newDesk(t)
	empty := filepath.Join(t.TempDir(), "empty")
	d.run("/", "git", "init", "-q", empty)
	bare := filepath.Join(t.TempDir(), "bare")
	d.run("/", "git", "init", "-q", "--bare", bare)
	for dir, want := range map[string]string{t.TempDir(): "run git init, or use --in-place", empty: "has no commit", bare: "not in a git repository with files"} {
		if _, err := Find(t.Context(), dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", dir, err, want)
		}
	}
	add := func(branch, start, dir string) error {
		_, err := d.repo.AddWork(t.Context(), "x", branch, start, dir)
		return err
	}
	for want, err := range map[string]error{
		"choose another with --branch": add("atoll/claude", "HEAD", filepath.Join(t.TempDir(), "w")),
		"is not the name of a branch":  add("a..b", "HEAD", filepath.Join(t.TempDir(), "w")),
		`has no commit "nowhere"`:      add("x", "nowhere", filepath.Join(t.TempDir(), "w")),
		"file exists":                  add("x", "HEAD", t.TempDir()),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Find(ctx, d.dir); err == nil {
		t.Error("Find ignores its context")
	}
	if d.repo.Dirty || d.repo.Branch != "main" {
		t.Errorf("the repository is %+v", d.repo)
	}
	d.write(d.dir, "x", "x")
	if d.find(); !d.repo.Dirty {
		t.Error("a new file is not seen")
	}
}

// Two agents work side by side.
func TestTwoWorks(t *testing.T) {
	d := newDesk(t)
	second := *d
	var err error
	if second.work, err = d.repo.AddWork(t.Context(), "codex", "atoll/codex", "HEAD", filepath.Join(t.TempDir(), "work")); err != nil {
		t.Fatal(err)
	}
	d.inside(`echo 1 > one`)
	second.inside(`echo 2 > two`)
	for _, one := range []*desk{d, &second} {
		if res, err := one.apply(Options{}); err != nil || !res.Changed {
			t.Errorf("got %+v, %v", res, err)
		}
	}
	if d.read("one") != "1\n" || d.read("two") != "2\n" {
		t.Errorf("the files are %q and %q", d.read("one"), d.read("two"))
	}
}
