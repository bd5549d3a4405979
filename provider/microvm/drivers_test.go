//go:build linux

package microvm_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/seed46cd37a8/atoll/internal/fakefire"
	"github.com/seed46cd37a8/atoll/provider/microvm"
	"github.com/seed46cd37a8/atoll/provider/microvm/internal/hull"
	"github.com/seed46cd37a8/atoll/providertest"
	"github.com/seed46cd37a8/atoll/vm/qemu"
)

// On Firecracker sandboxes have neither volumes nor a network, and their work directory is
// on a disk of their own. Firecracker is a fake here, whose machines are QEMU's.
func TestFirecracker(t *testing.T) {
	need(t)
	m := maker(onFirecracker)
	providertest.Run(t, m.open, m.options(leftOut(t)...)...)
}

// onFirecracker is fresh for machines of the fake.
func onFirecracker(t testing.TB) microvm.Options {
	t.Helper()
	opts := fresh(t).WithEmulation(accel(t) == "tcg")
	program, err := qemu.Find("")
	if err != nil {
		t.Fatal(err)
	}
	opts.Driver, opts.Program = hull.Firecracker, self(t, hull.Firecracker)
	if err := (fakefire.Script{Machine: &fakefire.Machine{Program: program, Accel: accel(t)}}).Write(filepath.Dir(opts.Program)); err != nil {
		t.Fatal(err)
	}
	opts.Accel = ""
	return opts
}

// self is this program by another name.
func self(t testing.TB, name string) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.Symlink(exe, path); err != nil {
		t.Fatal(err)
	}
	return path
}
