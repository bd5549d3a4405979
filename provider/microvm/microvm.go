// Package microvm provides sandboxes that are virtual machines with a kernel of their own: on QEMU,
// with KVM if that works, else emulated, or on another driver of package vm, with fewer features. A
// supervisor process owns each machine, which ends with it, and never with a server.
//
// Machines boot a bundle (package image/bundle), which is built from Debian's packages or from an
// OCI image when it is first needed.
package microvm

import (
	"cmp"
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/image/bundle"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/machine/vm/firecracker"
	"github.com/seed46cd37a8/atoll/provider/internal/cgroup"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised"
	"github.com/seed46cd37a8/atoll/provider/microvm/internal/vmengine"
)

// Options configure the provider. Dir and Bundles are required; zero fields mean
// defaults.
type Options struct {
	// Dir holds sandboxes and volumes. The provider creates it; it must be private to this user.
	// Many providers, in many processes, may use one directory.
	Dir string
	// RunDir holds data that must not survive a reboot, and must be private to this user. The
	// provider creates it. Default: as in provider/gvisor.
	RunDir string
	// Bundles stores the bundles that machines boot. The caller owns it.
	Bundles *bundle.Store
	// Default is the bundle of sandboxes without an image. Default: "debian", which the provider
	// builds if it is missing.
	Default string
	// Helper is the binary that runs as supervisor. Default: this binary.
	Helper string
	// Driver is the driver of the machines: "qemu", "firecracker", "vz" or "wsl2". Sandboxes lack
	// what its machines lack: see Info. Machines of wsl2 have no disks, and only boot the
	// EngineArchive. Default: qemu on Linux, vz on macOS, wsl2 on Windows.
	Driver string
	// Program is the program of the hypervisor. Default: the one in PATH, for QEMU that of this
	// computer's architecture.
	Program string
	// Accel is, for qemu, "kvm" or "tcg", which is emulation. Default: kvm if that works.
	Accel string
	// Jail confines machines of firecracker, and needs root; nil does not. Bundles on another file
	// system than Dir are copied for each machine.
	Jail *firecracker.Jail
	// Spare retains one supervisor process started ahead of the next Create.
	Spare bool
	// Cgroup begins the names of the sandboxes' cgroups. Default: "atoll-" and a suffix that
	// depends on Dir.
	Cgroup string
	// Debug makes kernels log verbosely on their consoles.
	Debug bool
	// Files returns the files of a sandbox that outlive it; nil means none.
	Files func(spec *atoll.Spec) Files
	// Log receives the provider's messages. Default: none.
	Log *slog.Logger

	step   func(name string) error // called before each step of creating and starting a sandbox; its error fails the step; for tests
	answer time.Duration           // the time that a guest may take to answer; 0 means the default; for tests

	emulated bool // machines are emulated although the driver does not know; for tests
}

// A Provider creates sandboxes that are virtual machines.
type Provider struct {
	*supervised.Provider
	backend *backend
}

