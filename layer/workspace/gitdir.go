package workspace

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"

	"github.com/seed46cd37a8/atoll"
)

// A GitDir is the directory of a repository that is not below the directory of its files: that of a worktree, of a
// submodule, or of a clone with --separate-git-dir.
type GitDir struct {
	Path     string // as git in the directory of the files looks for it; of a worktree, what it shares with the others
	Real     string // without links
	Own      string // of a worktree, its name in the repository
	Verified bool   // the repository names the directory of the files as its own
}

// maxLinkFile is the maximum size of a file that says where a part of a repository is.
const maxLinkFile = 64 << 10

// FindGitDir returns the git directory of dir if it is elsewhere. A program that may write to dir can make dir name any
// directory of the machine: use only a Verified one without asking.
func FindGitDir(dir string) (GitDir, bool) {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return GitDir{}, false
	}
	link, ok := strings.CutPrefix(readLinkFile(filepath.Join(real, ".git")), "gitdir: ")
	if !ok {
		return GitDir{}, false
	}
	g := GitDir{Path: resolveFrom(real, link)}
	if g.Real, err = filepath.EvalSymlinks(g.Path); err != nil || isWithin(real, g.Real) {
		return GitDir{}, false
	}
	if filepath.Base(filepath.Dir(g.Real)) == "worktrees" {
		back, common := readLinkFile(filepath.Join(g.Real, "gitdir")), readLinkFile(filepath.Join(g.Real, "commondir"))
		g.Own = filepath.Base(g.Real)
		g.Verified = filepath.Base(back) == ".git" && samePlace(filepath.Dir(resolveFrom(g.Real, back)), real)
		g.Path, g.Real = filepath.Dir(filepath.Dir(g.Path)), filepath.Dir(filepath.Dir(g.Real))
		g.Verified = g.Verified && common != "" && samePlace(resolveFrom(filepath.Join(g.Real, "worktrees", g.Own), common), g.Real)
	} else if m := worktreeSetting().FindStringSubmatch(readLinkFile(filepath.Join(g.Real, "config"))); m != nil {
		g.Verified = samePlace(resolveFrom(g.Real, m[1]), real) && isOfModule(g.Real)
	}
	g.Verified = g.Verified && isRepository(g.Real)
	return g, true
}

// headText matches the text of HEAD in a repository.
var headText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(ref: refs/.+|[0-9a-f]{40}|[0-9a-f]{64})$`) })

// isRepository reports whether dir has what git asks of a repository, and has it itself: a program that names a directory of others as its
// repository cannot make that one.
func isRepository(dir string) bool {
	for _, name := range []string{"objects", "refs"} {
		if info, err := os.Lstat(filepath.Join(dir, name)); err != nil || !info.IsDir() {
			return false
		}
	}
	return headText().MatchString(readLinkFile(filepath.Join(dir, "HEAD")))
}

// isOfModule reports whether dir is where a repository has those of its submodules.
func isOfModule(dir string) bool {
	for up := filepath.Dir(dir); up != filepath.Dir(up); up = filepath.Dir(up) {
		if of := filepath.Dir(up); filepath.Base(up) == "modules" && (isRepository(of) || isWorktreeDir(of)) {
			return true
		}
	}
	return false
}

// isWorktreeDir reports whether dir is what a repository has of one of its worktrees, in which the submodules of the worktree are.
func isWorktreeDir(dir string) bool {
	up := filepath.Dir(dir)
	return filepath.Base(up) == "worktrees" && isRepository(filepath.Dir(up))
}

// worktreeSetting matches the setting by which the repository of a submodule names the directory of its files.
var worktreeSetting = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^\s*worktree = ([^"\\#;]+)$`) })

