//go:build linux

package gvisor_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/gvisor"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
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
	for _, file := range []string{"/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/machine-id", "/etc/environment", "/usr/local/etc/npmrc", "/usr/etc/npmrc", "/proc/kcore", "/dev/mem", "/dev/kvm", "/dev/vda", "/.dockerenv"} {
		l.FailSh(sb, "cat "+file)
	}
	if got := l.Sh(sb, `find / -path /usr -prune -o -path /proc -prune -o '(' -type s -o -name 'supervisor.*' -o -name 'runsc-*' ')' -print`); got != "" {
		t.Errorf("sockets or files of the supervisor are visible inside: %s", got)
	}
	for _, name := range []string{"/proc/*/environ", "/proc/*/cmdline", "/proc/mounts", "/proc/self/mountinfo", "/proc/cmdline"} {
		got := l.Sh(sb, "cat "+name+" 2>/dev/null | tr '\\0' ' '")
		for _, secret := range []string{"the caller's own", l.opts.Dir, l.opts.RunDir, "atoll-keeper"} {
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

// The machine's programs find the harmless files that they need to become another user, and say what to do where packages would be
// installed.
func TestHostProgramsFindTheirFiles(t *testing.T) {
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{})
	if _, err := os.Stat("/usr/bin/su"); err == nil && l.Info().Caps.Users {
		if got := l.Sh(sb, "su nobody -s /bin/sh -c 'id -u'; runuser -u nobody -- id -u"); got != "65534\n65534" {
			t.Errorf("su and runuser printed %q", got)
		}
		l.FailSh(sb, "runuser -u nobody -- su root -c true </dev/null")
	}
	if _, err := os.Stat("/usr/bin/apt-get"); err == nil {
		if got := l.Sh(sb, "apt-get install hello 2>&1; echo $?"); !strings.Contains(got, "--image") || !strings.HasSuffix(got, "100") {
			t.Errorf("apt-get printed %q", got)
		}
	}
	if got := l.Sh(sb, "cd /var/run && pwd -P"); got != "/run" {
		t.Errorf("/var/run is %q", got)
	}
}

// The sandbox's programs do not run on the host's kernel.
func TestKernelIsGVisor(t *testing.T) {
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{})
	if got := l.Sh(sb, "dmesg"); !strings.Contains(got, "gVisor") {
		t.Errorf("dmesg:\n%s", got)
	}
	version, err := os.ReadFile("/proc/version")
	if err != nil {
		t.Fatal(err)
	}
	if got := l.Sh(sb, "cat /proc/version"); got == strings.TrimSpace(string(version)) {
		t.Errorf("/proc/version is the host's: %s", got)
	}
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
	"module": func() error { return unix.InitModule([]byte("no module"), "") },
	"reboot": func() error { return unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_ON) },
	"swap": func() error {
		name, err := unix.BytePtrFromString("/none")
		if err != nil {
			return err
		}
		if _, _, errno := unix.Syscall(unix.SYS_SWAPOFF, uintptr(unsafe.Pointer(name)), 0, 0); errno != 0 {
			return errno
		}
		return nil
	},
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
}

// powerProgram tries one of forbiddenActions and says whether it was denied: to this user,
// or because this kernel does not have it.
func powerProgram(args []string) error {
	err := forbiddenActions[args[0]]()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EAFNOSUPPORT),
		errors.Is(err, unix.ESOCKTNOSUPPORT), errors.Is(err, unix.ENXIO):
		return fmt.Errorf("denied: %w", err)
	}
	return err
}