// New opens the state directory. It does not check whether machines work here: Probe does, and
// Create returns an error.
func New(opts Options) (*Provider, error) {
	if opts.Bundles == nil {
		return nil, atoll.Errorf("microvm", "", atoll.ErrInvalid, "no store of bundles given")
	}
	if opts.Default == "" {
		opts.Default = DefaultBundle
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	driver := vmengine.Driver{
		Name: cmp.Or(opts.Driver, vmengine.DefaultDriver()), Program: opts.Program, Accel: opts.Accel,
		Cache: filepath.Join(opts.Dir, "accel"), Jail: opts.Jail,
	}
	if err := driver.Check(); err != nil {
		return nil, err
	}
	b := &backend{opts: opts, driver: driver, caps: driver.Caps()}
	groups := cgroup.Open(cgroup.Root).FindBase()
	info := atoll.Info{Name: "microvm", Isolation: atoll.IsolationVM, Caps: capsOf(b.caps, groups)}
	b.able = info.Caps
	p, err := supervised.New(supervised.Options{
		Info: info, Backend: b, Supervisor: vmengine.Argv0, Steps: vmengine.Steps(),
		Dir: opts.Dir, RunDir: opts.RunDir, Spare: opts.Spare, Log: opts.Log, Step: opts.step,
		Cgroups: groups.Path, Cgroup: opts.Cgroup,
	})
	if err != nil {
		return nil, err
	}
	return &Provider{p, b}, nil
}

// DefaultDriver returns the default driver of this system: see Options.Driver.
func DefaultDriver() string { return vmengine.DefaultDriver() }

// Files holds paths of files that outlive a sandbox. The provider creates missing files and
// directories.
type Files struct {
	Console string            // for the machine's output; "" means in the sandbox's directory
	Disks   map[string]string // by the ids of vm.Init; directories if the driver has no disks; Forget removes them
}

// DefaultBundle is the bundle of sandboxes without an image. EngineBundle is the bundle of a
// machine with a Docker Engine; no image has its name. EngineArchive is the same for hypervisors
// that bring a kernel. The provider builds missing ones.
const (
	DefaultBundle = "debian"
	EngineBundle  = "docker"
	EngineArchive = "docker-wsl"
)

// EngineOf returns EngineBundle or EngineArchive, as a driver's machines need it.
func EngineOf(driver string) string {
	if (vmengine.Driver{Name: driver}).Caps().Root {
		return EngineArchive
	}
	return EngineBundle
}

// Forget removes the data of a machine at path, one of Files.Disks, and the driver's record of it.
// The machine must have ended. It does nothing if there is nothing. Kinds: ErrConflict, while a
// machine uses the path; ErrUnavailable, without the hypervisor.
func (p *Provider) Forget(ctx context.Context, path string) error {
	if err := p.backend.driver.Forget(ctx, path); err != nil {
		return atoll.E("forget", path, atoll.KindOf(err), err)
	}
	return nil
}

// Prepare implements atoll.Preparer: it builds the bundle that the sandbox boots.
func (p *Provider) Prepare(ctx context.Context, spec *atoll.Spec, progress func(atoll.Progress)) error {
	if _, err := spec.Complete(p.Info().Name); err != nil {
		return err
	}
	_, err := p.backend.ensureBundle(ctx, spec.Image, spec.Pull, progress)
	return err
}

// Slow returns how many times slower than on hardware programs run in a machine: 1 if nothing is
// emulated, or if that cannot be found out.
func (p *Provider) Slow(ctx context.Context) int {
	b := p.backend
	b.slowMu.Lock()
	defer b.slowMu.Unlock()
	if b.slowFactor == 0 {
		kernel := ""
		if im, err := b.opts.Bundles.Get(b.opts.Default); err == nil && !im.IsArchive() {
			kernel = im.Path(im.Kernel.File)
		}
		d, err := b.driver.Open(ctx, kernel, b.opts.Log)
		if err != nil {
			return 1
		}
		able := d.Caps()
		able.Emulated = able.Emulated || b.opts.emulated
		factor := int(vm.Scale(able, 1))
		if kernel == "" {
			return factor // only a kernel shows whether an accelerator works
		}
		b.slowFactor = factor
	}
	return b.slowFactor
}

// Volumes implements atoll.VolumeStore.
func (p *Provider) Volumes(ctx context.Context, project string) ([]atoll.Volume, error) {
	if !p.Info().Caps.Volumes {
		return nil, p.noVolumes("volumes", project)
	}
	return p.Provider.Volumes(ctx, project)
}

// RemoveVolume implements atoll.VolumeStore.
func (p *Provider) RemoveVolume(ctx context.Context, project, name string) error {
	if !p.Info().Caps.Volumes {
		return p.noVolumes("remove volume", name)
	}
	return p.Provider.RemoveVolume(ctx, project, name)
}

func (p *Provider) noVolumes(op, id string) error {
	return atoll.Errorf(op, id, atoll.ErrUnsupported, "no volumes: machines of %s cannot share directories", p.backend.driver.Name)
}

var (
	_ atoll.Provider = (*Provider)(nil)
	_ atoll.Preparer = (*Provider)(nil)

	_ atoll.VolumeStore = (*Provider)(nil)
)