// readLinkFile returns the text of a small regular file, "" if there is none. It does not wait if another program replaces the file by a
// named pipe.
func readLinkFile(path string) string {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	if opened, err := f.Stat(); err != nil || !os.SameFile(info, opened) {
		return ""
	}
	data, err := io.ReadAll(io.LimitReader(f, maxLinkFile))
	if err != nil {
		return ""
	}
	return strings.TrimRight(string(data), "\r\n")
}

func resolveFrom(dir, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(dir, path)
}

// samePlace reports whether path leads to real, which has no links.
func samePlace(path, real string) bool {
	at, err := filepath.EvalSymlinks(path)
	return err == nil && at == real
}

func isWithin(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}

// mountsFor returns the mounts of a workspace used in place. If its git directory is elsewhere, both are at the same paths as
// on the machine, for each names the other. Git of this machine runs the programs that a repository names, so the sandbox can write only
// what git in a worktree has to; the rest of the repository is read-only.
func mountsFor(source string, readOnly bool) []atoll.Mount {
	g, ok := FindGitDir(source)
	if !ok || !g.Verified {
		return []atoll.Mount{{Type: atoll.MountBind, Source: source, Target: Dir, ReadOnly: readOnly}}
	}
	real, err := filepath.EvalSymlinks(source)
	if err != nil {
		real = source
	}
	mounts := []atoll.Mount{
		{Type: atoll.MountBind, Source: source, Target: real, ReadOnly: readOnly},
		{Type: atoll.MountBind, Source: g.Real, Target: g.Path, ReadOnly: readOnly || g.Own != ""},
	}
	if readOnly {
		return mounts
	}
	add := func(readOnly bool, names ...string) {
		for _, name := range names {
			at := filepath.Join(g.Real, name)
			if info, err := os.Lstat(at); err == nil && (info.IsDir() || info.Mode().IsRegular()) {
				mounts = append(mounts, atoll.Mount{Type: atoll.MountBind, Source: at, Target: filepath.Join(g.Path, name), ReadOnly: readOnly})
			}
		}
	}
	if g.Own == "" { // a submodule: git locks files in the directory itself
		_ = os.Mkdir(filepath.Join(g.Real, "hooks"), 0o755) // or a program inside could make it
		makeWorktreeConfig(g.Real, g.Real)
		add(true, "config", "config.worktree", "hooks")
		return mounts
	}
	own := filepath.Join("worktrees", g.Own)
	_ = os.Mkdir(filepath.Join(g.Real, "logs"), 0o755) // git inside cannot make it
	makeWorktreeConfig(g.Real, filepath.Join(g.Real, own))
	add(false, "objects", "refs", "reftable", "logs", own)
	add(true, filepath.Join(own, "commondir"), filepath.Join(own, "config.worktree"), filepath.Join(own, "gitdir"))
	return mounts
}

// makeWorktreeConfig makes the settings of a worktree if the repository may have such, or a program inside could make them.
func makeWorktreeConfig(common, dir string) {
	settings := readLinkFile(filepath.Join(common, "config"))
	if len(settings) < maxLinkFile-2 && !strings.Contains(strings.ToLower(settings), "worktreeconfig") {
		return
	}
	if f, err := os.OpenFile(filepath.Join(dir, "config.worktree"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644); err == nil {
		_ = f.Close()
	}
}

// GitNeeds returns the directories outside of dir, as git in dir looks for them, without which git does not work there: its git
// directory, and those of the objects that the repository shares with another (git clone --shared).
func GitNeeds(dir string) []string {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil
	}
	var needs []string
	gitDir := filepath.Join(real, ".git")
	if g, ok := FindGitDir(dir); ok {
		needs, gitDir = append(needs, g.Path), g.Real
	}
	objects := filepath.Join(gitDir, "objects")
	for line := range strings.Lines(readLinkFile(filepath.Join(objects, "info", "alternates"))) {
		if line = strings.TrimRight(line, "\r\n"); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if at := resolveFrom(objects, line); !isWithin(real, at) && !isWithin(gitDir, at) {
			needs = append(needs, at)
		}
	}
	return needs
}