// Root inside has no power over the host, nor over the sandbox's surroundings.
// The first process is out of reach: root inside can neither read nor change what it does.
func TestFirstProcess(t *testing.T) {
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{})
	p, err := sb.Exec(l.Context(), &atoll.Command{Args: []string{"sleep", "1000"}, Durable: true})
	l.Must("exec", err)
	for _, cmd := range []string{"readlink /proc/1/fd/3", "head -c 1 /proc/1/fd/3", "echo x > /proc/1/fd/3", "echo x > /proc/1/fd/4", "cat /proc/1/maps", "head -c 1 /proc/1/mem", "cat /proc/1/environ"} {
		l.FailSh(sb, "timeout 5 sh -c '"+cmd+"'")
	}
	testenv.Need(t, testenv.Program("python3", "python3"))
	l.Sh(sb, `python3 -c '
import ctypes
libc = ctypes.CDLL(None)
class iov(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
buf = ctypes.create_string_buffer(8)
ours, theirs = iov(ctypes.addressof(buf), 8), iov(0x600000, 8)
assert libc.ptrace(16, 1, 0, 0) == -1
assert libc.ptrace(0x4206, 1, 0, 0) == -1
assert libc.syscall(438, libc.syscall(434, 1, 0), 3, 0) == -1
assert libc.process_vm_readv(1, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0) == -1
assert libc.process_vm_writev(1, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0) == -1
'`)
	// It continues if root stops it.
	l.Sh(sb, "kill -STOP 1")
	again, err := sb.Exec(l.Context(), &atoll.Command{Args: []string{"true"}, Durable: true})
	l.Must("exec", err)
	if exit, err := again.Wait(l.Context()); err != nil || exit.Code != 0 {
		t.Errorf("a durable command after kill -STOP 1: %v, %v", exit, err)
	}
	// And ends the sandbox if root kills it.
	_, _ = sb.Exec(l.Context(), &atoll.Command{Args: []string{"sh", "-c", "kill -KILL 1"}})
	if exit, err := p.Wait(l.Context()); err == nil && exit.Code != 137 {
		t.Errorf("after the end of the first process: %v", exit)
	}
	l.Poll(func() error {
		st, err := sb.Status(l.Context())
		if err == nil && st.State != atoll.StateFailed {
			err = fmt.Errorf("the sandbox is %s", st.State)
		}
		return err
	})
}

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

// The output of commands costs the supervisor memory, which is the sandbox's: the kernel
// must not kill the supervisor for it.
func TestOutputCostsNobodysLife(t *testing.T) {
	l := newLab(t)
	if !l.Info().Caps.MemoryLimit {
		t.Skip("no memory limits here")
	}
	sb := l.NewSandbox(atoll.Spec{Resources: atoll.Resources{Memory: 64 << 20}})
	const runs = 45
	for range runs { // each leaves a MiB, and all of them less than the limit
		p, err := sb.Exec(l.Context(), &atoll.Command{Args: []string{"head", "-c", "1000000", "/dev/zero"}})
		l.Must("exec", err)
		_, err = p.Wait(l.Context())
		l.Must("wait", err)
	}
	list, err := atoll.Processes(l.Context(), sb)
	if err != nil || len(list) != runs {
		t.Fatalf("%d processes, %v, want %d", len(list), err, runs)
	}
	var kept int64
	for _, st := range list {
		kept += st.Stdout.Written - st.Stdout.Oldest
	}
	if last := list[runs-1].Stdout; last.Oldest != 0 || kept > 64<<20/16 || kept < 2_000_000 {
		t.Errorf("%d bytes of all output are kept, and all but %d of the last", kept, last.Oldest)
	}
}

// A socket of the host in a shared directory leads nowhere, and neither does an abstract
// one.
func TestSocketsOfTheHost(t *testing.T) {
	dir := supervisedtest.ShortDir(t)
	abstract := fmt.Sprintf("@atoll-test-%d", os.Getpid())
	for _, addr := range []string{filepath.Join(dir, "sock"), abstract} {
		s, err := net.Listen("unix", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		go func() {
			for {
				c, err := s.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, "the host speaks")
				c.Close()
			}
		}()
	}
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountBind, Source: dir, Target: "/shared"}, supervisedtest.ProgramMount(t)}})
	for _, addr := range []string{"/shared/sock", abstract} {
		out, err := atoll.Output(l.Context(), sb, supervisedtest.ProgramCommand("dial", "unix", addr))
		if err == nil || len(out) > 0 {
			t.Errorf("%s is reachable: %q, %v", addr, out, err)
		}
	}
}

