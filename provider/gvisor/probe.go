//go:build linux

package gvisor

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/cgroup"
	"github.com/seed46cd37a8/atoll/internal/kept/statedir"
	"github.com/seed46cd37a8/atoll/internal/passwd"
	"github.com/seed46cd37a8/atoll/provider/gvisor/internal/sentry"
)

// caps are what sandboxes can do on this machine as this user.
func caps() atoll.Caps {
	root := os.Geteuid() == 0
	memory, cpu := cgroup.Open(cgroup.Root).Can()
	return atoll.Caps{
		Durable: atoll.DurableStop, Survives: true, Reattach: true, ExitSignal: true, IdleStop: true, Extend: true,
		TTY: true, Files: true, Dial: true, Pause: true, Snapshot: true, Usage: true,
		Images: true, Users: root, BindMounts: true, Volumes: true, Tmpfs: true, ReadOnlyRoot: true,
		MemoryLimit: memory, CPULimit: cpu, ProcessLimit: true, DiskLimit: true,
		NetworkNone: true, NetworkOn: true, Egress: true,
	}
}

// The least limits with which a sandbox still starts and runs a command: the
// memory and processes of gVisor, its gofer and our own helpers count, and the
// kernel knows no quota of less than a millisecond in a period of 100.
const (
	leastMemory    atoll.Bytes = 32 << 20
	leastCPUs                  = 0.01
	leastProcesses             = 8
)

// supports refuses what the spec asks for and cannot be done here.
func (p *Provider) supports(s *atoll.Spec) error {
	c, r := p.info.Caps, s.Resources
	no := func(format string, args ...any) error {
		return atoll.Errorf("create", s.Name, atoll.ErrUnsupported, format, args...)
	}
	low := func(format string, args ...any) error {
		return atoll.Errorf("create", s.Name, atoll.ErrInvalid, format, args...)
	}
	needsCgroups := "needs a writable cgroup: " + forCgroups() + ", or leave it out"
	switch {
	case r.Memory > 0 && !c.MemoryLimit:
		return no("a memory limit %s", needsCgroups)
	case r.Memory > 0 && r.Memory < leastMemory:
		return low("memory limit %s: gVisor itself needs some, use at least %s", r.Memory, leastMemory)
	case r.CPUs > 0 && r.CPUs < leastCPUs:
		return low("CPU limit %g: use at least %g", r.CPUs, leastCPUs)
	case r.Processes > 0 && r.Processes < leastProcesses:
		return low("process limit %d: use at least %d", r.Processes, leastProcesses)
	case r.CPUs > 0 && !c.CPULimit:
		return no("a CPU limit %s", needsCgroups)
	case s.Workspace != (atoll.WorkspaceRef{}):
		return no("workspaces: package workspace is the layer that has them")
	case s.Network.Mode == atoll.NetworkOn && !c.NetworkOn:
		return no("network on: not available here")
	case s.Network.Mode == atoll.NetworkEgress && !c.Egress:
		return no("network egress lists: not available here")
	case s.Network.Mode == atoll.NetworkNamed:
		return no("network %q: gVisor's sandboxes have networks of their own only, use mode on or egress", s.Network.Name)
	case s.Publishes():
		return no("published ports: dial instead, which needs no network (atoll port-forward)")
	case s.Cache:
		return no("a project's cache: use a named volume")
	case r.GPUs != "":
		return no("GPUs: not available here")
	case !c.Users && !passwd.IsRoot(s.User):
		return no("user %q: only root exists without privileges; run as root for other users", s.User)
	}
	return nil
}

// forCgroups says what it takes to have cgroups.
func forCgroups() string {
	if os.Geteuid() == 0 {
		return "mount /sys/fs/cgroup read-write here"
	}
	return "run as root"
}

// cgroup is the path of the sandbox's cgroup, "" where none can be made.
func (p *Provider) cgroup(id string) string {
	if !p.info.Caps.MemoryLimit && !p.info.Caps.CPULimit {
		return ""
	}
	return "/" + p.opts.Cgroup + id
}

// group is the sandbox's cgroup.
func (p *Provider) group(rec *statedir.Record) cgroup.Group {
	return cgroup.Open(cgroup.Root).Group(rec.Cgroup)
}

// probe finds out whether a keeper can be started, by starting one that only
// tries what it needs.
func (p *Provider) probe(ctx context.Context) atoll.Probe {
	helper, err := p.helper()
	if err != nil {
		return atoll.Probe{Reason: strings.TrimPrefix(err.Error(), "start: "), Fix: "go install with CGO_ENABLED=0, or run make build"}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, helper)
	cmd.Args[0] = sentry.ProbeArgv0
	cmd.Env = []string{}
	cmd.SysProcAttr = keeperAttr()
	out, err := cmd.CombinedOutput()
	if err != nil {
		reason := strings.TrimSpace(string(out))
		if reason == "" {
			reason = err.Error()
		}
		return atoll.Probe{Reason: "cannot make namespaces: " + reason, Fix: thisMachine().namespaceFix(err)}
	}
	probe := atoll.Probe{OK: true}
	if !p.info.Caps.MemoryLimit {
		probe.Notes = append(probe.Notes, "memory and CPU limits are not enforced: no writable cgroup ("+forCgroups()+")")
	}
	return probe
}

// A machine is what is looked at to find out why namespaces are denied.
type machine struct {
	root, admin bool                     // this process is root, may make namespaces
	container   bool                     // this is one of docker's
	setting     func(path string) string // of the kernel; "" when there is none
}

// thisMachine is the one that this process runs on.
func thisMachine() machine {
	return machine{
		root: os.Geteuid() == 0, admin: hasSysAdmin(), container: exists("/.dockerenv"),
		setting: func(path string) string {
			data, _ := os.ReadFile(path)
			return strings.TrimSpace(string(data))
		},
	}
}

// namespaceFix says what to do on a machine that denies namespaces with err.
func (m machine) namespaceFix(err error) string {
	switch {
	case m.root && !m.admin:
		return "run the container with --cap-add SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined, or outside of one"
	case m.setting("/proc/sys/user/max_user_namespaces") == "0":
		return "run: sudo sysctl -w user.max_user_namespaces=15000"
	case m.setting("/proc/sys/kernel/unprivileged_userns_clone") == "0":
		return "run: sudo sysctl -w kernel.unprivileged_userns_clone=1"
	case m.setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
		return "run: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 (or run as root)"
	case m.container:
		return "run the container with --security-opt seccomp=unconfined --security-opt apparmor=unconfined"
	case errors.Is(err, unix.EPERM):
		return "user namespaces are denied on this machine: run as root, or choose another provider with --provider"
	}
	return "run as root, or choose another provider with --provider"
}

// hasSysAdmin reports whether this process may make mount namespaces.
func hasSysAdmin() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&hdr, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}
