//go:build linux

package gvisor

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
)

// Concurrent callers build a helper once, and a build that fails leaves nothing.
func TestBuildHelper(t *testing.T) {
	bin, dir := t.TempDir(), t.TempDir()
	useGo := func(script string) {
		if err := os.WriteFile(filepath.Join(bin, "go"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":/usr/bin:/bin")
	log := slog.New(slog.DiscardHandler)
	if err := os.MkdirAll(filepath.Join(dir, "helper", "making", "half"), 0o700); err != nil { // by a killed program
		t.Fatal(err)
	}
	useGo(`echo 'go: downloading'; echo "$1 $2: no such version"; exit 1`)
	_, err := buildHelper(dir, "v1.2.3", log)
	if !errors.Is(err, errDynamic) || !strings.HasSuffix(err.Error(), "install "+modulePath+"/cmd/atoll-engine@v1.2.3: no such version") {
		t.Errorf("a failed build: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "helper", "[^l]*")); len(left) > 0 {
		t.Errorf("a failed build left %s", left)
	}
	useGo(`test "$CGO_ENABLED" = 0 && echo >> "` + bin + `/built" && sleep 0.1 && echo program > "$GOBIN/atoll-engine"`)
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			path, err := buildHelper(dir, "v1.2.3", log)
			if data, readErr := os.ReadFile(path); err != nil || readErr != nil || string(data) != "program\n" {
				t.Errorf("%s: %v, %v, %q", path, err, readErr, data)
			}
		})
	}
	all.Wait()
	if built, err := os.ReadFile(filepath.Join(bin, "built")); err != nil || len(built) != 1 {
		t.Errorf("it was built %d times, %v", len(built), err)
	}
	if _, err := buildHelper(dir, "", log); err != errDynamic {
		t.Errorf("without a version: %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := buildHelper(dir, "v1.2.3", log); err != nil {
		t.Errorf("an existing helper without go: %v", err)
	}
	if _, err := buildHelper(dir, "v1.2.4", log); !errors.Is(err, errDynamic) || !strings.Contains(err.Error(), "no go in PATH") {
		t.Errorf("without go: %v", err)
	}
}

func TestModuleVersion(t *testing.T) {
	module := func(path, version string) debug.Module { return debug.Module{Path: path, Version: version} }
	own, replaced := module(modulePath, "v1.2.3"), module(modulePath, "v1.2.3")
	replaced.Replace = &own
	for name, test := range map[string]struct {
		info debug.BuildInfo
		want string
	}{
		"atoll":             {debug.BuildInfo{Main: own}, "v1.2.3"},
		"a program with it": {debug.BuildInfo{Main: module("example.com/x", "v9.0.0"), Deps: []*debug.Module{&own}}, "v1.2.3"},
		"a working tree":    {debug.BuildInfo{Main: module(modulePath, "(devel)")}, ""},
		"changed files":     {debug.BuildInfo{Main: module(modulePath, "v1.2.4-0.20260101000000-abcdefabcdef+dirty")}, ""},
		"replaced":          {debug.BuildInfo{Main: module("example.com/x", "v9.0.0"), Deps: []*debug.Module{&replaced}}, ""},
		"a program without": {debug.BuildInfo{Main: module("example.com/x", "v9.0.0")}, ""},
	} {
		if got := moduleVersion(&test.info); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
