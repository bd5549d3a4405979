package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// Atoll reports the files that a sandbox changes in a shared directory if programs of this machine run them, however they are written, and not
// otherwise.
func TestHostFiles(t *testing.T) {
	const usual = "[core]\n\trepositoryformatversion = 0\n\tbare = false\n[remote \"origin\"]\n\turl = https://example.com/x\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n"
	for name, tt := range map[string]struct {
		file, text string
		link       bool
		want       bool
	}{
		"a hook of husky":           {file: ".husky/_/pre-commit", text: "x", want: true},
		"another common directory":  {file: ".git/commondir", text: "../evil", want: true},
		"that of a worktree":        {file: ".git/worktrees/wt/commondir", text: "../..\n"},
		"a link in place of a dir":  {file: ".vscode", text: "other", link: true, want: true},
		"a usual file":              {file: "main.go", text: "x"},
		"a sample hook":             {file: ".git/hooks/update.sample", text: "x"},
		"a branch":                  {file: ".git/config", text: usual + "[branch \"wt\"]\n\tremote = origin\n\tmerge = refs/heads/wt\n[user]\n\tname = A B\n"},
		"a hook":                    {file: ".git/hooks/pre-commit", text: "x", want: true},
		"a hook that is a link":     {file: ".git/hooks/pre-push", text: "../../evil", link: true, want: true},
		"a hook of a submodule":     {file: ".git/modules/libs/sub/hooks/pre-commit", text: "x", want: true},
		"settings of a worktree":    {file: ".git/worktrees/wt/config.worktree", text: "[core]\n\thooksPath = x\n", want: true},
		"a file of direnv":          {file: ".envrc", text: "x", want: true},
		"tasks of an editor":        {file: ".vscode/tasks.json", text: "{}", want: true},
		"a path of hooks":           {file: ".git/config", text: usual + "[core]\n\thooksPath = x\n", want: true},
		"in one line":               {file: ".git/config", text: usual + "[core] hooksPath = x\n", want: true},
		"in capitals":               {file: ".git/config", text: usual + "[CORE]\nFSMONITOR=./x\n", want: true},
		"an alias":                  {file: ".git/config", text: usual + "[alias]\n\turl = !x\n", want: true},
		"an old kind of subsection": {file: ".git/config", text: usual + "[filter.x]\n\turl = x\n", want: true},
		"a continued line":          {file: ".git/config", text: usual + "[alias]\n\tst = \\\n[branch \"x\"]\n\tmerge = x\n", want: true},
		"a comment after a section": {file: ".git/config", text: usual + "[alias] # [branch]\n\tmerge = !x\n", want: true},
		"another file of settings":  {file: ".git/config", text: usual + "[include]\n\tpath = ../x\n", want: true},
	} {
		dir := t.TempDir()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(os.MkdirAll(filepath.Join(dir, ".git"), 0o755))
		must(os.WriteFile(filepath.Join(dir, ".git", "config"), []byte(usual), 0o644))
		spec := &atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountBind, Source: dir, Target: "/src"}}}
		before, path := readHostFiles(spec), filepath.Join(dir, filepath.FromSlash(tt.file))
		must(os.MkdirAll(filepath.Dir(path), 0o755))
		if tt.link {
			must(os.Symlink(tt.text, path))
		} else {
			must(os.WriteFile(path, []byte(tt.text), 0o755))
		}
		var want []string
		if tt.want {
			want = []string{path}
		}
		if got := readHostFiles(spec).changedSince(before); !slices.Equal(got, want) {
			t.Errorf("%s: changed are %q, want %q", name, got, want)
		}
		spec.Mounts[0].ReadOnly = true
		if got := readHostFiles(spec); len(got) != 0 {
			t.Errorf("%s: of a read-only directory there are %q", name, got)
		}
	}
}

// A sandbox cannot hide what it does behind another git directory, links, or too many or too large files.
func TestHostFilesHidden(t *testing.T) {
	for name, tt := range map[string]struct{ before, change, want string }{
		"another git directory":           {"", "mv .git g2 && echo gitdir: g2 > .git", ".git"},
		"by its full path":                {"", `mv .git g2 && ln -s "$PWD/g2" .git`, ".git"},
		"in one behind a file":            {"mv .git g2 && echo gitdir: g2 > .git", "echo x > g2/hooks/pre-commit", "g2/hooks/pre-commit"},
		"in one behind a link":            {`mv .git g2 && ln -s "$PWD/g2" .git`, "echo x > g2/hooks/pre-commit", "g2/hooks/pre-commit"},
		"where the settings have hooks":   {"git config core.hooksPath tools/hooks && mkdir -p tools/hooks", "echo x > tools/hooks/pre-commit", "tools/hooks/pre-commit"},
		"where a link leads":              {"rmdir .git/hooks && mkdir h && ln -s ../h .git/hooks", "echo x > h/pre-commit", "h/pre-commit"},
		"where a hook leads":              {"echo x > real && ln -s ../../real .git/hooks/pre-commit", "echo y > real", "real"},
		"behind thousands of files":       {"", "cd .git/hooks && seq -f a%.0f 1 11000 | xargs touch && echo x > pre-commit", ".git/hooks"},
		"behind thousands of modules":     {"", "mkdir -p .git/modules && cd .git/modules && seq -f a%.0f 1 11000 | xargs mkdir && mkdir -p z/hooks && echo x > z/hooks/pre-commit", ".git/modules"},
		"behind many directories":         {"", "mkdir -p .git/modules/a/b/c/d/e/f/g/hooks && echo x > .git/modules/a/b/c/d/e/f/g/hooks/pre-commit", ".git/modules"},
		"at the end of a large file":      {"head -c 2000000 /dev/zero > .git/hooks/pre-commit", "echo x >> .git/hooks/pre-commit", ".git/hooks/pre-commit"},
		"at the end of large settings":    {"", `head -c 2000000 /dev/zero | tr '\0' '\n' >> .git/config && git config core.fsmonitor x`, ".git/config"},
		"at the end of a very large file": {"truncate -s 70M .envrc", "echo x >> .envrc", ".envrc"},
		"in many large files":             {"for i in 1 2 3; do truncate -s 30M .git/hooks/a$i; done", "echo x > .git/hooks/pre-commit", ".git/hooks/pre-commit"},
		"in a named pipe":                 {"", "mkfifo .envrc", ".envrc"},
		"nothing":                         {"ln -s loop loop && ln -s ../loop .git/config.worktree", "echo x > main.go", ""},
	} {
		dir := t.TempDir()
		run := func(script string) {
			t.Helper()
			cmd := exec.Command("sh", "-c", script)
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_TEMPLATE_DIR=", "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %s: %v: %s", name, script, err, out)
			}
		}
		run("git init -q && mkdir .git/hooks;" + tt.before)
		spec := &atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountBind, Source: dir, Target: "/src"}}}
		before := readHostFiles(spec)
		run(tt.change)
		changed := readHostFiles(spec).changedSince(before)
		if tt.want == "" && len(changed) > 0 || tt.want != "" && !slices.Contains(changed, filepath.Join(dir, filepath.FromSlash(tt.want))) {
			t.Errorf("%s: changed are %q, want %s", name, changed, tt.want)
		}
	}
}
