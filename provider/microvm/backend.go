package microvm

import (
	"cmp"
	"context"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/userdb"
	"github.com/seed46cd37a8/atoll/machine/image/bundle"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/provider/internal/cgroup"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
	"github.com/seed46cd37a8/atoll/provider/microvm/internal/vmengine"
)

// A backend is the supervised.Backend of sandboxes that are virtual machines.
type backend struct {
	opts   Options
	driver vmengine.Driver
	caps   vm.Caps    // capabilities of the driver's machines
	able   atoll.Caps // those of sandboxes in them

	slowMu     sync.Mutex
	slowFactor int // how many times slower than hardware machines are; 0 if not known yet
}

// capsOf returns the capabilities of sandboxes on this computer as this user, in machines with the
// capabilities able and the cgroups in groups.
func capsOf(able vm.Caps, groups cgroup.Base) atoll.Caps {
	sized, network := !able.Sizeless, able.Network || able.Frames
	return atoll.Caps{
		Restart: true, Durable: atoll.DurableStop, Survives: true, Reattach: true, ExitSignal: true, IdleStop: true, Extend: true,
		TTY: true, Files: true, Dial: true, Pause: able.Pause, Usage: vmengine.Usage && sized,
		Images: true, ImageStore: true, Users: os.Geteuid() == 0, BindMounts: able.Shares, Volumes: able.Shares, Tmpfs: true, ReadOnlyRoot: !able.Root,
		MemoryLimit: sized, CPULimit: groups.CPU && sized, ProcessLimit: sized, DiskLimit: !able.Root,
		NetworkNone: true, NetworkOn: network, Egress: network, Gateway: network, Refusals: network, NetworkLog: network, NetworkUpdate: network,
	}
}

// Open implements supervised.Backend.
func (b *backend) Open(statedir.Dir) error {
	return os.MkdirAll(b.driver.Cache, 0o700)
}

// Close implements supervised.Backend.
func (b *backend) Close() error { return nil }

// Probe implements supervised.Backend: it looks for the hypervisor, and for a bundle to boot.
func (b *backend) Probe(ctx context.Context) atoll.Probe {
	p := b.probeDriver(ctx)
	if _, err := bundle.FindFormatter(); err == nil || b.caps.Root {
		return p
	}
	p.Packages = append(p.Packages, bundle.FormatterPackage)
	if p.OK {
		return atoll.Probe{Reason: "mke2fs is not installed", Fix: bundle.FixFormatter, Packages: p.Packages}
	}
	p.Reason += "; mke2fs is not installed"
	p.Fix += "; " + bundle.FixFormatter
	return p
}

// probeDriver looks for the hypervisor, and for a bundle to boot.
func (b *backend) probeDriver(ctx context.Context) atoll.Probe {
	kernel := ""
	im, err := b.opts.Bundles.Get(b.opts.Default)
	if err == nil && !im.IsArchive() {
		kernel = im.Path(im.Kernel.File)
	}
	p := b.driver.Probe(ctx, kernel, b.opts.Log)
	if err == nil {
		return p
	}
	return b.withoutBundle(p, err, bundle.Builds)
}

// withoutBundle returns p for a computer without a bundle to boot, for which err is the reason:
// with a note if bundles can be built here, else a failure.
func (b *backend) withoutBundle(p atoll.Probe, err error, builds bool) atoll.Probe {
	missing := bundle.MissingPackages(bundle.Recipe{Archive: b.opts.Default == EngineArchive})
	missing = slices.DeleteFunc(missing, func(name string) bool { return name == bundle.FormatterPackage }) // Probe reports it
	p.Packages = append(p.Packages, missing...)
	if !p.OK {
		if len(missing) > 0 && p.Fix != "" {
			p.Fix += "; for the first image also: apt-get install " + strings.Join(missing, " ")
		}
		return p
	}
	build := "atoll image build" + map[string]string{EngineBundle: " --docker", EngineArchive: " --docker --wsl"}[b.opts.Default]
	if !builds {
		return atoll.Probe{
			Reason: "no bundle to boot, and none can be built on " + runtime.GOOS + ": " + err.Error(),
			Fix:    "run " + build + " --output DIR on Linux, and atoll image pull here",
		}
	}
	note := "there is no image yet: the first sandbox builds one, or " + build
	if len(missing) > 0 {
		note += "; that needs: apt-get install " + strings.Join(missing, " ")
	}
	p.Notes = append(p.Notes, note)
	return p
}

