package agentgit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// A Change is a path that differs between two commits.
type Change struct {
	Path string
	Mode string // the new mode, like "100644"; "000000" if it was deleted
	Why  string // the reason to hold it back, "" for none
}

// Modes of git.
const (
	modeLink      = "120000"
	modeSubmodule = "160000"
	modeDeleted   = "000000"
)

// ListChanges returns the paths that differ between base and commit, with the reasons to hold some back: programs of this machine obey
// these without being asked.
func (r *Repo) ListChanges(ctx context.Context, base, commit string) ([]Change, error) {
	out, err := r.runGit(ctx, "diff-tree", "-r", "-z", "--no-renames", "--ignore-submodules=none", base, commit)
	if err != nil || out == "" {
		return nil, err
	}
	fields := strings.Split(strings.TrimSuffix(out, "\x00"), "\x00")
	var all []Change
	for i := 0; i+1 < len(fields); i += 2 {
		meta := strings.Fields(fields[i])
		if len(meta) < 5 {
			return nil, newError(atoll.ErrInternal, "git says %q", fields[i])
		}
		c := Change{Path: fields[i+1], Mode: meta[1]}
		target := ""
		if c.Mode == modeLink {
			if target, err = r.runGit(ctx, "cat-file", "blob", meta[3]); err != nil {
				return nil, err
			}
		}
		c.Why = explainHeld(c, target)
		all = append(all, c)
	}
	return all, nil
}

// heldNames are names, in lower case, of files and directories anywhere in a repository that programs obey, with the programs.
var heldNames = map[string]string{
	".envrc": "direnv runs it", ".vscode": "VS Code runs its tasks and obeys its settings", ".idea": "IDEs of JetBrains run what it has",
	".devcontainer": "editors build and run it", ".devcontainer.json": "editors build and run it", ".fleet": "it has commands that Fleet runs", ".zed": "Zed runs its tasks",
	".husky": "git runs hooks in it", ".githooks": "git runs hooks in it", ".git-hooks": "git runs hooks in it", ".pre-commit-config.yaml": "pre-commit runs it", "lefthook.yml": "lefthook runs it",
	".gitmodules": "git fetches the repositories that it names", ".gitattributes": "it selects programs that git runs", ".gitconfig": "git obeys it if it is included", ".lfsconfig": "git-lfs obeys it",
	".mcp.json": "coding agents start the servers that it names", ".claude": "Claude Code runs its hooks", ".codex": "Codex obeys it", ".cursor": "Cursor obeys it", ".gemini": "Gemini CLI obeys it", ".opencode": "OpenCode obeys it",
	".exrc": "vim runs it", ".nvimrc": "vim runs it", ".nvim.lua": "vim runs it", ".dir-locals.el": "Emacs evaluates it", ".mise.toml": "mise runs it", "mise.toml": "mise runs it", ".tool-versions": "version managers obey it",
	".github/workflows": "it runs with the rights of the repository after a push", ".gitlab-ci.yml": "it runs with the rights of the repository after a push",
}

// explainHeld returns the reason to hold a change back, "" for none. target is that of a link.
func explainHeld(c Change, target string) string {
	if c.Mode == modeDeleted {
		return ""
	}
	parts := strings.Split(strings.ToLower(c.Path), "/")
	for i, part := range parts {
		if why := heldNames[part]; why != "" {
			return why
		}
		if i > 0 {
			if why := heldNames[parts[i-1]+"/"+part]; why != "" {
				return why
			}
		}
	}
	switch c.Mode {
	case modeSubmodule:
		return "it is a submodule, which git fetches"
	case modeLink:
		if to := path.Join(path.Dir(c.Path), target); path.IsAbs(target) || to == ".." || strings.HasPrefix(to, "../") || to == ".git" || strings.HasPrefix(to, ".git/") {
			return "it is a link out of the repository"
		}
	}
	return ""
}

// A Result says what Apply did.
type Result struct {
	Commit  string   // that is checked out now
	Held    []Change // that were held back
	Changed bool     // anything was applied
}

// Options of Apply.
type Options struct {
	Name    string   // of the agent, for the message of a merge
	Include []string // paths to apply although they would be held back
	Patch   bool     // change files only, without a commit
}

