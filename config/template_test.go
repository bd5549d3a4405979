package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

func TestTemplates(t *testing.T) {
	dir := t.TempDir()
	file, beside, other := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "templates"), filepath.Join(dir, "other")
	load := func(text string) (names []string, normal string, err error) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := Load(Source{File: file, Env: []string{"HOME=" + dir}})
		if err != nil {
			return nil, "", err
		}
		set, err := cfg.Templates()
		if err != nil {
			return nil, "", err
		}
		tpl, err := set.Get("", "")
		if err != nil {
			t.Fatal(err)
		}
		return set.Names(), tpl.Name, nil
	}
	own := []string{"claude-code", "codex", "shell"}
	for _, tt := range []struct {
		name   string
		make   map[string]string // files to write
		config string
		names  []string
		normal string
		bad    string // part of the error
	}{
		{name: "none", names: own, normal: "claude-code"},
		{name: "another default", config: "template: {default: shell}", names: own, normal: "shell"},
		{name: "no such default", config: "template: {default: shel}", bad: "config.yaml:1: template.default: unsupported provider: shel: known are claude-code, codex, shell; the nearest is shell"},
		{name: "no default", config: "template: {default: 'a b'}", bad: "template.default: \"a b\": use the name of a template"},
		{name: "a missing directory", config: "template: {dir: " + other + "}", bad: "no such file"},
		{name: "beside the file", make: map[string]string{beside + "/mine.yaml": "extends: shell"}, config: "template: {default: mine}", names: []string{"claude-code", "codex", "mine", "shell"}, normal: "mine"},
		{name: "elsewhere", make: map[string]string{other + "/theirs.yaml": "extends: shell"}, config: "template: {dir: " + other + "}", names: []string{"claude-code", "codex", "shell", "theirs"}, normal: "claude-code"},
		{name: "a mistake", make: map[string]string{beside + "/mine.yaml": "extends: shell\ndco: x"}, bad: "mine.yaml:2: unknown key \"dco\""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for path, text := range tt.make {
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			names, normal, err := load(tt.config)
			if !slices.Equal(names, tt.names) || normal != tt.normal || (err == nil) != (tt.bad == "") || err != nil && !strings.Contains(err.Error(), tt.bad) {
				t.Errorf("%v, default %q, %v; want %v, %q, %q", names, normal, err, tt.names, tt.normal, tt.bad)
			}
		})
	}
	t.Run("a broken link", func(t *testing.T) {
		if err := errors.Join(os.RemoveAll(beside), os.Mkdir(beside, 0o755), os.Symlink("nowhere", filepath.Join(beside, "a.yaml"))); err != nil {
			t.Skip(err)
		}
		if _, _, err := load(""); !errors.Is(err, atoll.ErrNotExist) {
			t.Errorf("error %v, want not exist", err)
		}
	})
	if set, err := (&Config{}).Templates(); err != nil || !slices.Equal(set.Names(), own) {
		t.Errorf("Templates of a zero Config: %v", err)
	}
}