// Neither does a pipe of the host, or one made inside, connect the two.
func TestPipesOfTheHost(t *testing.T) {
	dir := supervisedtest.ShortDir(t)
	name := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(name, 0o666); err != nil {
		t.Fatal(err)
	}
	pipe, err := os.OpenFile(name, os.O_RDWR, 0) // both ends, so that nobody has to wait for the other
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountBind, Source: dir, Target: "/shared"}}})
	l.FailSh(sb, "timeout 2 sh -c 'echo x > /shared/pipe'")
	if err := pipe.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := pipe.Read(make([]byte, 1)); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("from inside came %d bytes, %v", n, err)
	}
	if _, err := pipe.WriteString("the host speaks"); err != nil {
		t.Fatal(err)
	}
	if got := l.Sh(sb, "timeout 2 head -c 1 /shared/pipe || true"); got != "" {
		t.Errorf("from the host came %q", got)
	}
	if l.Sh(sb, "mkfifo /shared/made && echo made || true") == "made" {
		if info, err := os.Lstat(filepath.Join(dir, "made")); err == nil && info.Mode().Type() == fs.ModeNamedPipe {
			t.Error("a pipe made inside works as one of the host")
		}
	}
}

func TestReadOnlyMount(t *testing.T) { newLab(t).CheckReadOnlyMount() }

