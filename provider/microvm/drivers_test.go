//go:build linux

package microvm_test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/fakevmm"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/machine/vm/firecracker"
	"github.com/seed46cd37a8/atoll/machine/vm/qemu"
	"github.com/seed46cd37a8/atoll/provider/microvm"
	"github.com/seed46cd37a8/atoll/provider/microvm/internal/vmengine"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// On Firecracker sandboxes have neither volumes nor a network, and their work directory is
// on a disk of their own. Firecracker is a fake here, whose machines are QEMU's.
//
// Without CHECK_ALL=1 the test runs only the groups in which the driver acts: the death, the pauses and the
// ports of a machine. All groups took 930 s on two busy CPUs with emulated machines.
func TestFirecracker(t *testing.T) {
	need(t)
	m := maker(onFirecracker)
	besides := leftOut(t)
	if !testenv.RunAll() {
		besides = append(besides, providertest.Only("crash", "dial", "pause"), providertest.WireOnly(), rest)
	}
	providertest.Run(t, m.open, m.options(besides...)...)
}

// With vz nothing is shared read-only. vfkit is a fake here, whose machines are QEMU's. In `make test`, QEMU
// and Firecracker stand for the drivers.
func TestVZ(t *testing.T) {
	if !testenv.RunAll() {
		t.Skip("CHECK_ALL=1 runs it: machines take long")
	}
	need(t)
	m := maker(onVZ)
	const readOnly = "vfkit shares nothing read-only"
	besides := append(leftOut(t),
		providertest.Except("volumes/a bind mount may be a file, at any path", readOnly),
		providertest.Except("volumes/a read-only mount cannot be written to", readOnly),
		providertest.Except("dial/a connection can be closed for writing and read to its end", "connections through vfkit are closed as a whole"))
	providertest.Run(t, m.open, m.options(besides...)...)
}

// onVZ is fresh for machines of a fake vfkit, which takes no commas in paths.
func onVZ(t testing.TB) microvm.Options {
	t.Helper()
	opts := freshIn(t, runDir(t)).WithEmulation(accel(t) == "tcg")
	program, err := qemu.Find("")
	if err != nil {
		t.Fatal(err)
	}
	opts.Driver, opts.Program = vmengine.VZ, self(t, "vfkit")
	if err := (fakevmm.VFKitScript{Machine: &fakevmm.Machine{Program: program, Accel: accel(t)}}).Write(filepath.Dir(opts.Program)); err != nil {
		t.Fatal(err)
	}
	opts.Accel = ""
	return opts
}

// The environment variables by which scripts/firecracker passes a real one.
const (
	firecrackerVar = "ATOLL_FIRECRACKER"
	jailerVar      = "ATOLL_FIRECRACKER_JAILER" // needs root
)

// onFirecracker is fresh for machines of the fake, or of a real one if there is one.
func onFirecracker(t testing.TB) microvm.Options {
	t.Helper()
	opts := fresh(t)
	if real := os.Getenv(firecrackerVar); real != "" {
		opts.Driver, opts.Program, opts.Accel = vmengine.Firecracker, real, ""
		if jailer := os.Getenv(jailerVar); jailer != "" {
			opts.Jail = &firecracker.Jail{Jailer: jailer, UID: jailed, GID: jailed}
		}
		return opts
	}
	opts = opts.WithEmulation(accel(t) == "tcg")
	program, err := qemu.Find("")
	if err != nil {
		t.Fatal(err)
	}
	opts.Driver, opts.Program = vmengine.Firecracker, self(t, vmengine.Firecracker)
	if err := (fakevmm.Script{Machine: &fakevmm.Machine{Program: program, Accel: accel(t)}}).Write(filepath.Dir(opts.Program)); err != nil {
		t.Fatal(err)
	}
	opts.Accel = ""
	return opts
}

// jailed is whom machines in a jail run as.
const jailed = 23456

// self is this program by another name.
func self(t testing.TB, name string) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.Link(exe, path); err != nil { // jailer looks at the name behind a symbolic link
		t.Fatal(err)
	}
	return path
}

