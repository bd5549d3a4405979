// Package agentgit does the work of git on the user's machine for coding agents in sandboxes: it gives an agent a repository of its own, takes
// the agent's commits into the repository of the user, and applies them.
//
// The agent's part of a repository is hostile: its settings and hooks run programs. So no git of this machine ever reads it. The agent has a
// git directory of its own, which borrows the objects of the user's repository, read-only. Its commits come as a bundle that git inside of
// the sandbox writes, like those of a stranger from the network.
package agentgit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/printable"
)

// A Repo is a repository of the user.
type Repo struct {
	Dir    string // of the files, without links
	GitDir string // that all worktrees share, without links
	Branch string // that is checked out; "" for none
	Head   string // the commit that is checked out
	Dirty  bool   // there are changes, or new files, that no commit has
}

// settings prevent the repository of the user from running programs where nobody expects it: hooks are for the user's own commands.
var settings = []string{
	"-c", "core.hooksPath=" + os.DevNull, "-c", "core.fsmonitor=false", "-c", "submodule.recurse=false", "-c", "gc.auto=0", "-c", "maintenance.auto=false",
	"-c", "protocol.allow=never", "-c", "protocol.file.allow=always", "-c", "transfer.fsckObjects=true", "-c", "fetch.fsckObjects=true",
	"-c", "fetch.recurseSubmodules=false", "-c", "advice.detachedHead=false", "-c", "commit.gpgSign=false",
}

// A command is a call of git.
type command struct {
	dir   string
	args  []string
	env   []string
	stdin io.Reader
	out   io.Writer // nil for the result of runGit
}

// runGit runs git in dir, without the variables that point it to another repository, and returns its output without the last end of line. Its error has
// what git says.
func (c command) runGit(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "git", append(settings[:len(settings):len(settings)], c.args...)...)
	cmd.Dir, cmd.Stdin, cmd.WaitDelay = c.dir, c.stdin, 2*time.Second
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); !strings.HasPrefix(name, "GIT_") || isIdentity(name) {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(append(cmd.Env, "LC_ALL=C", "GIT_TERMINAL_PROMPT=0", "GIT_NO_REPLACE_OBJECTS=1", "GIT_OPTIONAL_LOCKS=0"), c.env...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if c.out != nil {
		cmd.Stdout = c.out
	}
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case errors.Is(err, exec.ErrNotFound):
		return "", newError(atoll.ErrUnavailable, "git is not installed: install it")
	case err != nil:
		return strings.TrimSuffix(out.String(), "\n"), &gitError{strings.TrimSpace(said.String()), err}
	}
	return strings.TrimSuffix(out.String(), "\n"), nil
}

// isIdentity reports whether a variable names the author of commits.
func isIdentity(name string) bool {
	return strings.HasPrefix(name, "GIT_AUTHOR_") || strings.HasPrefix(name, "GIT_COMMITTER_")
}

// A gitError is a failure of git.
type gitError struct {
	said string
	err  error
}

func (e *gitError) Error() string {
	if e.said == "" {
		return "git: " + e.err.Error()
	}
	const most = 1000
	return "git: " + printable.Escape(e.said[:min(len(e.said), most)], "")
}

func (e *gitError) Unwrap() error { return e.err }

func newError(kind atoll.Kind, format string, args ...any) error {
	return &atoll.Error{Kind: kind, Err: fmt.Errorf(format, args...)}
}

// runGit runs git in the repository.
func (r *Repo) runGit(ctx context.Context, args ...string) (string, error) {
	return command{dir: r.Dir, args: args}.runGit(ctx)
}

// Find returns the repository that has the files in dir. Kinds: ErrInvalid (there is none, or it has no commit), ErrUnavailable (no git).
func Find(ctx context.Context, dir string) (*Repo, error) {
	out, err := command{dir: dir, args: []string{"rev-parse", "--path-format=absolute", "--show-toplevel", "--git-common-dir"}}.runGit(ctx)
	if atoll.KindOf(err) == atoll.ErrUnavailable {
		return nil, err
	}
	top, common, ok := strings.Cut(out, "\n")
	if err != nil || !ok {
		return nil, newError(atoll.ErrInvalid, "%s is not in a git repository with files: run git init, or use --in-place", dir)
	}
	r := &Repo{}
	if r.Dir, err = filepath.EvalSymlinks(top); err == nil {
		r.GitDir, err = filepath.EvalSymlinks(common)
	}
	if err != nil {
		return nil, err
	}
	if r.Head, err = r.runGit(ctx, "rev-parse", "--verify", "--quiet", "HEAD^{commit}"); err != nil {
		return nil, newError(atoll.ErrInvalid, "the repository %s has no commit: make one, or use --in-place", r.Dir)
	}
	r.Branch, _ = r.runGit(ctx, "symbolic-ref", "--quiet", "--short", "HEAD") // fails if none is checked out
	status, err := r.runGit(ctx, "status", "--porcelain", "--ignore-submodules=all")
	r.Dirty = status != ""
	return r, err
}

// A Work is the part of a repository that one agent works on.
type Work struct {
	Name   string // of the agent
	Branch string // of the user's repository, for the agent's work
	Base   string // the commit with which the agent begins
	Dir    string // its files: a worktree of the user's repository
	GitDir string // the agent's own git directory, for the sandbox only
	Link   string // the file that is to be .git in the sandbox
	Shared string // the objects of the user's repository, which the sandbox can read
}

