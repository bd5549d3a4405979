//go:build linux

package gvisor

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/userdb"
	"github.com/seed46cd37a8/atoll/provider/gvisor/internal/plan"
	"github.com/seed46cd37a8/atoll/provider/internal/cgroup"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised"
)

// detectCaps returns what sandboxes can do on this machine as this user, with cgroups in groups.
func detectCaps(groups cgroup.Base) atoll.Caps {
	root := os.Geteuid() == 0
	return atoll.Caps{
		Restart: true, Durable: atoll.DurableStop, Survives: true, Reattach: true, ExitSignal: true, IdleStop: true, Extend: true,
		TTY: true, Files: true, Dial: true, Pause: true, Snapshot: true, DurableExec: true, Usage: true,
		Images: true, ImageStore: true, Users: root, BindMounts: true, Volumes: true, Tmpfs: true, ReadOnlyRoot: true,
		MemoryLimit: groups.Memory, CPULimit: groups.CPU, ProcessLimit: true, DiskLimit: true,
		NetworkNone: true, NetworkOn: true, Egress: true, Gateway: true, Refusals: true, NetworkLog: true, NetworkUpdate: true,
	}
}

// The lowest limits with which a sandbox still starts and runs a command: gVisor, its gofer
// and Atoll's helpers use memory and processes, and the kernel allows no quota below a
// millisecond in a period of 100.
const (
	leastMemory    atoll.Bytes = 32 << 20
	leastCPUs                  = 0.01
	leastProcesses             = 8
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
	err := wanted.CheckCaps("gvisor", b.caps, map[string]string{
		"memory_limit":  needs("memory"),
		"cpu_limit":     needs("cpu"),
		"users":         "only root exists without privileges; run as root for other users",
		"network_named": "use mode on or egress",
		"publish":       "dial instead, which needs no network (atoll port-forward)",
		"cache":         "use a named volume",
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
		return refused("memory limit %s is too low for gVisor; use at least %s", r.Memory, leastMemory)
	case r.CPUs > 0 && r.CPUs < leastCPUs:
		return refused("CPU limit %g: use at least %g", r.CPUs, leastCPUs)
	case r.CPUs > float64(runtime.NumCPU()):
		return refused("CPU limit %g: this machine has %d", r.CPUs, runtime.NumCPU())
	case r.Processes > 0 && r.Processes < leastProcesses:
		return refused("process limit %d: use at least %d", r.Processes, leastProcesses)
	}
	return nil
}

// Probe implements supervised.Backend.
func (b *backend) Probe(ctx context.Context) atoll.Probe {
	if b.buildsHelper() && helperIsMissing(b.opts.Dir, ownVersion()) {
		return atoll.Probe{OK: true, Notes: []string{"this program is built with cgo: its first sandbox builds a static engine, which takes some minutes"}}
	}
	helper, err := b.Helper()
	if err != nil {
		fix := "install a release, go install with CGO_ENABLED=0, or run make build"
		if b.opts.Helper == "" && !errors.Is(err, errDynamic) { // its own engine could not be written
			fix = "free 50 MB there, or choose another directory with --state-dir or XDG_STATE_HOME"
		}
		return atoll.Probe{Reason: strings.TrimPrefix(err.Error(), "start: "), Fix: fix}
	}
	probe := supervised.Try(ctx, helper, plan.ProbeArgv0, nil)
	if probe.OK && b.opts.Helper == "" && slowEngine != "" {
		probe.Notes = append(probe.Notes, slowEngine)
	}
	if probe.OK {
		probe.Notes = append(probe.Notes, supervised.LimitNotes(b.groups)...)
	}
	return probe
}
