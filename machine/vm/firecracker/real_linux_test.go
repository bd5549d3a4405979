package firecracker_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/dirfs"
	"github.com/seed46cd37a8/atoll/internal/testing/fakevmm"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/machine/vm/firecracker"
)

// The environment variables by which scripts/firecracker passes the real one.
const (
	programVar = "ATOLL_FIRECRACKER"        // the program
	kernelVar  = "ATOLL_FIRECRACKER_KERNEL" // an uncompressed kernel with virtio-mmio, vsock and initrds built in
	jailerVar  = "ATOLL_FIRECRACKER_JAILER" // jailer; needs root
)

// realLab is a lab with a real Firecracker, whose guest is this test as the first process
// of an initrd. There can be none where there is no KVM.
func realLab(t *testing.T) *lab {
	t.Helper()
	program, kernel := os.Getenv(programVar), os.Getenv(kernelVar)
	if program == "" || kernel == "" {
		t.Skipf("needs Firecracker, a kernel and KVM: scripts/firecracker runs it where they are (%s and %s are not set)", programVar, kernelVar)
	}
	l := newLab(t, fakevmm.Script{})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if needsLoader(t, self) {
		t.Skip("the guest is this test, which is linked dynamically here: there are no libraries in its initrd")
	}
	initrd := filepath.Join(l.bin, "initrd")
	if err := writeInitrd(initrd, self); err != nil {
		t.Fatal(err)
	}
	l.opts.Program, l.h.Kernel, l.h.Initrd = program, kernel, initrd
	l.h.Cmdline = []string{"rdinit=/init"}
	l.h.Memory = 512 << 20
	t.Cleanup(func() {
		if text, _ := os.ReadFile(l.h.Console); t.Failed() {
			t.Logf("console:\n%s", text)
		}
	})
	return l
}

func TestReal(t *testing.T) {
	l := realLab(t)
	if p := firecracker.New(l.opts).Probe(l.ctx()); !p.OK {
		t.Fatalf("%+v", p)
	}
	m := l.start()
	conn, err := m.Dial(l.ctx(), fakevmm.GuestPort)
	if err != nil {
		t.Fatal(err)
	}
	client, err := guest.Connect(l.ctx(), conn, l.h.ID)
	if err != nil {
		t.Fatal(err)
	}
	inside := client.Sandbox()
	if err := atoll.WriteFile(l.ctx(), inside, "note", []byte("in a machine"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := atoll.ReadFile(l.ctx(), inside, "note"); err != nil || string(got) != "in a machine" {
		t.Errorf("%q, %v", got, err)
	}
	client.Close()
	if _, err := m.Dial(l.ctx(), 99); atoll.KindOf(err) != atoll.ErrUnavailable {
		t.Errorf("dialled a port where nothing listens: %v", err)
	}
	if err := m.Pause(l.ctx()); err != nil {
		t.Error(err)
	}
	if err := m.Resume(l.ctx()); err != nil {
		t.Error(err)
	}
	if err := m.Stop(l.ctx()); err != nil {
		t.Error(err)
	}
	if err := m.Wait(l.ctx()); err != nil {
		t.Error(err)
	}
	m.Kill()
	l.nothingLeft()
}

func TestRealSnapshot(t *testing.T) { testSnapshot(t, realLab(t)) }

func TestRealEndsWithItsStarter(t *testing.T) { testStarter(t, realLab(t)) }

func TestRealFaults(t *testing.T) {
	l := realLab(t)
	l.h.Disks[1].Path = "/there/is/none"
	wantKind(t, l.machine().Start(l.ctx()), atoll.ErrInvalid, "os error 2")
	l.nothingLeft()
}

func TestRealJail(t *testing.T) {
	l := realLab(t)
	jailer := os.Getenv(jailerVar)
	if jailer == "" || os.Geteuid() != 0 {
		t.Skipf("needs jailer, and root to run it (%s)", jailerVar)
	}
	const uid = 23456
	if err := os.Chown(filepath.Join(l.bin, "data.img"), uid, uid); err != nil {
		t.Fatal(err)
	}
	l.opts.Jail = &firecracker.Jail{Jailer: jailer, UID: uid, GID: uid}
	testSnapshot(t, l)
}

// asGuest runs this program as the first process of a machine: it plays the guest of the fake, on a
// real vsock.
func asGuest() error {
	if err := os.Mkdir("/inside", 0o700); err != nil {
		return err
	}
	serve := func(port uint32, each func(*os.File)) error {
		fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := unix.Bind(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: port}); err != nil {
			return err
		}
		if err := unix.Listen(fd, 16); err != nil {
			return err
		}
		go func() {
			for {
				conn, _, err := unix.Accept(fd)
				if err != nil {
					fmt.Println("accept:", err)
					return
				}
				go each(os.NewFile(uintptr(conn), "vsock"))
			}
		}()
		return nil
	}
	err := serve(fakevmm.GuestPort, func(conn *os.File) {
		defer conn.Close()
		if err := guest.Serve(conn, dirfs.Options{Workdir: "/inside", UID: -1, GID: -1}); err != nil {
			fmt.Println("guest:", err)
		}
	})
	if err != nil {
		return err
	}
	var memory fakevmm.Memory
	return serve(fakevmm.MemoryPort, func(conn *os.File) {
		defer conn.Close()
		memory.Serve(conn, bufio.NewReader(conn))
	})
}

// writeInitrd writes an initrd with one program, in cpio's format "newc".
func writeInitrd(path, program string) error {
	text, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	inode := 0
	entry := func(name string, mode, major, minor int, data []byte) {
		inode++
		fmt.Fprintf(&b, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
			inode, mode, 0, 0, 1, 0, len(data), 0, 0, major, minor, len(name)+1, 0, name)
		b.Write(make([]byte, -b.Len()&3))
		b.Write(data)
		b.Write(make([]byte, -b.Len()&3))
	}
	entry("dev", 0o040755, 0, 0, nil)
	entry("dev/console", 0o020600, 5, 1, nil)
	entry("init", 0o100755, 0, 0, text)
	entry("TRAILER!!!", 0, 0, 0, nil)
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// The initrd is one that others can read.
func TestInitrd(t *testing.T) {
	testenv.Need(t, testenv.Program("cpio", "cpio"))
	path := filepath.Join(t.TempDir(), "initrd")
	if err := writeInitrd(path, "/proc/self/cmdline"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("cpio", "-itv")
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd.Stdin = file
	out, err := cmd.CombinedOutput()
	for _, want := range []string{"drwxr-xr-x", "dev/console", "-rwxr-xr-x", "init"} {
		if err != nil || !strings.Contains(string(out), want) {
			t.Fatalf("%v\n%s", err, out)
		}
	}
}
