//go:build linux

package native_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
	"github.com/seed46cd37a8/atoll/provider/native"
	"github.com/seed46cd37a8/atoll/provider/native/internal/seccomp"
)

// The image "host" shows the machine's programs and nothing of its people.
func TestHostIsOutOfSight(t *testing.T) {
	t.Setenv("ATOLL_TEST_SECRET", "the caller's own")
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{})
	for _, dir := range []string{"/root", "/home", "/var/lib", "/run", "/opt", "/srv", "/mnt", "/media", "/boot", "/var/log", "/var/spool", "/etc/ssh", "/etc/ssl/private", "/var/run", "/usr/src", "/usr/local/var"} {
		inside := strings.Fields(l.Sh(sb, "ls -A "+dir+" 2>/dev/null || true"))
		onHost, err := os.ReadDir(dir)
		if err != nil {
			continue // not there, or not for this user to see
		}
		for _, e := range onHost {
			if slices.Contains(inside, e.Name()) && !(dir == "/var/lib" && e.Name() == "dpkg") {
				t.Errorf("%s/%s of the host is visible inside", dir, e.Name())
			}
		}
	}
	for _, file := range []string{"/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/machine-id", "/etc/environment", "/usr/local/etc/npmrc", "/usr/etc/npmrc", "/dev/mem", "/dev/kvm", "/dev/vda", "/dev/net/tun", "/.dockerenv"} {
		l.FailSh(sb, "cat "+file)
	}
	if got := l.Sh(sb, `find / -path /usr -prune -o -path /proc -prune -o '(' -type s -o -name 'keeper.*' ')' -print`); got != "" {
		t.Errorf("sockets or files of the supervisor are visible inside: %s", got)
	}
	for _, name := range []string{"/proc/*/environ", "/proc/*/cmdline", "/proc/cmdline"} {
		got := l.Sh(sb, "cat "+name+" 2>/dev/null | tr '\\0' ' '")
		for _, secret := range []string{"the caller's own", l.opts.Dir, l.opts.RunDir, "atoll-native"} {
			if strings.Contains(got, secret) {
				t.Errorf("%s tells %q", name, secret)
			}
		}
	}
	if n := l.Sh(sb, "ls -d /proc/[0-9]* | wc -l"); len(n) > 1 {
		t.Errorf("%s processes are seen inside", n)
	}
	if got := l.Sh(sb, "stat -c %a /tmp /var/tmp /root | tr '\\n' ' '"); got != "1777 1777 700 " {
		t.Errorf("modes of /tmp, /var/tmp and /root: %s", got)
	}
	host, err := os.Hostname()
	if got := l.Sh(sb, "hostname || cat /etc/hostname"); err == nil && got == host {
		t.Errorf("the hostname is the host's")
	}
}

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

// Root inside has the rights of a sandbox, other users have none, and no program gives them more.
func TestRights(t *testing.T) {
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{Mounts: []atoll.Mount{supervisedtest.ProgramMount(t)}})
	const rights = "00000000000005fb" // chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service
	const none = "0000000000000000"
	fields := "grep -E '^(Cap|NoNewPrivs|Seccomp)' /proc/self/status | tr -s '\\t\\n' '  '"
	format := "CapInh: %[1]s CapPrm: %[2]s CapEff: %[2]s CapBnd: " + rights + " CapAmb: %[1]s NoNewPrivs: 1 Seccomp: 2 Seccomp_filters: 1"
	if got, want := strings.TrimSpace(l.Sh(sb, fields)), fmt.Sprintf(format, none, rights); got != want {
		t.Errorf("root has\n%s, want\n%s", got, want)
	}
	if !l.Info().Caps.Users {
		return
	}
	asUser := func(args ...string) string {
		return strings.TrimSpace(l.Run(sb, &atoll.Command{Args: args, User: "1000"}))
	}
	if got, want := asUser("sh", "-c", fields), fmt.Sprintf(format, none, none); got != want {
		t.Errorf("a user has\n%s, want\n%s", got, want)
	}
	for _, dir := range []string{"/tmp", "/work", "/usr/bin", "/dev/shm"} {
		program := dir + "/own-id"
		l.Sh(sb, "cp /usr/bin/id "+program+" && chmod 4755 "+program)
		if got := asUser(program, "-u"); got != "1000" {
			t.Errorf("a set-user-ID program in %s runs as %s", dir, got)
		}
	}
}

// A callReport has the errors of system calls.
type callReport struct {
	Filtered map[uint32]syscall.Errno // by number: ENOSYS, unless the sandbox's filter has another error
	Absent   map[uint32]syscall.Errno // of calls that are made, and that do not exist inside
}

