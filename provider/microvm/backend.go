package microvm

import (
	"cmp"
	"context"
	"math"
	"os"
	"runtime"
	"sync"

	"github.com/seed46cd37a8/atoll"
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
	able   vm.Caps // of its machines
	parts  bool    // of CPUs can be had

	slow   sync.Mutex
	factor int // how slow machines are; 0 if not known yet
}

// caps are what sandboxes can do on this machine as this user, in machines that can do
// what able says.
func caps(able vm.Caps) atoll.Caps {
	_, cpu := cgroup.Open(cgroup.Root).Can()
	sized, network := !able.Sizeless, able.Network || able.Frames
	return atoll.Caps{
		Restart: true, Durable: atoll.DurableStop, Survives: true, Reattach: true, ExitSignal: true, IdleStop: true, Extend: true,
		TTY: true, Files: true, Dial: true, Pause: able.Pause, Usage: vmengine.Usage && sized,
		Images: true, ImageStore: true, Users: os.Geteuid() == 0, BindMounts: able.Shares, Volumes: able.Shares, Tmpfs: true, ReadOnlyRoot: !able.Root,
		MemoryLimit: sized, CPULimit: cpu && sized, ProcessLimit: sized, DiskLimit: !able.Root,
		NetworkNone: true, NetworkOn: network, Egress: network,
	}
}

// cgroups reports whether each keeper gets one.
func cgroups() bool {
	memory, cpu := cgroup.Open(cgroup.Root).Can()
	return memory || cpu
}

// Open implements supervised.Backend.
func (b *backend) Open(statedir.Dir) error {
	return os.MkdirAll(b.driver.Cache, 0o700)
}

// Close implements supervised.Backend.
func (b *backend) Close() error { return nil }

// Probe implements supervised.Backend: it looks for the hypervisor, and for what a machine boots.
func (b *backend) Probe(ctx context.Context) atoll.Probe {
	if _, err := bundle.FindFormatter(); err != nil && !b.able.Root {
		return atoll.Probe{Reason: "mke2fs is not installed", Fix: bundle.FixFormatter}
	}
	kernel := ""
	im, err := b.opts.Bundles.Get(b.opts.Default)
	if err == nil && !im.IsArchive() {
		kernel = im.Path(im.Kernel.File)
	}
	p := b.driver.Probe(ctx, kernel, b.opts.Log)
	if err == nil || !p.OK {
		return p
	}
	return b.without(p, err, bundle.Builds)
}

// without is what p becomes where there is no bundle that machines could boot, for which
// err is the reason. Where none can be built either, it is what they lack.
func (b *backend) without(p atoll.Probe, err error, builds bool) atoll.Probe {
	build := "atoll image build" + map[string]string{EngineBundle: " --docker", EngineArchive: " --docker --wsl"}[b.opts.Default]
	if !builds {
		return atoll.Probe{
			Reason: "machines have nothing to boot, and it cannot be built on " + runtime.GOOS + ": " + err.Error(),
			Fix:    "have " + build + " --output DIR make it on Linux, and atoll image pull it here",
		}
	}
	p.Notes = append(p.Notes, "there is no image yet: the first sandbox builds one, or "+build)
	return p
}

// Supports implements supervised.Backend.
func (b *backend) Supports(s *atoll.Spec) error {
	r := s.Resources
	no := func(format string, args ...any) error {
		return atoll.Errorf("create", s.Name, atoll.ErrUnsupported, format, args...)
	}
	low := func(format string, args ...any) error {
		return atoll.Errorf("create", s.Name, atoll.ErrInvalid, format, args...)
	}
	switch {
	case r.Memory > 0 && (r.Memory < vm.MinMemory || r.Memory > vm.MaxMemory):
		return low("memory %s: a machine has %s to %s", r.Memory, atoll.Bytes(vm.MinMemory), atoll.Bytes(vm.MaxMemory))
	case r.CPUs > vm.MaxCPUs:
		return low("%g CPUs: a machine has %d at most", r.CPUs, vm.MaxCPUs)
	case r.Disk > 0 && r.Disk < leastDisk:
		return low("disk limit %s: use at least %s", r.Disk, leastDisk)
	case r.Processes > 0 && r.Processes < leastProcesses:
		return low("process limit %d: use at least %d", r.Processes, leastProcesses)
	case s.Workspace != (atoll.WorkspaceRef{}):
		return no("workspaces: package workspace is the layer that has them")
	case s.Network.Mode == atoll.NetworkNamed:
		return no("network %q: machines have networks of their own only, use mode on or egress", s.Network.Name)
	case s.Publishes():
		return no("published ports: dial instead, which needs no network (atoll port-forward)")
	case s.Cache:
		return no("a project's cache: use a named volume")
	case r.GPUs != "":
		return no("GPUs: not available here")
	case s.Snapshot != "":
		return no("snapshots: not of virtual machines")
	}
	return b.lacks(s)
}