// Apply merges the work of an agent, from base to commit, into the branch that is checked out, or changes files only. It leaves out what is held back:
// then the rest is one commit. It never touches changes of the user that no commit has, and changes nothing if it fails. Kinds: ErrConflict
// (both have changed the same), ErrInvalid (a path of Include is not one that is held back).
func (r *Repo) Apply(ctx context.Context, base, commit string, opts Options) (res Result, err error) {
	changes, err := r.ListChanges(ctx, base, commit)
	if err != nil {
		return res, err
	}
	for _, p := range opts.Include {
		if !slices.ContainsFunc(changes, func(c Change) bool { return c.Path == p && c.Why != "" }) {
			return res, newError(atoll.ErrInvalid, "%s is not held back", p)
		}
	}
	for _, c := range changes {
		if c.Why != "" && !slices.Contains(opts.Include, c.Path) {
			res.Held = append(res.Held, c)
		}
	}
	if len(res.Held) == len(changes) {
		res.Commit = r.Head
		return res, nil
	}
	theirs := commit
	if len(res.Held) > 0 {
		if theirs, err = r.commitWithout(ctx, base, commit, res.Held, opts.Name); err != nil {
			return res, err
		}
	}
	merged, err := r.mergeTrees(ctx, base, theirs)
	if err != nil {
		return res, err
	}
	touched, err := r.runGit(ctx, "diff-tree", "-r", "-z", "--no-renames", "--name-only", r.Head, merged)
	if err != nil {
		return res, err
	}
	if touched == "" { // it was applied before
		res.Commit = r.Head
		return res, nil
	}
	if err := r.checkUntouched(ctx, strings.Split(strings.TrimSuffix(touched, "\x00"), "\x00")); err != nil {
		return res, err
	}
	res.Changed = true
	if opts.Patch {
		res.Commit = r.Head
		return res, r.changeFiles(ctx, r.Head, merged, false)
	}
	res.Commit = theirs
	if _, err := r.runGit(ctx, "merge-base", "--is-ancestor", r.Head, theirs); err != nil {
		message := fmt.Sprintf("Merge the work of agent %s", opts.Name)
		if res.Commit, err = r.runGit(ctx, "commit-tree", "-p", r.Head, "-p", theirs, "-m", message, merged); err != nil {
			return res, explainIdentity(err)
		}
	}
	if err := r.changeFiles(ctx, r.Head, merged, true); err != nil {
		return res, err
	}
	_, err = r.runGit(ctx, "update-ref", "-m", "atoll: apply "+opts.Name, "HEAD", res.Commit, r.Head)
	return res, err
}

// explainIdentity says what to do if git does not know its user.
func explainIdentity(err error) error {
	if err == nil {
		return nil
	}
	if strings.Contains(err.Error(), "tell me who you are") || strings.Contains(err.Error(), "ident") {
		return newError(atoll.ErrInvalid, "git does not know the author of commits: run git config --global user.name and user.email, or use --patch (%w)", err)
	}
	return err
}

// commitWithout returns a commit on base with the work of an agent without the changes that are held back.
func (r *Repo) commitWithout(ctx context.Context, base, commit string, held []Change, name string) (string, error) {
	index, err := os.CreateTemp("", "atoll-index-")
	if err != nil {
		return "", err
	}
	index.Close()
	defer os.Remove(index.Name())
	os.Remove(index.Name()) // git makes it
	inIndex := func(stdin string, args ...string) (string, error) {
		return command{dir: r.Dir, args: args, env: []string{"GIT_INDEX_FILE=" + index.Name()}, stdin: strings.NewReader(stdin)}.runGit(ctx)
	}
	if _, err := inIndex("", "read-tree", commit); err != nil {
		return "", err
	}
	var before strings.Builder
	for _, c := range held {
		entry, err := r.runGit(ctx, "ls-tree", "-z", "--full-tree", base, "--", ":(top,literal)"+c.Path)
		if err != nil {
			return "", err
		}
		meta, _, _ := strings.Cut(strings.TrimSuffix(entry, "\x00"), "\t")
		if f := strings.Fields(meta); len(f) == 3 {
			fmt.Fprintf(&before, "%s %s\t%s\x00", f[0], f[2], c.Path)
		} else {
			fmt.Fprintf(&before, "0 %s\t%s\x00", strings.Repeat("0", len(commit)), c.Path)
		}
	}
	if _, err := inIndex(before.String(), "update-index", "-z", "--index-info"); err != nil {
		return "", err
	}
	tree, err := inIndex("", "write-tree")
	if err != nil {
		return "", err
	}
	subjects, _, err := r.Describe(ctx, base, commit)
	if err != nil {
		return "", err
	}
	message := fmt.Sprintf("Work of agent %s\n\n- %s\n", name, strings.Join(subjects, "\n- "))
	made, err := r.runGit(ctx, "commit-tree", "-p", base, "-m", message, tree)
	return made, explainIdentity(err)
}

