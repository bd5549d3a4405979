package main

import (
	"context"
	"crypto/sha256"
	"errors"
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
	"sync"
	"syscall"

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
		if slices.ContainsFunc(spec.Mounts, func(x atoll.Mount) bool { return m.Target != "" && x.Target == path.Join(m.Target, ".git") }) {
			continue // it has a git directory of its own
		}
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
	maxHostBytes   = 64 << 20 // of a directory; of files beyond, size and time count
	maxHostEntries = 10_000   // in hooks, or in the repositories of a repository
	maxModuleDepth = 6
)

// readHostFiles returns the hostFiles of the directories that the sandbox can change.
func readHostFiles(spec *atoll.Spec) hostFiles {
	files := hostFiles{}
	for _, m := range sharedDirs(spec) {
		if m.ReadOnly {
			continue
		}
		files.scanDir(m.Source, func(s *hostScan) {
			for _, name := range []string{".envrc", ".vscode/tasks.json", ".vscode/settings.json", ".husky", ".githooks"} {
				s.addTree(name)
			}
			s.addRepository()
		})
		if g, ok := workspace.FindGitDir(m.Source); ok && g.Verified {
			files.scanDir(g.Real, func(s *hostScan) { s.addGitDir(".") })
		}
	}
	return files
}

// A hostScan adds files of a directory to hostFiles. It follows no link out of the directory.
type hostScan struct {
	files hostFiles
	dir   string
	root  *os.Root
	left  int64 // of maxHostBytes
}

// scanDir calls scan for dir, if there is one.
func (f hostFiles) scanDir(dir string, scan func(s *hostScan)) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return
	}
	defer root.Close()
	scan(&hostScan{f, dir, root, maxHostBytes})
}

// addDigest records what is at name.
func (s *hostScan) addDigest(name, digest string) { s.files[filepath.Join(s.dir, name)] = digest }

// resolveLinks returns name without links, which it adds. It returns false if nothing in the directory is there.
func (s *hostScan) resolveLinks(name string) (string, bool) {
	done, rest := ".", name
	for range maxLinks {
		var part string
		part, rest, _ = strings.Cut(path.Clean(rest), "/")
		done = path.Join(done, part)
		info, err := s.root.Lstat(done)
		switch {
		case err != nil:
			return "", false
		case info.Mode()&fs.ModeSymlink != 0:
			to, _ := s.root.Readlink(done)
			s.addDigest(done, "link to "+to)
			inside, ok := s.locateTarget(path.Dir(done), to)
			if !ok {
				return "", false
			}
			done, rest = ".", path.Join(inside, rest)
		case rest == "":
			return done, true
		}
	}
	return "", false
}

// locateTarget returns a path that a file in the directory at from contains, as one in s.dir. It returns false if it is not in s.dir.
func (s *hostScan) locateTarget(from, to string) (string, bool) {
	to = filepath.FromSlash(to)
	if !filepath.IsAbs(to) {
		to = filepath.Join(filepath.FromSlash(from), to)
	} else {
		base, err := filepath.EvalSymlinks(s.dir)
		if err == nil {
			to, err = filepath.Rel(base, to)
		}
		if err != nil {
			return "", false
		}
	}
	return filepath.ToSlash(to), filepath.IsLocal(to)
}

// addRepository adds the git directory of s.dir if it is in s.dir.
func (s *hostScan) addRepository() {
	name, ok := s.resolveLinks(".git")
	if !ok {
		return
	}
	if link, isLink := strings.CutPrefix(string(s.addFile(name)), "gitdir: "); isLink {
		if name, ok = s.locateTarget(path.Dir(name), strings.TrimRight(link, "\r\n")); !ok {
			return
		}
	}
	s.addGitDir(name)
}

// addGitDir adds a git directory, with those of its submodules and worktrees.
func (s *hostScan) addGitDir(git string) {
	git, ok := s.resolveLinks(git)
	if !ok {
		return
	}
	for _, name := range []string{"config", "config.worktree", "commondir", "hooks"} {
		s.addTree(path.Join(git, name))
	}
	for _, parts := range []string{"modules", "worktrees"} {
		s.walkTree(path.Join(git, parts), func(name string, e fs.DirEntry) error {
			switch e.Name() {
			case "objects", "refs", "logs", "lfs":
				return fs.SkipDir
			case "hooks", "config", "config.worktree", "commondir":
				s.addTree(name)
			}
			return nil
		})
	}
}