// lacks refuses what the driver's machines cannot do.
func (b *backend) lacks(s *atoll.Spec) error {
	no := func(format string, args ...any) error {
		return atoll.Errorf("create", s.Name, atoll.ErrUnsupported, format+": machines of "+b.driver.Name+" have none, those of another driver may", args...)
	}
	if b.opts.Jail != nil && os.Geteuid() != 0 {
		return atoll.Errorf("create", s.Name, atoll.ErrDenied, "jailer needs root: run as root, or without a jail")
	}
	if cpus := s.Resources.CPUs; cpus > 0 && cpus != math.Trunc(cpus) && !b.parts {
		return atoll.Errorf("create", s.Name, atoll.ErrUnsupported, "%g CPUs: no cgroup holds a machine to a part of one here, use a whole number", cpus)
	}
	if b.able.Root && (s.Resources.Disk > 0 || s.ReadOnlyRoot) {
		return no("disk limit and read-only root file system: disks of their own")
	}
	if b.able.Sizeless && (s.Resources.Memory > 0 || s.Resources.CPUs > 0 || s.Resources.Processes > 0) {
		return no("limits of memory, CPUs and processes: a size of their own")
	}
	if s.Network.Mode != atoll.NetworkNone && !b.able.Network && !b.able.Frames {
		return no("network %s", s.Network.Mode)
	}
	for _, m := range s.Mounts {
		switch {
		case m.Type == atoll.MountTmpfs:
		case !b.able.Shares:
			return no("%s mount on %s: shared directories", m.Type, m.Target)
		case m.ReadOnly && !(b.able.Locked && vmengine.Mounts):
			return no("read-only mount on %s: directories that are shared so", m.Target)
		case m.Type == atoll.MountBind && !vmengine.Mounts && isFile(m.Source):
			return no("mount on %s: shared files; mount the directory that it is in", m.Target)
		}
	}
	return nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}

// The least limits with which a machine is of use.
const (
	leastDisk      atoll.Bytes = 16 << 20
	leastProcesses             = 8
)

// bundle is what a sandbox boots that is made from an image. It is built if it is not
// there.
func (b *backend) bundle(ctx context.Context, image string, progress func(atoll.Progress)) (*bundle.Bundle, error) {
	name := cmp.Or(image, b.opts.Default)
	im, err := b.opts.Bundles.Get(name)
	there := err == nil
	if !there && atoll.KindOf(err) != atoll.ErrNotExist {
		return nil, err
	}
	switch {
	case b.able.Root && (!there && name != EngineArchive || there && (!im.IsArchive() || im.Init == nil)):
		return nil, atoll.Errorf("image", name, atoll.ErrUnsupported, "machines of %s have no disks of their own, and run only what a root archive says (%s): use vmdocker", b.driver.Name, EngineArchive)
	case there && im.IsArchive() && !b.able.Root:
		return nil, atoll.Errorf("image", name, atoll.ErrUnsupported, "it is a root archive, and machines of %s boot a kernel", b.driver.Name)
	case there:
		return im, nil
	}
	r := bundle.Recipe{Name: name, Image: image}
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
	im, err := b.bundle(ctx, rec.Status.Spec.Image, nil)
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

// Hold implements supervised.Backend: a machine has the files of its bundle open. A sandbox
// that was made with another driver may have what this one's machines do not.
func (b *backend) Hold(ctx context.Context, rec *statedir.Record) (*os.File, error) {
	st := &rec.Status
	if err := b.lacks(&st.Spec); err != nil {
		return nil, err
	}
	if st.Caps.Volumes && !b.able.Shares {
		return nil, atoll.Errorf("start", st.ID, atoll.ErrUnsupported, "its work directory is shared with its machine, which machines of %s cannot: it was made with another driver", b.driver.Name)
	}
	_, err := b.found(ctx, rec.Digest, rec.Status.Spec.Image)
	return nil, err
}

// Helper implements supervised.Backend.
func (b *backend) Helper() (string, error) {
	if b.opts.Helper != "" {
		return b.opts.Helper, nil
	}
	return supervised.Self()
}

// Limits implements supervised.Backend: a machine has no more memory than it has, but QEMU and
// the daemons of its directories take some.
func (b *backend) Limits(r atoll.Resources) cgroup.Limits {
	return cgroup.Limits{CPUs: max(r.CPUs, 0)}
}

// Job implements supervised.Backend: limits that the spec does not have are the defaults.
func (b *backend) Job(job *supervisor.Job) (any, error) {
	job.Spec.Resources = resources(job.Record.Status.Spec.Resources)
	im, err := b.opts.Bundles.Get(job.Record.Digest)
	if err != nil {
		return nil, err
	}
	driver, err := b.driver.Found() // the keeper has no PATH
	if err != nil {
		return nil, err
	}
	plan := vmengine.Plan{
		Root: im.Path(im.Root().File), Driver: driver, Debug: b.opts.Debug, Init: im.Init,
		Emulated: b.opts.emulated, Answer: atoll.Duration(b.opts.answer),
	}
	if !im.IsArchive() {
		kernel := im.Kernel.File
		if b.able.ELF && im.Kernel.ELF != nil { // which there is where a kernel is packed
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

// resources are those that a machine has.
func resources(r atoll.Resources) atoll.Resources {
	if r.Memory == 0 {
		r.Memory = vmengine.DefaultMemory
	}
	if r.CPUs == 0 {
		r.CPUs = vmengine.DefaultCPUs
	}
	return r.WithDefaults()
}

var _ supervised.Backend = (*backend)(nil)