// Supports implements supervised.Backend.
func (b *backend) Supports(s *atoll.Spec) error {
	if err := b.checkFeatures(s); err != nil {
		return err
	}
	r := s.Resources
	low := func(format string, args ...any) error {
		return atoll.Errorf("create", s.Name, atoll.ErrInvalid, format, args...)
	}
	switch {
	case r.Memory > 0 && (r.Memory < vm.MinMemory || r.Memory > vm.MaxMemory):
		return low("memory %s: must be within %s..%s", r.Memory, atoll.Bytes(vm.MinMemory), atoll.Bytes(vm.MaxMemory))
	case r.CPUs > vm.MaxCPUs:
		return low("%g CPUs: a machine has %d at most", r.CPUs, vm.MaxCPUs)
	case r.Disk > 0 && r.Disk < minDisk:
		return low("disk limit %s: use at least %s", r.Disk, minDisk)
	case r.Processes > 0 && r.Processes < minProcesses:
		return low("process limit %d: use at least %d", r.Processes, minProcesses)
	}
	return nil
}

// checkFeatures returns an error for what the driver's machines cannot do.
func (b *backend) checkFeatures(s *atoll.Spec) error {
	wanted := *s
	if cpus := wanted.Resources.CPUs; cpus == math.Trunc(cpus) && !b.caps.Sizeless {
		wanted.Resources.CPUs = 0 // a machine has whole CPUs without a limit
	}
	if userdb.IsRoot(wanted.User) {
		wanted.User = ""
	}
	others := func(what string) string {
		return "machines of " + b.driver.Name + " have no " + what + ", those of another driver may"
	}
	size, disks, dirs, network := others("size of their own"), others("disks of their own"), others("shared directories"), others("network")
	cpus := "use a whole number, since no cgroup can limit a machine to a part of a CPU here"
	if b.caps.Sizeless {
		cpus = size
	}
	err := wanted.CheckCaps("microvm", b.able, map[string]string{
		"network_named":  "use mode on or egress",
		"publish":        "dial instead, which needs no network (atoll port-forward)",
		"cache":          "use a named volume",
		"disk_limit":     disks,
		"read_only_root": disks,
		"memory_limit":   size,
		"cpu_limit":      cpus,
		"process_limit":  size,
		"network_on":     network,
		"egress":         network,
		"bind_mounts":    dirs,
		"volumes":        dirs,
	})
	if err != nil {
		return err
	}
	if b.opts.Jail != nil && os.Geteuid() != 0 {
		return atoll.Errorf("create", s.Name, atoll.ErrDenied, "jailer needs root: run as root, or without a jail")
	}
	for _, m := range s.Mounts {
		switch {
		case m.Type == atoll.MountTmpfs:
		case m.ReadOnly && !(b.caps.Locked && vmengine.Mounts):
			return atoll.Errorf("create", s.Name, atoll.ErrUnsupported, "read-only mount on %s: %s", m.Target, others("read-only shares"))
		case m.Type == atoll.MountBind && !vmengine.Mounts && isFile(m.Source):
			return atoll.Errorf("create", s.Name, atoll.ErrUnsupported, "mount on %s: %s; mount the directory of the file", m.Target, others("shared files"))
		}
	}
	return nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}

// The smallest useful limits of a machine.
const (
	minDisk      atoll.Bytes = 16 << 20
	minProcesses             = 8
)

// ensureBundle returns the bundle that sandboxes with an image boot. It builds a missing one; with
// PullAlways it builds that of an image again, which takes a moment if the image has not changed.
func (b *backend) ensureBundle(ctx context.Context, image string, policy atoll.PullPolicy, progress func(atoll.Progress)) (*bundle.Bundle, error) {
	name := cmp.Or(image, b.opts.Default)
	im, err := b.opts.Bundles.Get(name)
	there := err == nil
	if !there && atoll.KindOf(err) != atoll.ErrNotExist {
		return nil, err
	}
	switch {
	case b.caps.Root && (!there && name != EngineArchive || there && (!im.IsArchive() || im.Init == nil)):
		return nil, atoll.Errorf("image", name, atoll.ErrUnsupported, "machines of %s have no disks, and boot only a root archive (%s): use vmdocker", b.driver.Name, EngineArchive)
	case there && im.IsArchive() && !b.caps.Root:
		return nil, atoll.Errorf("image", name, atoll.ErrUnsupported, "it is a root archive, but machines of %s boot a kernel", b.driver.Name)
	case there && (policy != atoll.PullAlways || im.Root().Image == ""):
		return im, nil
	}
	r := bundle.Recipe{Name: name, Image: image, Pull: policy}
	if image == "" || image == DefaultBundle {
		r = bundle.Recipe{Name: name}
	}
	if name == EngineBundle || name == EngineArchive {
		r = bundle.Recipe{Name: name, Docker: true, Archive: name == EngineArchive}
	}
	return b.opts.Bundles.Build(ctx, r, progress)
}