// A sandbox of one driver goes on with another one, if that can do what it has.
func TestOtherDriver(t *testing.T) {
	need(t)
	one := maker(onFirecracker).lab(t)
	opts := one.opts
	opts.Driver, opts.Program, opts.Accel = vmengine.QEMU, "", accel(t)
	p := openWith(t, opts)
	t.Cleanup(func() { p.Close() })
	two := &lab{p, opts, t}

	sb := one.create(atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountTmpfs, Target: "/work/fast"}}})
	if out := one.sh(sb, "echo kept | tee /work/f /root/f; echo gone > /work/fast/f; ls /work; ls /sys/class/net | wc -l"); out != "kept\nf\nfast\n1" {
		t.Errorf("on firecracker: %q", out)
	}
	one.must("stop", sb.Stop(one.ctx(), 0))
	again, err := two.Get(two.ctx(), sb.ID())
	two.must("get", err)
	two.must("start", again.Start(two.ctx()))
	if out := two.sh(again, "cat /work/f /root/f; ls /work /work/fast"); out != "kept\nkept\n/work:\nf\nfast\n\n/work/fast:" {
		t.Errorf("on qemu: %q", out)
	}
	if st, err := again.Status(two.ctx()); err != nil || st.Caps.Volumes || st.Caps.NetworkOn {
		t.Errorf("its status is %+v, %v", st, err)
	}

	for what, spec := range map[string]atoll.Spec{
		"work directory": {NoStart: true},
		"network":        {NoStart: true, Network: atoll.Network{Mode: atoll.NetworkOn}},
	} {
		sb = two.create(spec)
		other, err := one.Get(one.ctx(), sb.ID())
		one.must("get", err)
		wantKind(t, "start on firecracker", other.Start(one.ctx()), atoll.ErrUnsupported, what, "machines of firecracker")
	}
	_, err = one.Create(one.ctx(), &atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "v", Target: "/v"}}})
	wantKind(t, "create with a volume", err, atoll.ErrUnsupported, "volume", "machines of firecracker")
}

// In a jail the hypervisor is another user, and has the machine's disks all the same.
func TestJail(t *testing.T) {
	need(t)
	testenv.Need(t, testenv.Root)
	l := maker(func(t testing.TB) microvm.Options {
		opts := onFirecracker(t)
		if opts.Jail == nil {
			opts.Jail = &firecracker.Jail{Jailer: self(t, "jailer"), UID: jailed, GID: jailed}
		}
		return opts
	}).lab(t)
	sb := l.create(atoll.Spec{})
	if out := l.sh(sb, "echo kept | tee /work/f /root/f"); out != "kept" {
		t.Errorf("it prints %q", out)
	}
	info, err := os.Stat(fmt.Sprintf("/proc/%d", machineOf(t, sb)))
	l.must("stat", err)
	if uid := info.Sys().(*syscall.Stat_t).Uid; uid != jailed {
		t.Errorf("the machine runs as user %d", uid)
	}
	l.must("stop", sb.Stop(l.ctx(), 0))
	l.must("start", sb.Start(l.ctx()))
	if out := l.sh(sb, "cat /work/f /root/f"); out != "kept\nkept" {
		t.Errorf("after a stop it prints %q", out)
	}
}

// Options that no driver has are refused.
func TestBadDriver(t *testing.T) {
	store := bundles(t)
	for _, opts := range []microvm.Options{
		{Driver: "xen"}, {Driver: vmengine.Firecracker, Accel: "kvm"}, {Jail: &firecracker.Jail{UID: 1, GID: 1}}, {Driver: vmengine.VZ, Accel: "tcg"},
	} {
		opts.Dir, opts.RunDir, opts.Bundles = t.TempDir(), t.TempDir(), store
		p, err := microvm.New(opts)
		wantKind(t, "New", err, atoll.ErrInvalid)
		if err == nil {
			p.Close()
		}
	}
}