// walkTree calls visit for what is below name. It adds name itself if that has more than Atoll looks at.
func (s *hostScan) walkTree(name string, visit func(name string, e fs.DirEntry) error) {
	left := maxHostEntries
	_ = fs.WalkDir(s.root.FS(), name, func(at string, e fs.DirEntry, err error) error {
		switch left--; {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			s.addDigest(at, "unreadable")
			return nil
		case left < 0 || strings.Count(at, "/")-strings.Count(name, "/") > maxModuleDepth:
			s.addDigest(name, "more than Atoll looks at")
			return fs.SkipAll
		}
		return visit(at, e)
	})
}

// addTree adds a file, or the files in a directory.
func (s *hostScan) addTree(name string) {
	name, ok := s.resolveLinks(name)
	if !ok {
		return
	}
	s.walkTree(name, func(at string, e fs.DirEntry) error {
		switch {
		case e.Type()&fs.ModeSymlink != 0 && at != name:
			if at, ok := s.resolveLinks(at); ok {
				s.addFile(at)
			}
		case !e.IsDir():
			s.addFile(at)
		}
		return nil
	})
}

// hooksPath matches the setting that names another directory of hooks.
var hooksPath = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?im)hookspath\s*=\s*"?([^"\r\n]+)`) })

// addFile adds a file that is no link, unless it is one that runs nothing. It returns the beginning of its content.
func (s *hostScan) addFile(name string) []byte {
	info, err := s.root.Lstat(name)
	if err != nil || info.IsDir() || strings.HasSuffix(name, ".sample") {
		return nil
	}
	if !info.Mode().IsRegular() {
		s.addDigest(name, info.Mode().String())
		return nil
	}
	file, err := s.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a program may replace it by a named pipe
	if err != nil {
		s.addDigest(name, "unreadable")
		return nil
	}
	defer file.Close()
	if opened, err := file.Stat(); err != nil || !os.SameFile(info, opened) {
		s.addDigest(name, "unreadable")
		return nil
	}
	var data []byte
	if info.Size() <= s.left {
		data, _ = io.ReadAll(io.LimitReader(file, s.left))
		s.left -= int64(len(data))
	}
	hashed := data
	switch base := path.Base(name); {
	case info.Size() > int64(len(data)):
		hashed = fmt.Appendf(nil, "%d %v", info.Size(), info.ModTime())
	case base == "commondir" && strings.TrimSpace(string(data)) == "../..":
		return data
	case base == "config" || base == "config.worktree":
		if hashed = unusualSettings(data); len(hashed) == 0 {
			return data
		}
		if m := hooksPath().FindSubmatch(hashed); m != nil {
			if dir, ok := s.locateTarget(".", string(m[1])); ok {
				s.addTree(dir)
			}
		}
	}
	s.addDigest(name, fmt.Sprintf("%s %x", info.Mode()&0o111, sha256.Sum256(hashed)))
	return data
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
	usualSection = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?i)^\[(core|user|init|color|branch|remote|submodule|extensions)( "[^"\\]*")?\]$`)
	})
	usualSettings = sync.OnceValue(func() map[string]*regexp.Regexp {
		return map[string]*regexp.Regexp{
			"core":       regexp.MustCompile(`(?i)^(repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks|autocrlf|eol) = [\w-]+$`),
			"user":       regexp.MustCompile(`(?i)^(name|email) = [^"\\#;]*$`),
			"init":       regexp.MustCompile(`(?i)^defaultbranch = [^"\\#;]*$`),
			"color":      regexp.MustCompile(`(?i)^ui = \w+$`),
			"branch":     regexp.MustCompile(`(?i)^(remote|merge|rebase|description|vscode-merge-base|gh-merge-base) = [^"\\#;]*$`),
			"remote":     regexp.MustCompile(`(?i)^(url|pushurl|fetch|tagopt|prune|gh-resolved) = [^"\\#;]*$`),
			"submodule":  regexp.MustCompile(`(?i)^(url|active|branch) = [^"\\#;]*$`),
			"extensions": regexp.MustCompile(`(?i)^(objectformat|refstorage|worktreeconfig|relativeworktrees) = \w+$`),
		}
	})
)

// unusualSettings returns the lines of git's settings that may run a program, with their sections.
func unusualSettings(data []byte) []byte {
	var out []byte
	section, header := "", ""
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if m := usualSection().FindStringSubmatch(line); m != nil {
			section, header = strings.ToLower(m[1]), line
			continue
		}
		if strings.HasPrefix(line, "[") {
			section, header = "", line
		}
		if usual := usualSettings()[section]; line != "" && (usual == nil || !usual.MatchString(line)) {
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
