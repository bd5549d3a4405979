package main

import (
	"os"
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
