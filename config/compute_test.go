package config_test

import (
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

func TestCompute(t *testing.T) {
	t.Setenv("PATH", testenv.OnlyPlugins(t, "dagger")) // without Dagger's CLI
	home := "HOME=" + t.TempDir()
	load := func(env ...string) (*config.Config, error) { return config.Load(config.Source{Env: append(env, home)}) }
	cfg, err := load()
	if err != nil {
		t.Fatal(err)
	}
	if opts, err := cfg.ToolOptions("gvisor"); err != nil || opts.Compute != nil || !opts.OwnPrograms {
		t.Errorf("default backend %v, own programs: %v, %v", opts.Compute, opts.OwnPrograms, err)
	}
	if name, used, p := cfg.ProbeCompute(t.Context()); name != "dagger" || used || p.OK || !strings.Contains(p.Reason, "compute.backend is sandbox") || !strings.Contains(p.Fix, "dagger.engine") {
		t.Errorf("ProbeCompute with the default: %q, %v, %+v", name, used, p)
	}
	if cfg, err = load("ATOLL_COMPUTE_BACKEND=dagger", "ATOLL_DAGGER_ENGINE=unix:///run/dagger.sock"); err != nil {
		t.Fatal(err)
	}
	// No image has the machine's own programs.
	if opts, err := cfg.ToolOptions("gvisor"); err != nil || opts.Compute == nil || opts.OwnPrograms {
		t.Errorf("backend %v with dagger, own programs: %v, %v", opts.Compute, opts.OwnPrograms, err)
	}
	if name, used, p := cfg.ProbeCompute(t.Context()); name != "dagger" || !used || p.OK || !strings.Contains(p.Fix, "dagger.cli") {
		t.Errorf("ProbeCompute with dagger: %q, %v, %+v", name, used, p)
	}
	for _, wrong := range []string{"ATOLL_COMPUTE_BACKEND=docker", "ATOLL_DAGGER_PATIENCE=0s"} {
		name, _, _ := strings.Cut(wrong, "=")
		if _, err := load(wrong); atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}
