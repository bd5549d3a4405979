//go:build linux

package native_test

import (
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// A mountPoint is a line of mountinfo.
type mountPoint struct {
	root, target, kind string
	options            []string
}

// listMountPoints returns the mounts that the inside sees.
func (l *lab) listMountPoints(sb atoll.Sandbox) (list []mountPoint) {
	l.T.Helper()
	for line := range strings.Lines(l.Sh(sb, "cat /proc/self/mountinfo")) {
		before, after, _ := strings.Cut(line, " - ")
		f := strings.Fields(before)
		list = append(list, mountPoint{f[3], f[4], strings.Fields(after)[0], strings.Split(f[5], ",")})
	}
	return list
}

// Nothing of the host is mounted but what the allow-list names, and that is read-only.
func TestMounts(t *testing.T) {
	l := newLab(t)
	dir := t.TempDir()
	spec := atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountBind, Source: dir, Target: "/shared"}, {Type: atoll.MountTmpfs, Target: "/memory"}}}
	if caps := l.Info().Caps; caps.MemoryLimit && caps.CPULimit {
		spec.Resources = atoll.Resources{Memory: 256 << 20, CPUs: 1}
	}
	sb := l.NewSandbox(spec)
	covered := []string{"/proc/meminfo", "/proc/cpuinfo", "/proc/stat"}
	for _, m := range l.listMountPoints(sb) {
		want, device := "nosuid", m.root == "/"+path.Base(m.target)
		switch top := strings.Split(m.target, "/")[1]; {
		case m.target == "/", m.target == "/"+top && slices.Contains([]string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"}, top):
			if m.kind != "overlay" {
				t.Errorf("%s is of type %s", m.target, m.kind)
			}
			want = "nosuid nodev"
		case top == "etc", top == "usr":
			want = "ro nosuid nodev"
		case slices.Contains([]string{"/dev/full", "/dev/null", "/dev/random", "/dev/tty", "/dev/urandom", "/dev/zero"}, m.target) && device:
			want = ""
		case m.target == "/dev", m.target == "/dev/pts":
			want = "nosuid noexec"
		case m.target == "/dev/mqueue", m.target == "/dev/shm", m.target == "/memory":
			want = "nosuid nodev"
		case m.target == "/work", m.target == "/shared":
			want = "nosuid nodev"
		case m.target == "/sys":
			want = "ro nosuid nodev noexec"
		case m.target == "/proc": // a proc, on the directory with the files that cover some of it
			want = "nosuid nodev"
		case slices.Contains(covered, m.target):
			want = "ro nosuid nodev"
		case top == "proc" && m.root == "/null":
			want = ""
		case top == "proc":
			want = "ro nosuid nodev noexec"
		default:
			t.Errorf("unexpected mount %+v", m)
		}
		for option := range strings.FieldsSeq(want) {
			if !slices.Contains(m.options, option) {
				t.Errorf("%s lacks %s: %v", m.target, option, m.options)
			}
		}
	}
	for _, script := range []string{"echo x > /sys/x", "echo 0 > /sys/devices/system/cpu/online", "chmod 777 /sys", "echo 0 > /proc/sys/vm/swappiness", "echo x > /proc/meminfo", "chmod 0 /dev/null", "chown 1 /dev/zero", "rm /dev/null", "umount /proc", "mkdir /proc/x"} {
		l.FailSh(sb, script)
	}
	for _, name := range []string{"acpi", "interrupts", "kallsyms", "kcore", "keys", "key-users", "kmsg", "slabinfo", "sysvipc", "timer_list", "vmallocinfo", "config.gz"} {
		if got := l.Sh(sb, "cat /proc/"+name+" 2>/dev/null | head -c 100; ls -A /proc/"+name+"/ 2>/dev/null || true"); got != "" {
			t.Errorf("/proc/%s has %q", name, got)
		}
	}
	want := "/sys/devices/system/cpu/online /sys/devices/system/cpu/possible /sys/devices/system/cpu/present /sys/kernel/mm/transparent_hugepage/hpage_pmd_size"
	if got := l.Sh(sb, "find /sys -type f | sort | tr '\\n' ' '"); strings.TrimSpace(got) != want {
		t.Errorf("files in /sys: %s", got)
	}
}
