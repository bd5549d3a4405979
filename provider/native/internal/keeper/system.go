//go:build linux

package keeper

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
)

// maskedPaths are the paths in /proc that are empty inside: they tell of the host, or could harm it.
var maskedPaths = []string{
	"acpi", "asound", "interrupts", "kallsyms", "kcore", "key-users", "keys", "kmsg", "latency_stats", "pagetypeinfo", "sched_debug",
	"scsi", "slabinfo", "sysvipc", "timer_list", "timer_stats", "vmallocinfo", "zoneinfo", "config.gz", "driver", "mtrr", "modules",
}

// fixedPaths are the paths in /proc that are read-only inside.
var fixedPaths = []string{"bus", "fs", "irq", "sys", "sysrq-trigger"}

// filterExisting returns the paths that exist in /proc.
func filterExisting(paths []string) (list []string) {
	for _, name := range paths {
		if _, err := os.Lstat("/proc/" + name); err == nil {
			list = append(list, name)
		}
	}
	return list
}

// maxNested is the most namespaces of each kind in a sandbox whose programs may make some.
const maxNested = 256

// userLimits returns limits of all users of a sandbox together: of namespaces, which no process inside may make unless nested is set,
// and a part of what the kernel grants the user who runs Atoll to watch files, so that one sandbox does not use up all of it.
func userLimits(nested bool) (list []userLimit) {
	most := 0
	if nested {
		most = maxNested
	}
	for _, name := range []string{"cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"} {
		list = append(list, userLimit{"max_" + name + "_namespaces", most})
	}
	for _, name := range []string{"max_inotify_instances", "max_inotify_watches"} {
		data, err := os.ReadFile("/proc/sys/user/" + name)
		if err != nil {
			continue
		}
		if most, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil && most > 4 {
			list = append(list, userLimit{name, most / 4})
		}
	}
	return list
}

// devices lists the devices of a sandbox.
var devices = []string{"full", "null", "random", "tty", "urandom", "zero"}

// nestedProc is the directory in which a sandbox has all of /proc, for root inside only, if its programs may make namespaces: the kernel
// allows another /proc in these only if one is nowhere covered.
const nestedProc = "dev/.nested/proc"

// mountDevices mounts /dev, with nestedProc if nested is set.
func (r *root) mountDevices(nested bool) error {
	dev := filepath.Join(r.mergedPath(), "dev")
	if err := mountTmpfs(dev, r.ids, unix.MS_NOEXEC, "mode=0755", "size=64k"); err != nil {
		return err
	}
	return r.ids.actInside(func() error {
		if nested {
			if err := os.MkdirAll(filepath.Join(r.mergedPath(), nestedProc), 0o700); err != nil {
				return err
			}
		}
		for _, name := range []string{"mqueue", "pts", "shm"} {
			if err := os.Mkdir(filepath.Join(dev, name), 0o755); err != nil {
				return err
			}
		}
		for name, to := range map[string]string{
			"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx",
		} {
			if err := os.Symlink(to, filepath.Join(dev, name)); err != nil {
				return err
			}
		}
		for _, name := range devices {
			if err := os.WriteFile(filepath.Join(dev, name), nil, 0o666); err != nil {
				return err
			}
		}
		return nil
	})
}

// bindDevices mounts the devices themselves. It needs the rights of this process.
func (r *root) bindDevices() error {
	for _, name := range devices {
		target := filepath.Join(r.mergedPath(), "dev", name)
		if err := unix.Mount(filepath.Join("/dev", name), target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount /dev/%s: %w", name, err)
		}
	}
	return nil
}

// mountSys mounts /sys: only the files that programs read to learn about their processors.
func (r *root) mountSys(cpus int) error {
	sys := filepath.Join(r.mergedPath(), "sys")
	if err := mountTmpfs(sys, r.ids, unix.MS_NOEXEC, "mode=0555", "size=256k"); err != nil {
		return err
	}
	files := map[string]string{"kernel/mm/transparent_hugepage/hpage_pmd_size": "2097152\n"}
	for _, name := range []string{"online", "possible", "present"} {
		files["devices/system/cpu/"+name] = cpuList(cpus)
	}
	err := r.ids.actInside(func() error {
		for name, text := range files {
			name = filepath.Join(sys, name)
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(name, []byte(text), 0o444); err != nil {
				return err
			}
		}
		return os.MkdirAll(filepath.Join(sys, "fs/cgroup"), 0o755)
	})
	if err != nil {
		return err
	}
	if err := unix.Mount("", sys, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("make /sys read-only: %w", err)
	}
	return nil
}

// cpuList returns a list of the first n processors in the kernel's format.
func cpuList(n int) string {
	if n == 1 {
		return "0\n"
	}
	return fmt.Sprintf("0-%d\n", n-1)
}

// chooseCPUs returns n of the processors that this process may use, other ones each time; nil for all.
func chooseCPUs(n int) *unix.CPUSet {
	var all, some unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil || n >= all.Count() {
		return nil
	}
	var list []int
	for i := range len(all) * 64 {
		if all.IsSet(i) {
			list = append(list, i)
		}
	}
	first := rand.IntN(len(list))
	for i := range n {
		some.Set(list[(first+i)%len(list)])
	}
	return &some
}

// sharedMemory returns the size of /dev/shm in bytes, as on Linux: half of the memory that the sandbox may use.
func sharedMemory(limit atoll.Bytes) uint64 {
	var host unix.Sysinfo_t
	if limit <= 0 && unix.Sysinfo(&host) == nil {
		return uint64(host.Totalram) * uint64(host.Unit) / 2
	}
	return uint64(max(limit/2, 32<<20))
}