// A link has its meaning inside, even when it is followed from the host.
func TestLinksAreThoseOfTheSandbox(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("of the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{})
	l.Sh(sb, "echo mine > /etc/motd; ln -s /etc/motd abs; ln -s ../etc/motd rel; ln -s / top; ln -s "+outside+" out")
	for _, name := range []string{"abs", "rel", "top/etc/motd", "/work/../etc/motd", "top/work/abs"} {
		if got, err := atoll.ReadFile(l.Context(), sb, name); string(got) != "mine\n" || err != nil {
			t.Errorf("read %s: %q, %v", name, got, err)
		}
	}
	_, err := atoll.ReadFile(l.Context(), sb, "out")
	supervisedtest.WantKind(t, "read a link to a file of the host", err, atoll.ErrNotExist)
	l.Must("write through a link", atoll.WriteFile(l.Context(), sb, "abs", []byte("changed\n"), 0))
	if got := l.Sh(sb, "cat /etc/motd"); got != "changed" {
		t.Errorf("/etc/motd inside: %q", got)
	}
	if data, err := os.ReadFile("/etc/motd"); err == nil && string(data) == "changed\n" {
		t.Error("/etc/motd of the host was written")
	}
	// In a stopped sandbox, nothing knows what such a link means.
	l.Must("stop", sb.Stop(l.Context(), 0))
	_, err = atoll.ReadFile(l.Context(), sb, "abs")
	supervisedtest.WantKind(t, "read a link out of /work while stopped", err, atoll.ErrStopped)
}

// Whatever a process inside does to a directory while the host works in it, nothing outside
// of the sandbox is read or touched.
func TestLinkRace(t *testing.T) {
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.MkdirAll(filepath.Join(victim, "sub"), 0o777); err != nil {
		t.Fatal(err)
	}
	canaries := map[string]string{"file": "canary", "sub/file": "canary", "entry": "canary"}
	for name, text := range canaries {
		if err := os.WriteFile(filepath.Join(victim, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{Mounts: []atoll.Mount{supervisedtest.ProgramMount(t)}})
	volume := filepath.Join(l.opts.Dir, "volumes", "default", "data-"+sb.ID())
	relative, err := filepath.Rel(volume, victim)
	l.Must("rel", err)
	ready := &supervisedtest.Screen{}
	flip := supervisedtest.ProgramCommand("flip", "/work/dir", victim, relative, "../../../records", "/proc/self/root"+victim)
	flip.Stdout = ready
	_, err = sb.Exec(l.Context(), flip)
	l.Must("exec", err)
	ready.Expect(t, "flipping")

	files := atoll.Files(sb)
	packed := makeTar(t, "entry", "sub/file", "made")
	least := 5 * time.Second
	if testing.Short() {
		least = time.Second
	}
	ctx, cancel := context.WithTimeout(l.Context(), testenv.Scale(time.Minute))
	defer cancel()
	done, tried := map[string]int{}, 0
	raced := func() bool { return done["write"] > 0 && done["write"] < tried }
	for begin := time.Now(); ctx.Err() == nil && (time.Since(begin) < least || !raced()); tried++ {
		for what, err := range map[string]error{
			"write":   atoll.WriteFile(ctx, sb, "dir/file", []byte("overwritten"), 0),
			"mkdir":   files.Mkdir(ctx, "dir/made/deep", 0o755),
			"remove":  files.Remove(ctx, "dir/file", false),
			"rename":  files.Rename(ctx, "dir/entry", "dir/gone"),
			"untar":   files.ReadTar(ctx, "dir", bytes.NewReader(packed)),
			"tar":     files.WriteTar(ctx, "dir", newSecretChecker(t, "canary")),
			"removal": files.Remove(ctx, "dir/sub", true),
		} {
			if err == nil {
				done[what]++
			}
		}
		if got, err := atoll.ReadFile(ctx, sb, "dir/file"); err == nil && string(got) == "canary" {
			t.Fatal("read the host's file")
		}
	}
	if !raced() {
		t.Errorf("of %d writes %d succeeded: there was no race", tried, done["write"])
	}
	for name, want := range canaries {
		if got, err := os.ReadFile(filepath.Join(victim, name)); string(got) != want || err != nil {
			t.Errorf("%s on the host: %q, %v", name, got, err)
		}
	}
	if got := strings.Join(supervisedtest.ListDir(t, victim), " "); got != "entry file sub" {
		t.Errorf("on the host: %s", got)
	}
	if got := strings.Join(supervisedtest.ListDir(t, filepath.Join(l.opts.Dir, "records")), " "); got != sb.ID()+".json" {
		t.Errorf("records: %s", got)
	}
}

func makeTar(t *testing.T, names ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range names {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: 8}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte("unpacked")); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// newSecretChecker returns a writer that fails the test if secret is written to it.
func newSecretChecker(t *testing.T, secret string) io.Writer { return &secretChecker{t, secret} }

type secretChecker struct {
	t      *testing.T
	secret string
}

func (w *secretChecker) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(w.secret)) {
		w.t.Errorf("%q came out", w.secret)
	}
	return len(p), nil
}

// Options.HostPaths are shown, read-only, in addition to the system's own paths.
func TestHostPaths(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tool"), []byte("shown"), 0o644); err != nil {
		t.Fatal(err)
	}
	l := newLab(t, func(o *gvisor.Options) { o.HostPaths = []string{dir} })
	sb := l.NewSandbox(atoll.Spec{})
	if got := l.Sh(sb, "cat "+dir+"/tool; echo x > "+dir+"/tool; cat "+dir+"/tool"); got != "shownx" {
		t.Errorf("inside: %q", got)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "tool")); string(got) != "shown" || err != nil {
		t.Errorf("on the host: %q, %v", got, err)
	}
	for _, path := range []string{"relative", "/"} {
		_, err := gvisor.New(gvisor.Options{Dir: filepath.Join(t.TempDir(), "state"), HostPaths: []string{path}})
		supervisedtest.WantKind(t, "host path "+path, err, atoll.ErrInvalid, path)
	}
}

// Programs find the limits that a machine with Linux has.
func TestUsualLimits(t *testing.T) {
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{Resources: atoll.Resources{Memory: 1 << 30}})
	for script, want := range map[string]string{
		"ulimit -Sn; ulimit -Hn": "1024\n1048576",
		"stat -f -c '%b %S' /dev/shm | (read b s; echo $((b * s >> 20)))": "512",
	} {
		if got := l.Sh(sb, script); got != want {
			t.Errorf("%s: %q, want %q", script, got, want)
		}
	}
}
