// Package microvm provides sandboxes that are virtual machines of their own, with a
// kernel of their own: on QEMU, with KVM where that works, else emulated, or on another
// driver of package vm, where sandboxes can do less. Each is owned by a keeper process,
// and dies with that, and never with a server.
//
// What they boot is a bundle (package image/bundle), which is built from Debian's packages
// or from an OCI image when it is first needed.
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
	"github.com/seed46cd37a8/atoll/provider/internal/supervised"
	"github.com/seed46cd37a8/atoll/provider/microvm/internal/vmengine"
)

// Options configure the provider. Dir and Bundles are required; zero fields mean
// defaults.
type Options struct {
	// Dir keeps sandboxes and volumes; it is made when missing, and must be this
	// user's alone. Many providers, in many processes, may use one directory.
	Dir string
	// RunDir keeps what must not survive a reboot, and must be this user's alone; it is
	// made when missing. Default: as of provider/gvisor.
	RunDir string
	// Bundles is where what machines boot is. It stays the caller's.
	Bundles *bundle.Store
	// Default is the bundle of sandboxes that name no image. Default: "debian", which is
	// built when it is not there.
	Default string
	// Helper is the binary that is executed as keeper. Default: this binary.
	Helper string
	// Driver makes the machines: "qemu", "firecracker", "vz" or "wsl2". What its machines
	// lack, sandboxes do: see Info. Those of wsl2 have no disks, and are only for the
	// EngineArchive. Default: qemu on Linux, vz on macOS, wsl2 on Windows.
	Driver string
	// Program is the hypervisor's. Default: the one in PATH, and QEMU's that of this
	// machine's architecture.
	Program string
	// Accel is, for qemu, "kvm" or "tcg", which is emulation. Default: kvm where that works.
	Accel string
	// Jail confines machines of firecracker, and needs root; nil does not. Bundles that are
	// not on the file system of Dir are copied for each.
	Jail *firecracker.Jail
	// Spare keeps one keeper process started ahead of the next Create.
	Spare bool
	// Cgroup is what the names of the sandboxes' cgroups begin with. Default: "atoll-",
	// and what tells Dir from other directories.
	Cgroup string
	// Debug has kernels say on their consoles all that they do.
	Debug bool
	// Files says where files of a sandbox are that stay when it is removed; nil
	// means that there are none.
	Files func(spec *atoll.Spec) Files
	// Log receives what the provider has to say. Default: nowhere.
	Log *slog.Logger

	step   func(name string) error // asked before each step of making and starting a sandbox, and fails it: for tests
	answer time.Duration           // how long a guest may take to answer; 0 is the default: for tests

	emulated bool // machines are, and the driver does not know: for tests
}

// A Provider makes sandboxes that are virtual machines.
type Provider struct {
	*supervised.Provider
	backend *backend
}

// New opens the state directory. It does not check whether machines work here: Probe does,
// and Create says so.
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
	b := &backend{opts: opts, driver: driver, able: driver.Caps()}
	info := atoll.Info{Name: "microvm", Isolation: atoll.IsolationVM, Caps: caps(b.able)}
	b.parts = info.Caps.CPULimit
	p, err := supervised.New(supervised.Options{
		Info: info, Backend: b, Supervisor: vmengine.Argv0, Steps: vmengine.Steps(),
		Dir: opts.Dir, RunDir: opts.RunDir, Spare: opts.Spare, Log: opts.Log, Step: opts.step,
		Cgroups: cgroups(), Cgroup: opts.Cgroup,
	})
	if err != nil {
		return nil, err
	}
	return &Provider{p, b}, nil
}

// DefaultDriver is what makes machines on this system: see Options.Driver.
func DefaultDriver() string { return vmengine.DefaultDriver() }

// Files are paths of what is not to go with a sandbox. What is missing is made, directories
// too.
type Files struct {
	Console string            // to which the machine prints; "" means in the sandbox's directory
	Disks   map[string]string // by id, those of vm.Init; where there are no disks directories, and Forget removes them
}

// DefaultBundle is the one of sandboxes that name no image, and EngineBundle that of a
// machine with a Docker Engine, whose name is no image's; EngineArchive is the same for
// hypervisors that bring a kernel. They are built when they are missing.
const (
	DefaultBundle = "debian"
	EngineBundle  = "docker"
	EngineArchive = "docker-wsl"
)

// EngineOf is which of them is for machines that a driver makes.
func EngineOf(driver string) string {
	if (vmengine.Driver{Name: driver}).Caps().Root {
		return EngineArchive
	}
	return EngineBundle
}

// Forget removes what a machine has kept at path, one of Files.Disks, with what else its
// driver knows of it. The machine has ended. Where there is nothing, nothing is done. Kinds:
// ErrConflict, while a machine has it; ErrUnavailable, without the hypervisor.
func (p *Provider) Forget(ctx context.Context, path string) error {
	if err := p.backend.driver.Forget(ctx, path); err != nil {
		return atoll.E("forget", path, atoll.KindOf(err), err)
	}
	return nil
}

// Prepare implements atoll.Preparer: it builds what the sandbox boots.
func (p *Provider) Prepare(ctx context.Context, spec *atoll.Spec, progress func(atoll.Progress)) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	if _, err := spec.MadeBy(p.Info().Name); err != nil {
		return err
	}
	_, err := p.backend.bundle(ctx, spec.Image, progress)
	return err
}

// Slow is how many times as long as on hardware things take in a machine: 1 where nothing
// is emulated, or nothing can be found out.
func (p *Provider) Slow(ctx context.Context) int {
	b := p.backend
	b.slow.Lock()
	defer b.slow.Unlock()
	if b.factor == 0 {
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
			return factor // whether an accelerator works is found out with a kernel
		}
		b.factor = factor
	}
	return b.factor
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
	return atoll.Errorf(op, id, atoll.ErrUnsupported, "machines of %s share no directories, and so have no volumes", p.backend.driver.Name)
}

var (
	_ atoll.Provider = (*Provider)(nil)
	_ atoll.Preparer = (*Provider)(nil)

	_ atoll.VolumeStore = (*Provider)(nil)
)