// The filter of a sandbox answers each system call as the package of its tables promises.
func TestSystemCalls(t *testing.T) {
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{Mounts: []atoll.Mount{supervisedtest.ProgramMount(t)}})
	groups, names := seccomp.Groups(), seccomp.Names()
	args, newest := []string{}, uint32(0)
	for n := range names {
		newest = max(newest, n)
	}
	newest += 20
	for n := range newest {
		if name := names[n]; name == "" || name == "clone3" {
			args = append(args, fmt.Sprint(n))
		}
	}
	var report callReport
	l.Must("report", json.Unmarshal([]byte(l.Run(sb, supervisedtest.ProgramCommand("calls", append([]string{fmt.Sprint(newest)}, args...)...))), &report))
	count := map[syscall.Errno]int{}
	for n := range newest {
		name := names[n]
		i := slices.IndexFunc(groups, func(g seccomp.Group) bool { return slices.Contains(g.Calls, name) })
		want := syscall.ENOSYS // of the program's own filter: the sandbox's allows it
		switch {
		case name == "", name == "clone3":
			if report.Absent[n] != syscall.ENOSYS {
				t.Errorf("call %d %s exists: %v", n, name, report.Absent[n])
			}
		case name == "uprobe", name == "uretprobe": // the kernel asks no filter, and raises a signal
			continue
		case name == "socket", name == "socketpair": // of a family that is not in the list
			want = syscall.EAFNOSUPPORT
		case groups[i].Access != seccomp.Allowed, name == "clone": // with flags for namespaces
			want = syscall.EPERM
		}
		if got := report.Filtered[n]; got != want {
			t.Errorf("call %d %s: %v, want %v", n, name, got, want)
		}
		count[want]++
	}
	t.Logf("%d calls: %v", newest, count)
}

// callsProgram makes all system calls below args[0] under a filter of its own that lets none through, and those in the rest of args
// in earnest, with senseless arguments. The kernel prefers the answer of the sandbox's filter.
func callsProgram(args []string) error {
	runtime.LockOSThread()
	var numbers []uint32
	for _, a := range args {
		n, err := strconv.ParseUint(a, 10, 32)
		if err != nil {
			return err
		}
		numbers = append(numbers, uint32(n))
	}
	const minusOne, mark = math.MaxUint, 0x41544f4c
	call := func(n uint32, last uintptr) syscall.Errno {
		_, _, errno := unix.RawSyscall6(uintptr(n), minusOne, minusOne, minusOne, minusOne, minusOne, last)
		return errno
	}
	report := callReport{map[uint32]syscall.Errno{}, map[uint32]syscall.Errno{}}
	for _, n := range numbers[1:] {
		report.Absent[n] = call(n, minusOne)
	}
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 16 + 5*8}, // the last argument
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: mark, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_TRACE}, // without a tracer the call is ENOSYS
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return errno
	}
	for n := range numbers[0] {
		if n != unix.SYS_UPROBE && n != unix.SYS_URETPROBE {
			report.Filtered[n] = call(n, mark)
		}
	}
	return json.NewEncoder(os.Stdout).Encode(report)
}

// As root, each sandbox has users of its own on the host, and files in volumes belong to the users of the same number there.
func TestOwners(t *testing.T) {
	testenv.Need(t, testenv.Root)
	l := newLab(t)
	shared := t.TempDir()
	l.Must("chmod", os.Chmod(shared, 0o777))
	users := map[uint32]bool{0: true}
	for range 2 {
		sb := l.NewSandbox(atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountBind, Source: shared, Target: "/shared"}}})
		l.StartCommand(sb, &atoll.Command{Args: []string{"sleep", "1000"}})
		pids := l.sandboxProcesses(sb)
		uid := userOf(t, pids["first process"])
		if users[uid] || uid < 0x7000_0000 {
			t.Errorf("a sandbox is user %d on the host", uid)
		}
		users[uid] = true
		if got := userOf(t, pids["sleep"]); got != uid {
			t.Errorf("a command of root is user %d on the host, want %d", got, uid)
		}
		l.Sh(sb, "echo > /work/root; echo > /work/user; chown 1000:1001 /work/user; echo > /root/root; echo > /etc/user; chown 1000:1001 /etc/user; echo > /shared/root; chown 1000:1001 /shared/root")
		changes := filepath.Join(l.opts.Dir, "sandboxes", sb.ID())
		for name, want := range map[string][2]uint32{
			l.VolumePath(sb, "root"):                       {0, 0},
			l.VolumePath(sb, "user"):                       {1000, 1001},
			findFile(t, changes, "root/root"):              {0, 0},
			findFile(t, changes, "etc/user"):               {1000, 1001},
			filepath.Join(shared, "root"):                  {1000, 1001},
			filepath.Dir(findFile(t, changes, "etc/user")): {0, 0},
		} {
			info, err := os.Lstat(name)
			if err != nil {
				t.Error(err)
				continue
			}
			if st := info.Sys().(*syscall.Stat_t); st.Uid != want[0] || st.Gid != want[1] {
				t.Errorf("%s belongs to %d:%d, want %v", name, st.Uid, st.Gid, want)
			}
		}
		if got := l.Sh(sb, "stat -c %u:%g /work/user /etc/user /usr/bin/env /etc/passwd | tr '\\n' ' '"); got != "1000:1001 1000:1001 0:0 0:0 " {
			t.Errorf("owners inside: %s", got)
		}
		l.Must("chmod", os.Remove(filepath.Join(shared, "root")))
	}
}

