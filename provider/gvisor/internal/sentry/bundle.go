//go:build linux

package sentry

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/config"
	runscflag "gvisor.dev/gvisor/runsc/flag"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

// rootCapabilities are the capabilities of root inside, which exist in the sentry only: the
// sentry itself holds none on the host. Package managers and daemons need them to change
// owners and users of files; users other than root have none.
var rootCapabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL",
	"CAP_NET_BIND_SERVICE", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}

// sentryOOM makes the kernel kill the sentry, and not its supervisor, first when the
// sandbox's memory is used up, so that the supervisor can report it.
var sentryOOM = 500

// runscConfig returns gVisor's configuration for a job.
func runscConfig(job *job, netns string) (*config.Config, error) {
	fs := runscflag.NewFlagSet("keeper", flag.ContinueOnError)
	config.RegisterFlags(fs)
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return nil, err
	}
	disk := job.Spec.Resources.Disk
	overlay := "root:dir=" + filepath.Join(job.Run, diskName)
	if disk > 0 {
		overlay += ",size=" + strconv.FormatInt(int64(disk), 10)
	}
	flags := map[string]string{
		"root":                    job.Run,
		"platform":                job.Platform,
		"network":                 "sandbox", // netstack over the interfaces of a namespace that has only lo, or our TAP
		"gofer-network-namespace": netns,
		"overlay2":                overlay,
		"dcache":                  strconv.FormatUint(cachedFiles(files.Max, job.Spec.Resources.Memory), 10),
		"host-uds":                "none",
		"host-fifo":               "none",
		"ignore-cgroups":          "true", // this process, and so its children, is in the sandbox's cgroup already
		"panic-log":               filepath.Join(job.Dir, logName),
		"rootless":                strconv.FormatBool(job.Rootless),
		"oci-seccomp":             "false",
		"watchdog-action":         "panic",
		"in-sandbox-cgroup":       "v2",
		"restore-spec-validation": "ignore",                                   // Backend.Restores has checked the mounts; limits may differ
		"host-settings":           "ignore",                                   // not ours to change, and checking them delays every start
		"sidecar-usage-policy":    "LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK", // the sentry is this binary, not one beside it
		"allow-flag-override":     "false",
	}
	if job.Debug {
		flags["debug"] = "true"
		flags["debug-log"] = filepath.Join(job.Dir, "debug") + "/"
	}
	for name, value := range flags {
		if err := fs.Set(name, value); err != nil {
			return nil, fmt.Errorf("gVisor flag %s=%s: %w", name, value, err)
		}
	}
	conf, err := config.NewFromFlags(fs)
	if err != nil {
		return nil, fmt.Errorf("gVisor configuration: %w", err)
	}
	return conf, nil
}

// maxCachedFiles is enough for most trees of source code.
const maxCachedFiles = 16384

// cachedFiles returns the number of files of the host that the sentry remembers when no program has them open. To open
// one of them again is nearly twice as fast. Each takes up to 4 KiB of the sandbox's memory, of which all together may take a
// sixteenth, and two of the descriptors that a process may have.
func cachedFiles(descriptors uint64, memory atoll.Bytes) uint64 {
	n := min(maxCachedFiles, descriptors/4)
	if memory > 0 {
		n = min(n, uint64(memory)/16/4096)
	}
	return n
}

// sharedMemory returns the size of /dev/shm in bytes, as on Linux: half of the memory that the sandbox may use.
func sharedMemory(limit atoll.Bytes) uint64 {
	var host unix.Sysinfo_t
	if limit == 0 && unix.Sysinfo(&host) == nil {
		return uint64(host.Totalram) * uint64(host.Unit) / 2
	}
	return uint64(max(limit/2, 32<<20))
}

// ociSpec returns the container that gVisor runs: the first process on the sandbox's root file
// system. Commands are executed in it later.
func ociSpec(job *job, root, netns string) *specs.Spec {
	s := &specs.Spec{
		Version:  specs.Version,
		Root:     &specs.Root{Path: root, Readonly: job.Spec.ReadOnlyRoot},
		Hostname: sandboxHostname(&job.Spec),
		Process: &specs.Process{
			Args:            []string{initDir + "/" + initName},
			Cwd:             "/",
			NoNewPrivileges: true,
			OOMScoreAdj:     &sentryOOM,
			Capabilities:    ociCaps(rootCapabilities),
			Rlimits:         []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 1024, Hard: 1 << 20}}, // as on Linux: some programs close all descriptors up to the soft limit
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
				{Type: specs.NetworkNamespace, Path: netns},
			},
			Resources: ociResources(job),
		},
	}
	if n := job.Spec.Resources.Processes; n > 0 {
		s.Process.Rlimits = append(s.Process.Rlimits, specs.POSIXRlimit{Type: "RLIMIT_NPROC", Soft: uint64(n), Hard: uint64(n)})
	}
	s.Mounts = []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc"},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		{Destination: cgroupDir, Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts"},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "nodev", "mode=1777", fmt.Sprintf("size=%d", sharedMemory(job.Spec.Resources.Memory))}},
	}
	for _, m := range job.Mounts {
		s.Mounts = append(s.Mounts, ociMount(m))
	}
	return s
}

func ociMount(m supervisor.Mount) specs.Mount {
	if m.Source == "" {
		size := m.Size
		if size == 0 {
			size = 64 << 20
		}
		return specs.Mount{Destination: m.Target, Type: "tmpfs", Source: "tmpfs",
			Options: []string{"nosuid", "nodev", "mode=1777", "size=" + strconv.FormatInt(int64(size), 10)}}
	}
	o := specs.Mount{Destination: m.Target, Type: "bind", Source: m.Source, Options: []string{"rbind", "rw"}}
	if m.ReadOnly {
		o.Options[1] = "ro"
	}
	return o
}

func ociCaps(names []string) *specs.LinuxCapabilities {
	return &specs.LinuxCapabilities{Bounding: names, Effective: names, Permitted: names}
}

// longestHostname is the number of bytes that a hostname may have.
const longestHostname = 64

// sandboxHostname returns the sandbox's hostname: its name, else the beginning of its id.
func sandboxHostname(spec *atoll.Spec) string {
	if spec.Name != "" {
		return strings.ReplaceAll(spec.Name[:min(len(spec.Name), longestHostname)], "_", "-")
	}
	return spec.ID[:12]
}

// writeBundle writes config.json, which the gofer and the sentry read from the
// bundle directory.
func writeBundle(dir string, spec *specs.Spec) error {
	data, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600)
}
