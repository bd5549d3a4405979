package microvm

import (
	"errors"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/provider/internal/cgroup"
)

// Without a cgroup, a part of a CPU is refused, and whole ones are not.
func TestPartsOfCPUs(t *testing.T) {
	for _, held := range []bool{false, true} {
		b := &backend{caps: vm.Caps{Network: true}}
		b.able = capsOf(b.caps, cgroup.Base{CPU: true})
		b.able.CPULimit = held
		for _, cpus := range []float64{0, 1, 2, 0.5, 1.5, atoll.Unlimited} {
			want := atoll.Kind("")
			if !held && (cpus == 0.5 || cpus == 1.5) {
				want = atoll.ErrUnsupported
			}
			if err := b.Supports(&atoll.Spec{Resources: atoll.Resources{CPUs: cpus}}); atoll.KindOf(err) != want {
				t.Errorf("%g CPUs, held to parts: %v: %v, want %q", cpus, held, err, want)
			}
		}
	}
}

// Where nothing is there to boot the first sandbox builds it, or machines do not work until
// it is pulled.
func TestWithoutBundle(t *testing.T) {
	works, missing := atoll.Probe{OK: true, Notes: []string{"hypervisor 1"}}, errors.New("no such bundle")
	for name, build := range map[string]string{EngineBundle: "atoll image build --docker", "debian": "atoll image build"} {
		b := &backend{opts: Options{Default: name}}
		if p := b.withoutBundle(works, missing, true); !p.OK || len(p.Notes) != 2 || !strings.HasSuffix(p.Notes[1], "builds one, or "+build) {
			t.Errorf("%s, where it is built: %+v", name, p)
		}
		p := b.withoutBundle(works, missing, false)
		if p.OK || !strings.Contains(p.Reason, missing.Error()) || !strings.Contains(p.Fix, build+" --output") || !strings.Contains(p.Fix, "image pull") {
			t.Errorf("%s, where it is not: %+v", name, p)
		}
	}
}