// userOf returns the user of a process of the host.
func userOf(t *testing.T, pid int) (uid uint32) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := strings.Cut(string(status), "\nUid:")
	if err == nil {
		_, err = fmt.Sscan(rest, &uid)
	}
	if err != nil {
		t.Fatalf("process %d: %v", pid, err)
	}
	return uid
}

// findFile returns the path below dir that ends with suffix.
func findFile(t *testing.T, dir, suffix string) (found string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(name, "/"+suffix) {
			found = name
		}
		return err
	})
	if err != nil || found == "" {
		t.Errorf("no %s in %s: %v", suffix, dir, err)
	}
	return found
}

// The first process is out of reach: root inside can neither read nor change what it does.
func TestFirstProcess(t *testing.T) {
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{})
	p := l.StartCommand(sb, &atoll.Command{Args: []string{"sleep", "1000"}})
	for _, cmd := range []string{"readlink /proc/1/fd/3", "head -c 1 /proc/1/fd/3", "echo x > /proc/1/fd/3", "cat /proc/1/maps", "head -c 1 /proc/1/mem", "cat /proc/1/environ", "readlink /proc/1/exe", "ls /proc/1/root/", "echo x > /proc/1/comm"} {
		l.FailSh(sb, "timeout 5 sh -c '"+cmd+"'")
	}
	if hasRight(t, unix.CAP_SYS_RESOURCE) { // the kernel then ends programs inside before all others
		for _, name := range []string{"/proc/1", "/proc/self"} {
			l.FailSh(sb, "echo 499 > "+name+"/oom_score_adj")
		}
	}
	// Signals from inside, which it has no handlers for, do nothing.
	l.Sh(sb, "for s in KILL STOP TERM INT HUP SEGV CHLD TSTP; do kill -$s 1; done")
	if got := l.Sh(sb, "echo works"); got != "works" {
		t.Errorf("after signals: %q", got)
	}
	if st := l.Status(sb); st.State != atoll.StateRunning {
		t.Errorf("after signals: %s (%s)", st.State, st.Reason)
	}
	l.Must("kill", p.Signal(l.Context(), atoll.SIGKILL))
}

// hasRight reports whether this process has a capability.
func hasRight(t *testing.T, capability int) bool {
	t.Helper()
	header, sets := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	if err := unix.Capget(&header, &sets[0]); err != nil {
		t.Fatal(err)
	}
	return sets[capability/32].Effective&(1<<(capability%32)) != 0
}

// forbiddenActions are actions that root of a machine may do and root of a sandbox may not.
// None would do harm if it succeeded.
var forbiddenActions = map[string]func() error{
	"mount":   func() error { return unix.Mount("none", "/mnt", "tmpfs", 0, "") },
	"bind":    func() error { return unix.Mount("/etc", "/mnt", "", unix.MS_BIND, "") },
	"remount": func() error { return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND, "") },
	"disk": func() error {
		if err := unix.Mknod("/tmp/disk", unix.S_IFBLK|0o600, 8<<8); err != nil {
			return err
		}
		_, err := os.ReadFile("/tmp/disk")
		return err
	},
	"module":    func() error { return unix.InitModule([]byte("no module"), "") },
	"reboot":    func() error { return unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_ON) },
	"hostname":  func() error { return unix.Sethostname([]byte("mine")) },
	"chroot":    func() error { return unix.Chroot("/tmp") },
	"namespace": func() error { return unix.Unshare(unix.CLONE_NEWUSER) },
	"clock": func() error {
		now := unix.NsecToTimeval(time.Now().UnixNano())
		return unix.Settimeofday(&now)
	},
	"packets": func() error {
		_, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		return err
	},
	"raw": func() error {
		_, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP)
		return err
	},
	"priority": func() error { return unix.Setpriority(unix.PRIO_PROCESS, 0, -5) },
	"capability": func() error { // of a program that is executed
		data := []byte{1, 0, 0, 2, 0xfb, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} // version 2, effective
		return unix.Setxattr("/usr/bin/env", "security.capability", data, 0)
	},
	"interface": func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return nil
		}
		lo, err := unix.NewIfreq("lo")
		if err != nil {
			return nil
		}
		lo.SetUint16(0)
		return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
	},
	"typing": func() error {
		key := byte('x')
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, 0, unix.TIOCSTI, uintptr(unsafe.Pointer(&key)))
		if errno != 0 {
			return errno
		}
		return nil
	},
}

