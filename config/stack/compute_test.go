package stack

import (
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

func TestCompute(t *testing.T) {
	t.Setenv("PATH", testenv.OnlyPlugins(t, "dagger")) // without Dagger's CLI
	b, err := loadBuilder(t, "", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if opts, err := b.ToolOptions("gvisor"); err != nil || opts.Compute != nil || !opts.OwnPrograms {
		t.Errorf("default backend %v, own programs: %v, %v", opts.Compute, opts.OwnPrograms, err)
	}
	if name, used, p := b.ProbeCompute(t.Context()); name != "dagger" || used || p.OK || !strings.Contains(p.Reason, "compute.backend is sandbox") || !strings.Contains(p.Fix, "dagger.engine") {
		t.Errorf("ProbeCompute with the default: %q, %v, %+v", name, used, p)
	}
	if b, err = loadBuilder(t, "", []string{"ATOLL_COMPUTE_BACKEND=dagger", "ATOLL_DAGGER_ENGINE=unix:///run/dagger.sock"}, nil); err != nil {
		t.Fatal(err)
	}
	// No image has the machine's own programs.
	if opts, err := b.ToolOptions("gvisor"); err != nil || opts.Compute == nil || opts.OwnPrograms {
		t.Errorf("backend %v with dagger, own programs: %v, %v", opts.Compute, opts.OwnPrograms, err)
	}
	if name, used, p := b.ProbeCompute(t.Context()); name != "dagger" || !used || p.OK || !strings.Contains(p.Fix, "dagger.cli") {
		t.Errorf("ProbeCompute with dagger: %q, %v, %+v", name, used, p)
	}
}
