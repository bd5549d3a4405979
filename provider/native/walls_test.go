//go:build linux

package native_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
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

func TestReadOnlyMount(t *testing.T) { newLab(t).CheckReadOnlyMount() }

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
