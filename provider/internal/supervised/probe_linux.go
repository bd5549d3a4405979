package supervised

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/cgroup"
)

// Try finds out whether a supervisor could be started. It starts a process in its place,
// with the given argv[0], which only tries what a supervisor needs (see
// supervisor.TryMounts): that process exits with 0, or prints the reason why it cannot. ids
// are those of Options.
func Try(ctx context.Context, helper, argv0 string, ids *SubIDs) atoll.Probe {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, helper)
	cmd.Args[0] = argv0
	cmd.Env = []string{}
	out, err := runWithIDs(cmd, ids)
	if err == nil {
		return atoll.Probe{OK: true}
	}
	reason := strings.TrimSpace(string(out))
	if reason == "" {
		reason = err.Error()
	}
	return atoll.Probe{Reason: "cannot make namespaces: " + reason, Fix: readHostFacts().namespaceFix(err)}
}

// runWithIDs runs a command that is started like a supervisor, and returns its output.
func runWithIDs(cmd *exec.Cmd, ids *SubIDs) ([]byte, error) {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = supervisorAttr(nil, ids)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	mapped := ids.mapProcess(cmd.Process.Pid)
	if mapped != nil {
		_ = cmd.Process.Kill()
	}
	if err := cmd.Wait(); mapped == nil {
		return out.Bytes(), err
	}
	return nil, mapped
}

// LimitNotes says which limits sandboxes whose cgroups are in groups do not have, and how to get them.
func LimitNotes(groups cgroup.Base) []string {
	lack := cgroup.Open(cgroup.Root).Lack
	switch {
	case !groups.Memory && !groups.CPU:
		return []string{"memory and CPU limits are not enforced: they need " + lack(groups, "memory")}
	case !groups.Memory:
		return []string{"memory limits are not enforced: they need " + lack(groups, "memory")}
	case !groups.CPU:
		return []string{"CPU limits are not enforced: they need " + lack(groups, "cpu")}
	}
	return nil
}

// hostFacts holds the facts that decide why a machine denies namespaces.
type hostFacts struct {
	root, admin bool                     // this process is root, may make namespaces
	container   bool                     // this process runs in a Docker container
	setting     func(path string) string // reads a kernel setting; "" if there is none
}

// readHostFacts returns the facts of this process and its machine.
func readHostFacts() hostFacts {
	return hostFacts{
		root: os.Geteuid() == 0, admin: hasSysAdmin(), container: pathExists("/.dockerenv"),
		setting: func(path string) string {
			data, _ := os.ReadFile(path)
			return strings.TrimSpace(string(data))
		},
	}
}

// namespaceFix says how to make namespaces work on a machine that denies them with err.
func (m hostFacts) namespaceFix(err error) string {
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