// Image implements supervised.Backend.
func (b *backend) Image(ctx context.Context, rec *statedir.Record) error {
	im, err := b.ensureBundle(ctx, rec.Status.Spec.Image, rec.Status.Spec.Pull, nil)
	if err != nil {
		return err
	}
	rec.Status.Image, rec.Image, rec.Digest = cmp.Or(rec.Status.Spec.Image, b.opts.Default)+"@"+im.Digest, im.Dir, im.Digest
	if c := im.Root().Config; c != nil {
		rec.Env, rec.User = c.Env, c.User
	}
	return nil
}

// Restores implements supervised.Backend.
func (b *backend) Restores(*atoll.Snapshot, *atoll.Spec) error {
	return atoll.Errorf("create", "", atoll.ErrUnsupported, "virtual machines have no snapshots")
}

// Hold implements supervised.Backend: a machine has the files of its bundle open. It fails for a
// sandbox of another driver with features that this driver's machines lack.
func (b *backend) Hold(ctx context.Context, rec *statedir.Record) (*os.File, error) {
	st := &rec.Status
	if err := b.checkFeatures(&st.Spec); err != nil {
		return nil, err
	}
	if st.Caps.Volumes && !b.caps.Shares {
		return nil, atoll.Errorf("start", st.ID, atoll.ErrUnsupported, "its work directory is shared with its machine, which machines of %s cannot do: use the driver that it was made with", b.driver.Name)
	}
	_, err := b.rebuildBundle(ctx, rec.Digest, rec.Status.Spec.Image)
	return nil, err
}

// Helper implements supervised.Backend.
func (b *backend) Helper() (string, error) {
	if b.opts.Helper != "" {
		return b.opts.Helper, nil
	}
	return supervised.Self()
}

// Limits implements supervised.Backend. The machine itself limits its memory; QEMU and the daemons
// of shared directories need some more.
func (b *backend) Limits(r atoll.Resources) cgroup.Limits {
	return cgroup.Limits{CPUs: max(r.CPUs, 0)}
}

// Job implements supervised.Backend. Limits that the spec lacks get their defaults.
func (b *backend) Job(job *supervisor.Job) (any, error) {
	job.Spec.Resources = withMachineDefaults(job.Record.Status.Spec.Resources)
	im, err := b.opts.Bundles.Get(job.Record.Digest)
	if err != nil {
		return nil, err
	}
	driver, err := b.driver.Found() // the supervisor has no PATH
	if err != nil {
		return nil, err
	}
	plan := vmengine.Plan{
		Root: im.Path(im.Root().File), Driver: driver, Debug: b.opts.Debug, Init: im.Init,
		Emulated: b.opts.emulated, Answer: atoll.Duration(b.opts.answer),
	}
	if !im.IsArchive() {
		kernel := im.Kernel.File
		if b.caps.ELF && im.Kernel.ELF != nil { // packed kernels come with it
			kernel = *im.Kernel.ELF
		}
		plan.Kernel, plan.Initrd = im.Path(kernel), im.Path(im.Initrd.File)
		if plan.Formatter, err = bundle.FindFormatter(); err != nil {
			return nil, err
		}
	}
	job.Unattended = im.Init != nil
	if b.opts.Files != nil {
		files := b.opts.Files(&job.Spec)
		plan.Disks, plan.Console = files.Disks, files.Console
	}
	return plan, nil
}

// withMachineDefaults returns the resources of a machine: r with the defaults of memory and CPUs.
func withMachineDefaults(r atoll.Resources) atoll.Resources {
	if r.Memory == 0 {
		r.Memory = vmengine.DefaultMemory
	}
	if r.CPUs == 0 {
		r.CPUs = vmengine.DefaultCPUs
	}
	return r.WithDefaults()
}

var _ supervised.Backend = (*backend)(nil)