// The places in a sandbox at which the agent's git directory and the objects that it borrows have to be.
const (
	InsideGitDir  = "/atoll/git"
	InsideObjects = "/atoll/objects"
)

// AddWork makes a worktree of the repository in a new directory dir, on a new branch that begins at start, and the git directory of the agent, in
// another directory beside it. Kinds: ErrAlreadyExists (the branch or the directory exists), ErrNotExist (no such start).
func (r *Repo) AddWork(ctx context.Context, name, branch, start, dir string) (*Work, error) {
	w := &Work{Name: name, Branch: branch, Dir: filepath.Join(dir, "files"), GitDir: filepath.Join(dir, "git"), Link: filepath.Join(dir, "link"), Shared: filepath.Join(r.GitDir, "objects")}
	if _, err := r.runGit(ctx, "check-ref-format", "--branch", branch); err != nil {
		return nil, newError(atoll.ErrInvalid, "%q is not the name of a branch", branch)
	}
	if _, err := r.runGit(ctx, "rev-parse", "--verify", "--quiet", "refs/heads/"+branch); err == nil {
		return nil, newError(atoll.ErrAlreadyExists, "branch %s exists: choose another with --branch, or delete it: git branch -D %[1]s", branch)
	}
	var err error
	if w.Base, err = r.runGit(ctx, "rev-parse", "--verify", "--quiet", start+"^{commit}"); err != nil {
		return nil, newError(atoll.ErrNotExist, "the repository has no commit %q", start)
	}
	if text, err := os.ReadFile(filepath.Join(w.Shared, "info", "alternates")); err == nil && len(bytes.TrimSpace(text)) > 0 {
		return nil, newError(atoll.ErrUnsupported, "the repository borrows objects of another (git clone --shared): run git repack -ad and remove %s, or use --copy", filepath.Join(w.Shared, "info", "alternates"))
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, newError(atoll.KindOf(err), "%w", err)
	}
	if _, err := r.runGit(ctx, "worktree", "add", "--quiet", "-b", branch, "--", w.Dir, w.Base); err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	if err := r.makeGitDir(ctx, w); err != nil {
		return nil, errors.Join(err, r.RemoveWork(context.WithoutCancel(ctx), w, true))
	}
	return w, nil
}

// makeGitDir makes the git directory of an agent, whose only branch is that of its work.
func (r *Repo) makeGitDir(ctx context.Context, w *Work) error {
	format, err := r.runGit(ctx, "rev-parse", "--show-object-format")
	if err != nil {
		return err
	}
	if _, err := r.runGit(ctx, "init", "--quiet", "--bare", "--template=", "--object-format="+format, "--initial-branch="+w.Branch, "--", w.GitDir); err != nil {
		return err
	}
	inside := func(args ...string) error {
		env := []string{"GIT_DIR=" + w.GitDir, "GIT_WORK_TREE=" + w.Dir, "GIT_ALTERNATE_OBJECT_DIRECTORIES=" + w.Shared}
		_, err := command{dir: w.Dir, args: args, env: env}.runGit(ctx)
		return err
	}
	for _, args := range [][]string{
		{"config", "core.bare", "false"}, {"config", "core.worktree", w.Dir}, {"config", "gc.auto", "0"},
		{"update-ref", "refs/heads/" + w.Branch, w.Base}, {"read-tree", w.Base},
	} {
		if err := inside(args...); err != nil {
			return err
		}
	}
	write := func(path, text string) error {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		return os.WriteFile(path, []byte(text), 0o644)
	}
	return errors.Join(
		write(filepath.Join(w.GitDir, "objects", "info", "alternates"), InsideObjects+"\n"),
		write(w.Link, "gitdir: "+InsideGitDir+"\n"))
}

// Mounts returns the mounts of a sandbox that works on w, at the path of its files on this machine.
func (w *Work) Mounts() []atoll.Mount {
	return []atoll.Mount{
		{Type: atoll.MountBind, Source: w.Dir, Target: w.Dir},
		{Type: atoll.MountBind, Source: w.Link, Target: filepath.Join(w.Dir, ".git"), ReadOnly: true},
		{Type: atoll.MountBind, Source: w.GitDir, Target: InsideGitDir},
		{Type: atoll.MountBind, Source: w.Shared, Target: InsideObjects, ReadOnly: true},
	}
}

// RemoveWork removes the worktree and the git directory of the agent, and with branch its branch. It removes what is left if some has gone.
func (r *Repo) RemoveWork(ctx context.Context, w *Work, branch bool) error {
	top := filepath.Dir(w.GitDir)
	if err := os.RemoveAll(top); err != nil { // it follows no link
		return err
	}
	_, err := r.runGit(ctx, "worktree", "prune")
	_, lost := r.runGit(ctx, "update-ref", "-d", refOf(w.Name))
	if branch {
		if _, failed := r.runGit(ctx, "rev-parse", "--verify", "--quiet", "refs/heads/"+w.Branch); failed == nil {
			_, failed = r.runGit(ctx, "branch", "--quiet", "-D", "--", w.Branch)
			err = errors.Join(err, failed)
		}
	}
	return errors.Join(err, lost)
}

// refOf returns the name of the reference to the work of an agent that the repository of the user has.
func refOf(name string) string { return "refs/atoll/" + name }