// powerProgram tries one of forbiddenActions and says whether it was denied: to this user,
// or because this kernel does not have it.
func powerProgram(args []string) error {
	err := forbiddenActions[args[0]]()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.ESOCKTNOSUPPORT) {
		return fmt.Errorf("denied: %w", err)
	}
	return err
}

// Root inside has no power over the host, nor over the sandbox's surroundings.
func TestRootInsideIsPowerless(t *testing.T) {
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{Mounts: []atoll.Mount{supervisedtest.ProgramMount(t)}})
	if got := l.Sh(sb, "id -u"); got != "0" {
		t.Fatalf("uid %s", got)
	}
	for name := range forbiddenActions {
		var said bytes.Buffer
		cmd := supervisedtest.ProgramCommand("power", name)
		cmd.Stderr = &said
		err := atoll.Run(l.Context(), sb, cmd)
		if exit, ok := errors.AsType[*atoll.ExitError](err); !ok || exit.Exit.Code != 1 || !strings.Contains(said.String(), "denied: ") {
			t.Errorf("%s: %v, want it denied\n%s", name, err, &said)
		}
	}
	for _, script := range []string{"echo 1 > /proc/sys/kernel/panic", "echo b > /proc/sysrq-trigger"} {
		l.FailSh(sb, script)
	}
	l.Sh(sb, "true") // it still works
	// Writes to the machine's directories stay inside.
	l.Sh(sb, "echo x > /usr/bin/atoll-was-here; echo x > /etc/atoll-was-here; rm -f /usr/bin/env; cat /usr/bin/atoll-was-here")
	for _, path := range []string{"/usr/bin/atoll-was-here", "/etc/atoll-was-here"} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s is on the host", path)
		}
	}
	if _, err := os.Lstat("/usr/bin/env"); err != nil {
		t.Errorf("the host's own: %v", err)
	}
}

// A read-only mount is read-only for programs inside and for Files.
func TestReadOnlyMount(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("as it was"), 0o666); err != nil {
		t.Fatal(err)
	}
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{Mounts: []atoll.Mount{
		{Type: atoll.MountBind, Source: dir, Target: "/shared", ReadOnly: true},
		{Type: atoll.MountBind, Source: filepath.Join(dir, "file"), Target: "/single", ReadOnly: true},
	}})
	for _, script := range []string{
		"echo x > /shared/file", "echo x >> /single", "rm /shared/file", "touch /shared/new", "mv /shared/file /shared/moved",
		"chmod 0 /shared/file", "mount -o remount,rw /shared", "ln /shared/file /shared/link",
	} {
		l.FailSh(sb, script)
	}
	for _, name := range []string{"/shared/file", "/shared/new"} {
		supervisedtest.WantKind(t, "write "+name, atoll.WriteFile(l.Context(), sb, name, []byte("x"), 0), atoll.ErrDenied)
	}
	if got := l.Sh(sb, "cat /shared/file /single"); got != "as it wasas it was" {
		t.Errorf("inside: %q", got)
	}
	if got := strings.Join(supervisedtest.ListDir(t, dir), " "); got != "file" {
		t.Errorf("on the host: %s", got)
	}
}

// Options.HostPaths are shown, read-only, in addition to the system's own paths.
func TestHostPaths(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tool"), []byte("shown"), 0o644); err != nil {
		t.Fatal(err)
	}
	l := newLab(t, func(o *native.Options) { o.HostPaths = []string{dir} })
	sb := l.NewSandbox(atoll.Spec{})
	if got := l.Sh(sb, "cat "+dir+"/tool"); got != "shown" {
		t.Errorf("inside: %q", got)
	}
	l.FailSh(sb, "echo x > "+dir+"/tool")
	for _, path := range []string{"relative", "/"} {
		_, err := native.New(native.Options{Dir: filepath.Join(t.TempDir(), "state"), HostPaths: []string{path}})
		supervisedtest.WantKind(t, "host path "+path, err, atoll.ErrInvalid, path)
	}
}
