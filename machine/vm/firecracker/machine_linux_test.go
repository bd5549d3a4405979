package firecracker_test

import (
	"os"
	"testing"

	"github.com/seed46cd37a8/atoll/internal/testing/fakevmm"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/machine/image/bundle"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/machine/vm/firecracker"
	"github.com/seed46cd37a8/atoll/machine/vm/qemu"
	"github.com/seed46cd37a8/atoll/machine/vm/vmtest"
)

// The machines of the fake are QEMU's here: the kernel, the initial file system, the disks
// and the guest are those of sandboxes. Or scripts/firecracker has brought a real one.
func TestConformance(t *testing.T) {
	if testing.Short() {
		t.Skip("a dozen machines boot, which takes its time where they are emulated: too long for -short")
	}
	h := hardware(t)
	if program := os.Getenv(programVar); program != "" {
		vmtest.Run(t, vmtest.Lab{Driver: firecracker.New(firecracker.Options{Program: program}), Hardware: hardware})
		return
	}
	d, err := qemu.New(t.Context(), qemu.Options{Kernel: h.Kernel, Cache: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	machine := &fakevmm.Machine{Accel: "kvm"}
	if d.Caps().Emulated {
		if !testenv.RunAll() {
			t.Skip("emulated: provider/microvm runs Firecracker's machines; CHECK_ALL=1 runs the suite")
		}
		machine.Accel = "tcg"
	}
	if machine.Program, err = qemu.Find(""); err != nil {
		t.Fatal(err)
	}
	l := newLab(t, fakevmm.Script{Machine: machine})
	vmtest.Run(t, vmtest.Lab{Driver: &emulated{firecracker.New(l.opts), d.Caps().Emulated}, Hardware: hardware})
}

// emulated is a driver whose machines may be emulated behind its back.
type emulated struct {
	vm.Driver
	emulated bool
}

func (d *emulated) Caps() vm.Caps {
	caps := d.Driver.Caps()
	caps.Emulated = d.emulated
	return caps
}

// hardware returns the hardware of a machine in which a guest comes up.
func hardware(t testing.TB) *vm.Hardware {
	t.Helper()
	testenv.Need(t, testenv.Program("qemu-system-x86_64", "qemu-system-x86"))
	store, err := bundle.Open(testenv.BundleStore(t), bundle.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	b, err := store.Get("debian")
	if err != nil {
		t.Fatal(err)
	}
	return &vm.Hardware{
		CPUs: 2, Memory: 256 << 20, Kernel: b.Path(*b.Kernel.ELF), Initrd: b.Path(b.Initrd.File), CID: vm.MinCID,
		Disks: []vm.Disk{{ID: "root", Path: b.Path(b.Root().File), ReadOnly: true}},
	}
}
