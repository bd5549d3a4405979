//go:build linux

package gvisor_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/gvisor"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
)

// A limit is refused if no sandbox could run within it, or if the machine does not have so much.
func TestLimitsOutOfRange(t *testing.T) {
	needGVisor(t)
	l := newLab(t)
	caps := l.Info().Caps
	for _, tt := range []struct {
		has    bool
		limits atoll.Resources
		says   string
	}{
		{caps.MemoryLimit, atoll.Resources{Memory: 1 << 20}, "too low for gVisor; use at least"},
		{caps.CPULimit, atoll.Resources{CPUs: 0.001}, "CPU limit 0.001: use at least 0.01"},
		{caps.CPULimit, atoll.Resources{CPUs: 9999}, fmt.Sprintf("CPU limit 9999: this machine has %d", runtime.NumCPU())},
		{caps.ProcessLimit, atoll.Resources{Processes: 1}, "process limit 1: use at least"},
	} {
		if tt.has {
			_, err := l.Create(l.Context(), &atoll.Spec{Resources: tt.limits})
			supervisedtest.WantKind(t, tt.says, err, atoll.ErrInvalid, tt.says)
		}
	}
}

// A helper as which gVisor cannot run is refused before anything is made, with advice.
func TestHelperThatCannotServe(t *testing.T) {
	dynamic := dynamicProgram(t)
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ helper, says string }{
		{dynamic, "CGO_ENABLED=0"},
		{text, text},
		{"/nowhere/atoll", "/nowhere/atoll"},
	} {
		opts := freshOptions(t)
		opts.Helper = tt.helper
		l := openLab(t, opts)
		_, err := l.Create(l.Context(), &atoll.Spec{Name: "web"})
		supervisedtest.WantKind(t, "create with helper "+tt.helper, err, atoll.ErrUnavailable, tt.says)
		probe := atoll.ProbeProvider(l.Context(), l)
		if probe.OK || !strings.Contains(probe.Reason, tt.says) || !strings.Contains(probe.Fix, "CGO_ENABLED=0") {
			t.Errorf("probe with helper %s: %+v", tt.helper, probe)
		}
	}
	if err := gvisor.Static(testenv.Busybox(t)); err != nil {
		t.Errorf("a static program: %v", err)
	}
}

// A program that is its own engine says that it starts sandboxes slower than with an engine program.
func TestProbeOfOwnEngine(t *testing.T) {
	if err := gvisor.Static("/proc/self/exe"); err != nil {
		t.Skipf("this test program cannot be an engine: %v", err)
	}
	for helper, slow := range map[string]bool{"": true, helperPath(t): false} {
		l := newLab(t, func(o *gvisor.Options) { o.Helper = helper })
		probe := atoll.ProbeProvider(l.Context(), l)
		if said := strings.Contains(strings.Join(probe.Notes, "\n"), "its own engine"); !probe.OK || said != slow {
			t.Errorf("probe with helper %q: %+v", helper, probe)
		}
	}
}

// dynamicProgram finds a program that is linked dynamically.
func dynamicProgram(t *testing.T) string {
	t.Helper()
	for _, path := range []string{"/bin/ls", "/usr/bin/env", "/bin/bash"} {
		if data, err := os.ReadFile(path); err == nil && strings.Contains(string(data), "/ld-linux") {
			return path
		}
	}
	t.Skip("this machine has no dynamically linked program")
	return ""
}

// Where gVisor works the probe says so, and which abilities are missing.
func TestProbe(t *testing.T) {
	l := newLab(t)
	probe := atoll.ProbeProvider(l.Context(), l)
	if !probe.OK || probe.Reason != "" || probe.Fix != "" {
		t.Errorf("probe: %+v", probe)
	}
	if limits := l.Info().Caps.MemoryLimit; limits == (strings.Join(probe.Notes, " ") != "") {
		t.Errorf("memory limits %v, notes %q", limits, probe.Notes)
	}
}

// A helper that does not exist yet, or cannot be opened just now, may serve later.
func TestStaticLater(t *testing.T) {
	path := filepath.Join(t.TempDir(), "helper")
	if err := gvisor.Static(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	if err := os.Symlink(testenv.Busybox(t), path); err != nil {
		t.Fatal(err)
	}
	if err := gvisor.Static(path); err != nil {
		t.Errorf("with one: %v", err)
	}
}