// mergeTrees returns the tree of a merge of theirs, which began at base, into the commit that is checked out.
func (r *Repo) mergeTrees(ctx context.Context, base, theirs string) (tree string, err error) {
	if r.Head == base {
		return r.runGit(ctx, "rev-parse", theirs+"^{tree}")
	}
	out, err := r.runGit(ctx, "merge-tree", "--write-tree", "--name-only", "--no-messages", "-z", r.Head, theirs)
	parts := strings.Split(strings.Trim(out, "\x00"), "\x00")
	if err == nil {
		return parts[0], nil
	}
	if len(parts) > 1 {
		return "", newError(atoll.ErrConflict, "both you and the agent have changed %s: merge branches yourself, or have the agent begin again from your commit", listPaths(parts[1:]))
	}
	return "", err
}

// checkUntouched returns an error if the user has changes that no commit has in one of the paths, or a file of their own.
func (r *Repo) checkUntouched(ctx context.Context, paths []string) error {
	out, err := r.runGit(ctx, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--ignored=matching", "--ignore-submodules=all")
	if err != nil {
		return err
	}
	var mine []string
	for entry := range strings.SplitSeq(out, "\x00") {
		if len(entry) < 4 {
			continue
		}
		name := strings.TrimSuffix(entry[3:], "/")
		for _, p := range paths {
			if p == name || strings.HasPrefix(p, name+"/") && isFileOrIgnored(entry) || strings.HasPrefix(name, p+"/") {
				mine = append(mine, p)
			}
		}
	}
	if len(mine) > 0 {
		slices.Sort(mine)
		return newError(atoll.ErrConflict, "you have changes without a commit in %s: commit or stash them first", listPaths(slices.Compact(mine)))
	}
	return nil
}

// isFileOrIgnored reports whether an entry of git status is a file, or a directory that is there although git does not track it: below a directory that
// is ignored, a file of the user could have the path, too.
func isFileOrIgnored(entry string) bool {
	return !strings.HasSuffix(entry, "/") || strings.HasPrefix(entry, "!!")
}

// listPaths returns some paths for a message.
func listPaths(paths []string) string {
	const most = 5
	text := fmt.Sprintf("%q", paths[:min(len(paths), most)])
	if more := len(paths) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", text, more)
	}
	return strings.Trim(text, "[]")
}

// changeFiles changes the files from one tree to another, all or none, and with index the index, too.
func (r *Repo) changeFiles(ctx context.Context, from, to string, index bool) error {
	var patch bytes.Buffer
	args := append([]string{"diff", "--binary", "--full-index", "--no-renames", "--no-color", "--src-prefix=a/", "--dst-prefix=b/"}, diffArgs...)
	if _, err := (command{dir: r.Dir, args: append(args, from, to), out: &patch}).runGit(ctx); err != nil {
		return err
	}
	apply := []string{"apply", "--whitespace=nowarn"}
	if index {
		apply = append(apply, "--index")
		if _, err := r.runGit(ctx, "update-index", "-q", "--refresh"); err != nil && ctx.Err() != nil { // it fails if there are changes
			return err
		}
	}
	if _, err := (command{dir: r.Dir, args: append(apply, "-"), stdin: &patch}).runGit(ctx); err != nil {
		return newError(atoll.ErrConflict, "the changes do not fit your files: %w", err)
	}
	return nil
}

// FindLeft returns the paths in dir, the files of an agent on this machine, that programs of this machine obey, whether a commit has them or not.
func FindLeft(dir string) (left []Change, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	for name, why := range heldNames {
		if _, err := root.Lstat(filepath.FromSlash(name)); err == nil {
			left = append(left, Change{Path: name, Why: why})
		} else if !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	slices.SortFunc(left, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
	return left, nil
}
