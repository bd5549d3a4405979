package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/printable"
	"github.com/seed46cd37a8/atoll/layer/workspace"
)

// noteGitNeeds says which directories git needs that the sandbox does not show.
func (a *app) noteGitNeeds(spec *atoll.Spec) {
	shown := func(dir string) bool {
		return slices.ContainsFunc(spec.Mounts, func(m atoll.Mount) bool {
			rel, err := filepath.Rel(m.Target, dir)
			return m.Type == atoll.MountBind && err == nil && filepath.IsLocal(rel)
		})
	}
	for _, m := range sharedDirs(spec) {
		g, elsewhere := workspace.FindGitDir(m.Source)
		for _, dir := range workspace.GitNeeds(m.Source) {
			isGitDir, option := elsewhere && dir == g.Path, fmt.Sprintf("-v %s:%[1]s", dir)
			switch {
			case shown(dir), isGitDir && g.Verified && m.Target == "": // the workspace shows it
				continue
			case isGitDir && g.Verified:
				option = fmt.Sprintf("use --workspace %s in place of -v, or add %s", m.Source, option)
			case isGitDir:
				option = "if you trust both, add " + option
			default:
				option = "add " + option + ":ro"
			}
			a.printMessage("note: git in %s needs %s, which the sandbox does not show: %s", m.Source, printable.Escape(dir, ""), printable.Escape(option, ""))
		}
	}
}

// sharedDirs returns the directories of this machine that the sandbox uses in place. The workspace has no target.
func sharedDirs(spec *atoll.Spec) []atoll.Mount {
	var dirs []atoll.Mount
	if w := spec.Workspace; filepath.IsAbs(w.Source) && w.Commit == "" {
		dirs = append(dirs, atoll.Mount{Type: atoll.MountBind, Source: w.Source, ReadOnly: w.ReadOnly})
	}
	for _, m := range spec.Mounts {
		if m.Type == atoll.MountBind {
			dirs = append(dirs, m)
		}
	}
	return dirs
}

// locateWorkspace sets the source of the workspace of an existing sandbox, if it is a directory used in place. It does nothing
// if the workspace has gone.
func locateWorkspace(ctx context.Context, c *connection, spec *atoll.Spec) {
	if spec.Workspace.Name == "" || spec.Workspace.Commit != "" {
		return
	}
	all, _ := workspace.List(ctx, c.Provider, spec.Project)
	if i := slices.IndexFunc(all, func(w workspace.Workspace) bool { return w.Name == spec.Workspace.Name }); i >= 0 {
		spec.Workspace.Source = all[i].Source
	}
}

// hostFiles are digests by path of the files in directories of this machine that programs of this machine run, or that make them run
// others, without being asked: hooks and settings of git, and files of direnv and editors.
type hostFiles map[string]string

// Limits of hostFiles: directories hold anything.
const (
	maxHostFile    = 1 << 20
	maxHostEntries = 1000
	maxModuleDepth = 6
)

// readHostFiles returns the hostFiles of the directories that the sandbox can change.
func readHostFiles(spec *atoll.Spec) hostFiles {
	files := hostFiles{}
	for _, m := range sharedDirs(spec) {
		if m.ReadOnly {
			continue
		}
		files.addDir(m.Source)
		if g, ok := workspace.FindGitDir(m.Source); ok && g.Verified {
			files.addGitDir(g.Real, ".")
		}
	}
	return files
}

func (f hostFiles) addDir(dir string) {
	for _, name := range []string{".envrc", ".vscode/tasks.json", ".vscode/settings.json", ".husky", ".githooks"} {
		f.addPath(dir, name)
	}
	f.addGitDir(dir, ".git")
}

// addGitDir adds a git directory, with those of its submodules and worktrees.
func (f hostFiles) addGitDir(dir, git string) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return
	}
	defer root.Close()
	for _, name := range []string{"config", "config.worktree", "hooks"} {
		f.addPath(dir, path.Join(git, name))
	}
	for _, parts := range []string{"modules", "worktrees"} {
		left := maxHostEntries
		_ = fs.WalkDir(root.FS(), path.Join(git, parts), func(name string, e fs.DirEntry, err error) error {
			if left--; err != nil || left < 0 || strings.Count(name, "/") > maxModuleDepth {
				return fs.SkipDir
			}
			switch e.Name() {
			case "objects", "refs", "logs", "lfs":
				return fs.SkipDir
			case "hooks", "config", "config.worktree":
				f.addPath(dir, name)
			}
			return nil
		})
	}
}

