package microvm

import (
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/vm"
)

// A part of a CPU is refused where nothing holds a machine to it, and whole ones are had.
func TestPartsOfCPUs(t *testing.T) {
	for _, held := range []bool{false, true} {
		b := &backend{parts: held, able: vm.Caps{Network: true}}
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
