package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A program that is not Atoll's is found in PATH or at its configured path.
func TestOtherPlugins(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "atoll-moon"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ path, file string }{
		"in PATH":       {dir, "provider: moon\n"},
		"at its place":  {"/nowhere", "provider: moon\nplugin: {moon: {program: " + dir + "/atoll-moon, settings: [size=2, 'text=a b']}}\n"},
		"beside others": {dir, "provider: local\nproviders: [local, moon]\nplugin: {moon: {settings: a=b}}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PATH", tt.path+string(os.PathListSeparator)+os.Getenv("PATH"))
			cfg, err := load(t, tt.file, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			others := cfg.OtherProviders()
			if len(others) != 1 || others[0].Name != "moon" || slices.Contains(cfg.ProviderNames(), "kubernetes") && cfg.Provider == "moon" {
				t.Errorf("OtherProviders is %+v, ProviderNames %q", others, cfg.ProviderNames())
			}
			if _, err := cfg.FindProvider("moon"); err != nil {
				t.Error(err)
			}
		})
	}
}

// Invalid plugins are refused with their position in the file.
func TestPluginsAreChecked(t *testing.T) {
	for file, want := range map[string]string{
		"plugin: {docker: {program: /bin/true}}\n":           "the name docker is reserved",
		"plugin: {dagger: {program: /bin/true}}\n":           "the name dagger is reserved",
		"plugin: {moon: {settings: [x]}}\n":                  `plugin.moon.settings: "x": write it like KEY=VALUE`,
		"plugin: {moon: {settings: [x=1, x=2]}}\n":           "x is already set",
		"plugin: {moon: {program: bin/moon}}\n":              "must be an absolute path",
		"plugin: {moon: {colour: blue}}\n":                   `unknown key "plugin.moon.colour"`,
		"provider: moon\n":                                   "install the program atoll-moon beside atoll or in PATH",
		"provider: guest\n":                                  `"guest": use one of gvisor`,
		"provider: ../x\n":                                   `"../x": use one of gvisor`,
		"plugin: {moon: {program: /x}}\nproviders: [mars]\n": "install the program atoll-mars",
	} {
		if _, err := load(t, file, nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", file, err, want)
		}
	}
}