// addPath adds a file, or the files of a directory. It follows no link out of dir.
func (f hostFiles) addPath(dir, name string) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return
	}
	defer root.Close()
	info, err := root.Lstat(name)
	at := filepath.Join(dir, name)
	switch {
	case err != nil || strings.HasSuffix(name, ".sample"):
		return
	case info.IsDir():
		list, err := fs.ReadDir(root.FS(), name)
		if err != nil {
			return
		}
		for _, e := range list[:min(len(list), maxHostEntries)] {
			if !e.IsDir() {
				f.addPath(dir, path.Join(name, e.Name()))
			}
		}
		return
	case info.Mode()&fs.ModeSymlink != 0:
		to, _ := root.Readlink(name)
		f[at] = "link to " + to
		return
	case !info.Mode().IsRegular():
		f[at] = info.Mode().String()
		return
	}
	file, err := openUnblocked(root, name)
	if err != nil {
		return
	}
	defer file.Close()
	data, _ := io.ReadAll(io.LimitReader(file, maxHostFile))
	if base := path.Base(name); base == "config" || base == "config.worktree" {
		if data = unusualSettings(data); len(data) == 0 {
			return
		}
	}
	f[at] = fmt.Sprintf("%s %x", info.Mode()&0o111, sha256.Sum256(data))
}

// changedSince returns the paths of the files that are new or changed since before, sorted.
func (f hostFiles) changedSince(before hostFiles) []string {
	changed := maps.Clone(f)
	maps.DeleteFunc(changed, func(path, digest string) bool { return before[path] == digest })
	return slices.Sorted(maps.Keys(changed))
}

// usualSettings match the lines of git's settings that run nothing. All other lines count, so that no way of writing a setting
// hides it.
var (
	usualSection  = regexp.MustCompile(`(?i)^\[(core|user|init|color|branch|remote|submodule|extensions)( "[^"\\]*")?\]$`)
	usualSettings = map[string]*regexp.Regexp{
		"core":       regexp.MustCompile(`(?i)^(repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks|autocrlf|eol) = [\w-]+$`),
		"user":       regexp.MustCompile(`(?i)^(name|email) = [^"\\#;]*$`),
		"init":       regexp.MustCompile(`(?i)^defaultbranch = [^"\\#;]*$`),
		"color":      regexp.MustCompile(`(?i)^ui = \w+$`),
		"branch":     regexp.MustCompile(`(?i)^(remote|merge|rebase|description|vscode-merge-base|gh-merge-base) = [^"\\#;]*$`),
		"remote":     regexp.MustCompile(`(?i)^(url|pushurl|fetch|tagopt|prune|gh-resolved) = [^"\\#;]*$`),
		"submodule":  regexp.MustCompile(`(?i)^(url|active|branch) = [^"\\#;]*$`),
		"extensions": regexp.MustCompile(`(?i)^(objectformat|refstorage|worktreeconfig|relativeworktrees) = \w+$`),
	}
)

// unusualSettings returns the lines of git's settings that may run a program, with their sections.
func unusualSettings(data []byte) []byte {
	var out []byte
	section, header := "", ""
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if m := usualSection.FindStringSubmatch(line); m != nil {
			section, header = strings.ToLower(m[1]), line
			continue
		}
		if strings.HasPrefix(line, "[") {
			section, header = "", line
		}
		if usual := usualSettings[section]; line != "" && (usual == nil || !usual.MatchString(line)) {
			out = append(out, header+" "+line+"\n"...)
		}
	}
	return out
}

// warnHostFiles names the files that the sandbox has changed since before.
func (a *app) warnHostFiles(spec *atoll.Spec, before hostFiles) {
	const most = 5
	changed := readHostFiles(spec).changedSince(before)
	if len(changed) == 0 {
		return
	}
	more := ""
	if n := len(changed) - most; n > 0 {
		changed, more = changed[:most], fmt.Sprintf(" and %d more", n)
	}
	for i, name := range changed {
		changed[i] = printable.Escape(name, "")
	}
	a.printMessage("warning: the sandbox changed files that git or an editor of this machine runs: %s%s; look at them before you work there. "+
		"With --workspace file:///DIRECTORY a sandbox has a copy of a repository", strings.Join(changed, ", "), more)
}
