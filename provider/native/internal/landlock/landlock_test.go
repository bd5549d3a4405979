//go:build linux

package landlock

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// childEnv has the version of Landlock that a child uses. The child is this program, behind the wall.
const childEnv = "ATOLL_LANDLOCK_TEST"

// Descriptors of a child.
const (
	outsideFD = 3 // a directory outside of the wall
	openFD    = 4 // a file there, open for reading
)

// A request tells a child about the world outside.
type request struct {
	ABI           int
	Inside        string // the directory within the wall
	Outside       string // the directory of outsideFD
	Abstract      string // the name of a socket outside
	Parent, Other int    // PIDs: of the test, and of a child with a wall of its own around Inside
	Mount         bool   // mount a tmpfs, and Outside once more, below Inside; the child is in a mount namespace of its own
}

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "" {
		os.Exit(m.Run())
	}
	if err := runChild(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// runChild restricts itself, prints the results of its tries, and waits for the end of its input.
func runChild() error {
	var r request
	input := json.NewDecoder(os.Stdin)
	if err := input.Decode(&r); err != nil {
		return err
	}
	if r.Mount {
		bound, empty := filepath.Join(r.Inside, "bound"), filepath.Join(r.Inside, "empty")
		if err := errors.Join(
			unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""), os.Mkdir(bound, 0o700), os.Mkdir(empty, 0o700),
			unix.Mount(r.Outside, bound, "", unix.MS_BIND, ""), unix.Mount("none", empty, "tmpfs", 0, ""),
		); err != nil {
			return fmt.Errorf("mount: %w", err)
		}
	}
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	root, err := unix.Open(r.Inside, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	ruleset, err := NewRuleset(r.ABI, root)
	if err != nil {
		return err
	}
	defer ruleset.Close()
	unix.Close(root)
	if err := Restrict(ruleset); err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(tryAll(r)); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// tryAll returns the errors of what a child tries.
func tryAll(r request) map[string]string {
	out := map[string]string{}
	try := func(name string, err error) {
		var errno syscall.Errno
		switch {
		case err == nil:
			out[name] = "done"
		case errors.As(err, &errno):
			out[name] = unix.ErrnoName(errno)
		default:
			out[name] = err.Error()
		}
	}
	open := func(dir int, path string, flags int) error {
		fd, err := unix.Openat(dir, path, flags|unix.O_CLOEXEC, 0o600)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
	in := func(name string) string { return filepath.Join(r.Inside, name) }
	const anywhere = unix.AT_FDCWD

	try("read outside", open(anywhere, filepath.Join(r.Outside, "file"), unix.O_RDONLY))
	try("read outside by a descriptor", open(outsideFD, "file", unix.O_RDONLY))
	try("list outside by a descriptor", open(outsideFD, ".", unix.O_RDONLY|unix.O_DIRECTORY))
	try("write outside by a descriptor", open(outsideFD, "file", unix.O_WRONLY))
	try("create outside by a descriptor", open(outsideFD, "new", unix.O_WRONLY|unix.O_CREAT))
	try("remove outside by a descriptor", unix.Unlinkat(outsideFD, "file", 0))
	try("execute outside", unix.Exec(filepath.Join(r.Outside, "file"), []string{"file"}, nil)) // without the wall: ENOEXEC
	_, err := unix.Pread(openFD, make([]byte, 1), 0)
	try("read an open file", err)

	try("create inside", open(anywhere, in("a"), unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC))
	try("make a directory inside", unix.Mkdir(in("dir"), 0o700))
	try("rename inside", unix.Rename(in("a"), in("b")))
	try("rename into a directory inside", unix.Rename(in("b"), in("dir/c")))
	try("truncate inside", unix.Truncate(in("dir/c"), 3))
	try("link inside", unix.Symlink("dir", in("link")))
	try("execute inside", unix.Exec(in("program"), []string{"program"}, nil))
	try("remove inside", errors.Join(unix.Unlink(in("dir/c")), unix.Rmdir(in("dir")), unix.Unlink(in("link"))))
	try("move outside", unix.Renameat(anywhere, in("program"), outsideFD, "program"))

	if r.Mount {
		try("read on a mount inside", open(anywhere, in("bound/file"), unix.O_RDONLY))
		try("write on a mount inside", open(anywhere, in("empty/new"), unix.O_WRONLY|unix.O_CREAT))
	}

	try("make a pipe", errors.Join(unix.Mknod(in("pipe"), unix.S_IFIFO|0o600, 0), unix.Unlink(in("pipe"))))
	try("make a character device", unix.Mknod(in("null"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
	try("make a block device", unix.Mknod(in("disk"), unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))))
	try("mount", unix.Mount("none", r.Inside, "no such file system", 0, ""))

	try("signal this thread", unix.Tgkill(os.Getpid(), unix.Gettid(), 0)) // it alone is in the domain
	try("signal outside", unix.Kill(r.Parent, 0))
	if r.Other != 0 {
		try("signal beside", unix.Kill(r.Other, 0))
		try("trace beside", takeDescriptor(r.Other))
	}
	for name, address := range map[string]string{"inside": in("socket"), "outside": filepath.Join(r.Outside, "socket"), "to an abstract name": r.Abstract} {
		conn, err := net.Dial("unix", address)
		if err == nil {
			conn.Close()
		}
		try("connect "+name, err)
	}
	return out
}

// takeDescriptor needs the same right to a process as a debugger.
func takeDescriptor(pid int) error {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("pidfd_open: %v", err)
	}
	defer unix.Close(process)
	fd, err := unix.PidfdGetfd(process, 0, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// A world has a directory for children, one that they must not reach, and sockets.
type world struct {
	inside, outside string
	directory, file *os.File // outside
	abstract        string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{inside: t.TempDir(), outside: t.TempDir()}
	w.abstract = fmt.Sprintf("@atoll-landlock-test-%d-%s", os.Getpid(), t.Name())
	for _, address := range []string{w.abstract, filepath.Join(w.inside, "socket"), filepath.Join(w.outside, "socket")} {
		l, err := net.Listen("unix", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	}
	name := filepath.Join(w.outside, "file")
	if err := errors.Join(os.WriteFile(name, []byte("secret"), 0o700), os.WriteFile(filepath.Join(w.inside, "program"), []byte("secret"), 0o700)); err != nil {
		t.Fatal(err)
	}
	w.directory, w.file = mustOpen(t, w.outside), mustOpen(t, name)
	return w
}

// startChild starts a child with a request, to which it adds the world, and returns the child's results and its PID. The
// child runs until the test ends.
func (w *world) startChild(t *testing.T, r request) (got map[string]string, pid int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Scale(30*time.Second))
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"=1")
	if r.Mount {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	}
	cmd.ExtraFiles = []*os.File{w.directory, w.file}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		err := cmd.Wait()
		if cancel(); err != nil {
			t.Errorf("child: %v\n%s", err, stderr.String())
		}
	})
	r.Inside, r.Outside, r.Abstract, r.Parent = w.inside, w.outside, w.abstract, os.Getpid()
	if err := json.NewEncoder(stdin).Encode(r); err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(stdout).Decode(&got); err != nil {
		t.Fatalf("child: %v", err)
	}
	return got, cmd.Process.Pid
}

// needLandlock skips the test without Landlock, and returns its version.
func needLandlock(t *testing.T) int {
	t.Helper()
	abi := ABI()
	if abi == 0 {
		t.Skip("needs Landlock: the kernel does not have it, or its parameter lsm does not name it")
	}
	return abi
}

// The wall works with each version up to the kernel's, as it would on an older kernel.
func TestRestrict(t *testing.T) {
	newest := needLandlock(t)
	t.Logf("the kernel has version %d", newest)
	for abi := 1; abi <= newest; abi++ {
		t.Run(fmt.Sprint(abi), func(t *testing.T) {
			w := newWorld(t)
			_, other := w.startChild(t, request{ABI: abi})
			got, _ := w.startChild(t, request{ABI: abi, Other: other})
			checkWall(t, abi, got)
			if data, err := os.ReadFile(filepath.Join(w.outside, "file")); err != nil || string(data) != "secret" {
				t.Errorf("the file outside: %q, %v", data, err)
			}
		})
	}
}

// The rule for the root holds for the files on mounts below, wherever else these are.
func TestMounts(t *testing.T) {
	abi := needLandlock(t)
	testenv.Need(t, testenv.Root)
	got, _ := newWorld(t).startChild(t, request{ABI: abi, Mount: true})
	for name, want := range map[string]string{"read on a mount inside": "done", "write on a mount inside": "done", "read outside": "EACCES", "read outside by a descriptor": "EACCES"} {
		if got[name] != want {
			t.Errorf("%s: %q, want %q", name, got[name], want)
		}
	}
}

// checkWall compares the results of a child with those that a version of Landlock promises.
func checkWall(t *testing.T, abi int, got map[string]string) {
	t.Helper()
	since := func(version int, refused, before string) string {
		if abi >= version {
			return refused
		}
		return before
	}
	want := map[string]string{
		"read outside":                   "EACCES",
		"read outside by a descriptor":   "EACCES",
		"list outside by a descriptor":   "EACCES",
		"write outside by a descriptor":  "EACCES",
		"create outside by a descriptor": "EACCES",
		"remove outside by a descriptor": "EACCES",
		"execute outside":                "EACCES",
		"read an open file":              "done",
		"create inside":                  "done",
		"make a directory inside":        "done",
		"rename inside":                  "done",
		"rename into a directory inside": since(2, "done", "EXDEV"),
		"truncate inside":                since(2, "done", "ENOENT"),
		"link inside":                    "done",
		"execute inside":                 "ENOEXEC", // the wall lets the kernel read the file, which is no program
		"remove inside":                  since(2, "done", "ENOENT"),
		"move outside":                   "EACCES",
		"make a pipe":                    "done",
		"make a character device":        "EACCES",
		"make a block device":            "EACCES",
		"mount":                          "EPERM",
		"signal this thread":             "done",
		"signal outside":                 since(scopeABI, "EPERM", "done"),
		"signal beside":                  since(scopeABI, "EPERM", "done"),
		"trace beside":                   "EPERM",
		"connect inside":                 "done",
		"connect outside":                since(9, "EACCES", "done"),
		"connect to an abstract name":    since(scopeABI, "EPERM", "done"),
	}
	for name, result := range want {
		if got[name] != result {
			t.Errorf("%s: %q, want %q", name, got[name], result)
		}
	}
	for name := range got {
		if want[name] == "" {
			t.Errorf("%s: the table of the test lacks it", name)
		}
	}
}

func TestNewRuleset(t *testing.T) {
	if _, err := NewRuleset(0, 0); err == nil {
		t.Error("NewRuleset made a ruleset for no version")
	}
	abi := needLandlock(t)
	if _, err := NewRuleset(abi, -1); !errors.Is(err, unix.EBADF) {
		t.Errorf("NewRuleset without a root: %v, want EBADF", err)
	}
	ruleset, err := NewRuleset(abi, int(mustOpen(t, t.TempDir()).Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer ruleset.Close()
	if flags, err := unix.FcntlInt(ruleset.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags of the ruleset: %#x, %v", flags, err)
	}
	number, args := RestrictCall(ruleset.Fd())
	if number != unix.SYS_LANDLOCK_RESTRICT_SELF || len(args) != 2 || args[0] != uint64(ruleset.Fd()) || args[1] != 0 {
		t.Errorf("RestrictCall: %d, %d", number, args)
	}
	if err := Restrict(mustOpen(t, "/")); err == nil {
		t.Error("Restrict took a directory for a ruleset")
	}
}

// The attributes have the layout of the kernel, and grant no right that the ruleset does not handle.
func TestAttributes(t *testing.T) {
	for abi := 1; abi <= 12; abi++ {
		ruleset, rule := RulesetAttr(abi), RuleAttr(abi, 7)
		if len(ruleset) != 48 || len(rule) != 12 {
			t.Fatalf("version %d: attributes of %d and %d bytes", abi, len(ruleset), len(rule))
		}
		handled, scoped := binary.NativeEndian.Uint64(ruleset), binary.NativeEndian.Uint64(ruleset[16:])
		granted, root := binary.NativeEndian.Uint64(rule), binary.NativeEndian.Uint32(rule[8:])
		if handled&^granted != 0x40|0x800 || granted&^handled != 0 || root != 7 { // all but MAKE_CHAR and MAKE_BLOCK
			t.Errorf("version %d: %#x is handled, %#x granted for descriptor %d", abi, handled, granted, root)
		}
		if (scoped == 3) != (abi >= 6) || scoped != 0 && scoped != 3 {
			t.Errorf("version %d: the scopes are %#x", abi, scoped)
		}
	}
	for abi, want := range map[int]uint64{1: 1<<13 - 1, 2: 1<<14 - 1, 3: 1<<15 - 1, 4: 1<<15 - 1, 5: 1<<16 - 1, 8: 1<<16 - 1, 9: 1<<17 - 1} {
		if got := binary.NativeEndian.Uint64(RulesetAttr(abi)); got != want {
			t.Errorf("version %d handles %#x, want %#x", abi, got, want)
		}
	}
}

// mustOpen opens a directory until the end of the test.
func mustOpen(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
