//go:build linux

package native

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/userdb"
	"github.com/seed46cd37a8/atoll/provider/internal/cgroup"
	"github.com/seed46cd37a8/atoll/provider/internal/imagestore"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
	"github.com/seed46cd37a8/atoll/provider/native/internal/plan"
	"github.com/seed46cd37a8/atoll/provider/native/internal/quota"
)

// A backend implements supervised.Backend.
type backend struct {
	*imagestore.Backend
	opts   Options
	caps   atoll.Caps
	groups cgroup.Base
	subIDs *supervised.SubIDs // of this user; nil if there are none
	noIDs  string             // why there are none; "" for root
}

// detectCaps returns what sandboxes whose files are in dir can do on this machine as this user. users is whether there are more users
// inside than one, and groups where their cgroups are.
func detectCaps(dir string, users bool, groups cgroup.Base) atoll.Caps {
	quotas := os.Geteuid() == 0 && quota.Works(dir)
	return atoll.Caps{
		Restart: true, Durable: atoll.DurableStop, Survives: true, Reattach: true, ExitSignal: true, IdleStop: true, Extend: true,
		TTY: true, Files: true, Dial: true, Usage: true,
		Images: true, ImageStore: true, Users: users, BindMounts: true, Volumes: true, VolumeLocks: true, Tmpfs: true, ReadOnlyRoot: true,
		MemoryLimit: groups.Memory, CPULimit: groups.CPU, ProcessLimit: true, DiskLimit: quotas, DiskWatch: !quotas,
		Pause: groups.Freeze, Snapshot: groups.Freeze,
		NetworkNone: true, NetworkOn: true, Egress: true, Gateway: true, Refusals: true, NetworkLog: true, NetworkUpdate: true,
	}
}

// The lowest limits with which a sandbox still starts and runs a command.
const (
	leastMemory    atoll.Bytes = 16 << 20
	leastCPUs                  = 0.01
	leastProcesses             = 4
	leastDisk      atoll.Bytes = 1 << 20
)

// Supports implements supervised.Backend.
func (b *backend) Supports(s *atoll.Spec) error {
	wanted := *s
	if userdb.IsRoot(wanted.User) {
		wanted.User = ""
	}
	needs := func(controller string) string {
		return "they need " + cgroup.Open(cgroup.Root).Lack(b.groups, controller) + ", or leave them out"
	}
	err := wanted.CheckCaps("native", b.caps, map[string]string{
		"memory_limit":  needs("memory"),
		"cpu_limit":     needs("cpu"),
		"users":         "only root exists inside: " + b.noIDs + "; " + idsAdvice,
		"network_named": "use mode on or egress",
		"publish":       "dial instead, which needs no network (atoll port-forward)",
		"cache":         "use a named volume",
		"snapshot":      needs("freezer"),
	})
	if err != nil {
		return err
	}
	r := s.Resources
	refused := func(format string, args ...any) error {
		return atoll.Errorf("create", s.Name, atoll.ErrInvalid, format, args...)
	}
	switch {
	case r.Memory > 0 && r.Memory < leastMemory:
		return refused("memory limit %s is too low; use at least %s", r.Memory, leastMemory)
	case r.CPUs > 0 && r.CPUs < leastCPUs:
		return refused("CPU limit %g: use at least %g", r.CPUs, leastCPUs)
	case r.CPUs > float64(runtime.NumCPU()):
		return refused("CPU limit %g: this machine has %d", r.CPUs, runtime.NumCPU())
	case r.Processes > 0 && r.Processes < leastProcesses:
		return refused("process limit %d: use at least %d", r.Processes, leastProcesses)
	case r.Disk > 0 && r.Disk < leastDisk:
		return refused("disk limit %s: use at least %s", r.Disk, leastDisk)
	}
	return nil
}

// idsAdvice says how an ordinary user gets sandboxes with several users.
const idsAdvice = "for other users run: sudo apt install uidmap && sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER"

// Probe implements supervised.Backend.
func (b *backend) Probe(ctx context.Context) atoll.Probe {
	helper, err := b.Helper()
	if err != nil {
		fix := "install a release, go install with CGO_ENABLED=0, or run make build"
		if !errors.Is(err, errDynamic) { // its own engine could not be written
			fix = "free 50 MB there, or choose another directory with --state-dir or XDG_STATE_HOME"
		}
		return atoll.Probe{Reason: strings.TrimPrefix(err.Error(), "start: "), Fix: fix}
	}
	probe := supervised.Try(ctx, helper, plan.ProbeArgv0, b.subIDs)
	if !probe.OK {
		return probe
	}
	probe.Notes = append(probe.Notes, "its wall is the kernel of this machine: use gvisor for programs that may attack that")
	if b.noIDs != "" {
		probe.Notes = append(probe.Notes, "sandboxes have one user: "+b.noIDs+"; "+idsAdvice)
	}
	if b.opts.Nested {
		probe.Notes = append(probe.Notes, "native.nested is on: programs in sandboxes may make namespaces, and can attack more of the kernel")
	}
	if b.opts.Helper == "" && slowEngine != "" {
		probe.Notes = append(probe.Notes, slowEngine)
	}
	probe.Notes = append(probe.Notes, supervised.LimitNotes(b.groups)...)
	return probe
}

// Restores implements supervised.Backend: a snapshot has the changes of the root file system, unless that was read-only.
func (b *backend) Restores(snap *atoll.Snapshot, spec *atoll.Spec) error {
	if snap.Spec.ReadOnlyRoot != spec.ReadOnlyRoot {
		return atoll.Errorf("create", spec.ID, atoll.ErrInvalid, "snapshot %s was taken with another read_only_root; use the same", snap.ID)
	}
	return nil
}

// errDynamic is the error of ownEngine in a program that is not linked statically.
var errDynamic = errors.New("native sandboxes need a statically linked binary: build with CGO_ENABLED=0, or use make")

// Helper implements supervised.Backend.
func (b *backend) Helper() (path string, err error) {
	if b.opts.Helper != "" {
		return b.opts.Helper, nil
	}
	if path, err = ownEngine(b.opts.Dir); err != nil {
		return "", atoll.E("start", "", atoll.ErrUnavailable, err)
	}
	return path, nil
}

// Limits implements supervised.Backend.
func (b *backend) Limits(r atoll.Resources) cgroup.Limits { return plan.CgroupLimits(r) }

// Job implements supervised.Backend.
func (b *backend) Job(*supervisor.Job) (any, error) {
	return plan.Plan{HostPaths: b.opts.HostPaths, Nested: b.opts.Nested, Halt: b.opts.halt}, nil
}

var _ supervised.Backend = (*backend)(nil)
