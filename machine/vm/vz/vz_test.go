//go:build unix

package vz_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/fakevmm"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/machine/vm/vmtest"
	"github.com/seed46cd37a8/atoll/machine/vm/vz"
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "vfkit" {
		os.Exit(fakevmm.VFKit(os.Args))
	}
	vmtest.Starter(vz.New)
	os.Exit(m.Run())
}

// A lab is a fake vfkit, and what a machine is made of.
type lab struct {
	t    testing.TB
	home string
	h    vm.Hardware
	opts vz.Options
}

func newLab(t testing.TB, s fakevmm.VFKitScript) *lab {
	t.Helper()
	dir, err := os.MkdirTemp("", "vz") // not t.TempDir, whose paths are long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l := &lab{t: t, home: dir, opts: vz.Options{Program: filepath.Join(dir, "vfkit")}}
	self, err := os.Executable()
	if err == nil {
		err = errors.Join(os.Symlink(self, l.opts.Program), os.Mkdir(filepath.Join(dir, "m"), 0o700), os.Mkdir(filepath.Join(dir, "share d"), 0o700))
	}
	if err = errors.Join(err, s.Write(dir)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Image", "initrd", "root.img", "my data.img"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	l.h = vm.Hardware{
		ID: "m-1", Dir: filepath.Join(dir, "m"), Console: filepath.Join(dir, "console"), CPUs: 2, Memory: 256 << 20,
		Kernel: filepath.Join(dir, "Image"), Initrd: filepath.Join(dir, "initrd"), Cmdline: []string{"quiet", "a=b,c"},
		Ports: []uint32{fakevmm.GuestPort, fakevmm.EchoPort, fakevmm.GreetPort, fakevmm.EmptyPort},
		Disks: []vm.Disk{
			{ID: "root", Path: filepath.Join(dir, "root.img"), ReadOnly: true},
			{ID: "data", Path: filepath.Join(dir, "my data.img")},
		},
		Shares: []vm.Share{{Tag: "meta", Dir: filepath.Join(dir, "share d")}},
	}
	return l
}

func (l *lab) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Scale(time.Minute))
	l.t.Cleanup(cancel)
	return ctx
}

func (l *lab) machine() vm.Machine {
	l.t.Helper()
	m, err := vz.New(l.opts).New(&l.h)
	if err != nil {
		l.t.Fatal(err)
	}
	return m
}

func (l *lab) start() vm.Machine {
	l.t.Helper()
	m := l.machine()
	if err := m.Start(l.ctx()); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { m.Kill() })
	return m
}

func (l *lab) dial(m vm.Machine, port uint32) net.Conn {
	l.t.Helper()
	conn, err := m.Dial(l.ctx(), port)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(testenv.Scale(10 * time.Second)))
	return conn
}

func (l *lab) nothingLeft() {
	l.t.Helper()
	entries, err := os.ReadDir(l.h.Dir)
	if err != nil || len(entries) > 0 {
		l.t.Errorf("left in the machine's directory: %v %v", entries, err)
	}
	if out, err := exec.Command("pgrep", "-f", l.opts.Program).Output(); err == nil {
		l.t.Errorf("processes are left: %s", out)
	}
}

func wantKind(t testing.TB, err error, kind atoll.Kind, parts ...string) {
	t.Helper()
	if err == nil || atoll.KindOf(err) != kind {
		t.Errorf("got %v of kind %q, want kind %q", err, atoll.KindOf(err), kind)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v: does not say %q", err, part)
		}
	}
}

// The command line, as vfkit v0.6.1 reads it.
func TestArgs(t *testing.T) {
	h := vm.Hardware{
		ID: "m", Dir: "/d", CPUs: 4, Memory: 2 << 30, Kernel: "/boot/Image", Initrd: "/boot/initrd", Cmdline: []string{"quiet", "a=b"},
		Disks:   []vm.Disk{{ID: "root", Path: "/root.img", ReadOnly: true}, {ID: "data", Path: "/data.img"}},
		Shares:  []vm.Share{{Tag: "atoll-meta", Dir: "/meta"}},
		Ports:   []uint32{52, 2375},
		Network: os.Stdin, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1},
	}
	want := []string{
		"--log-level", "error", "--cpus", "4", "--memory", "2048", "--restful-uri", "unix:///d/vz/rest",
		"--bootloader", `linux,kernel=/boot/Image,initrd=/boot/initrd,cmdline="console=hvc0 quiet a=b"`,
		"--device", "virtio-rng", "--device", "virtio-serial,logFilePath=/d/vz/console",
		"--device", "virtio-blk,path=/root.img,deviceId=root,readonly", "--device", "virtio-blk,path=/data.img,deviceId=data",
		"--device", "virtio-fs,sharedDir=/meta,mountTag=atoll-meta",
		"--device", "virtio-vsock,port=52,socketURL=/d/vz/p52,connect",
		"--device", "virtio-vsock,port=2375,socketURL=/d/vz/p2375,connect",
		"--device", "virtio-vsock,port=50,socketURL=/d/vz/p50,connect",
		"--device", "virtio-net,fd=3,mac=02:00:00:00:00:01",
	}
	if got := vz.Args(&h); !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
	h.Initrd, h.Network, h.Ports = "", nil, []uint32{50}
	got := strings.Join(vz.Args(&h), " ")
	if strings.Contains(got, "initrd") || strings.Contains(got, "virtio-net") || strings.Count(got, "virtio-vsock") != 1 {
		t.Errorf("got %s", got)
	}
}

func TestLife(t *testing.T) {
	l := newLab(t, fakevmm.VFKitScript{Starting: 150, Boot: 400})
	if err := os.WriteFile(l.h.Console, []byte("before\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := l.start()
	client, err := guest.Connect(l.ctx(), l.dial(m, fakevmm.GuestPort), l.h.ID)
	for ctx := l.ctx(); err != nil && ctx.Err() == nil; { // vfkit may hang up late on a connection that came too early
		client, err = guest.Connect(ctx, l.dial(m, fakevmm.GuestPort), l.h.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	inside := client.Sandbox()
	if err := atoll.WriteFile(l.ctx(), inside, "note", []byte("through a vsock"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := atoll.ReadFile(l.ctx(), inside, "note"); err != nil || string(got) != "through a vsock" {
		t.Errorf("read %q, %v", got, err)
	}
	client.Close()
	got := make([]byte, 5)
	if _, err := io.ReadFull(l.dial(m, fakevmm.GreetPort), got); err != nil || string(got) != "hello" {
		t.Errorf("the first bytes are %q, %v", got, err)
	}
	short, cancel := context.WithTimeout(context.Background(), testenv.Scale(time.Second)) // time for one attempt at least
	defer cancel()
	if nobody, err := m.Dial(short, fakevmm.EmptyPort); err == nil { // the machine that this runs on was too busy
		nobody.SetReadDeadline(time.Now().Add(testenv.Scale(10 * time.Second)))
		if _, err := nobody.Read(got); !errors.Is(err, io.EOF) {
			t.Errorf("where nothing listens a connection stays: %v", err)
		}
		nobody.Close()
	} else {
		wantKind(t, err, atoll.ErrUnavailable, "nothing listens on port 9")
	}
	_, err = m.Dial(l.ctx(), 99)
	wantKind(t, err, atoll.ErrInvalid, "port 99")
	open := l.dial(m, fakevmm.EchoPort)
	if _, ok := open.(interface{ CloseWrite() error }); ok {
		t.Error("a connection half-closes, of which nobody knows whether vfkit does")
	}
	if err := m.Stop(l.ctx()); err != nil {
		t.Fatal(err)
	}
	if err := m.Wait(l.ctx()); err != nil {
		t.Error(err)
	}
	if _, err := open.Read(got); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection outlives the machine: %v", err)
	}
	_, err = m.Dial(l.ctx(), fakevmm.GuestPort)
	wantKind(t, err, atoll.ErrUnavailable, "has ended")
	if err := m.Stop(l.ctx()); err != nil {
		t.Errorf("a second stop: %v", err)
	}
	for range 2 {
		if err := m.Kill(); err != nil {
			t.Error(err)
		}
	}
	l.nothingLeft()
	console, err := os.ReadFile(l.h.Console)
	if want := "before\n[    0.000000] Command line: console=hvc0 quiet a=b,c\n[    1.000000] reboot: Power down\n"; err != nil || string(console) != want {
		t.Errorf("the console has %q, %v", console, err)
	}
	wantKind(t, m.Start(l.ctx()), atoll.ErrConflict)
	wantKind(t, m.Snapshot(l.ctx(), l.home), atoll.ErrUnsupported)
}

func TestStop(t *testing.T) {
	l := newLab(t, fakevmm.VFKitScript{Button: "there is no button"}) // the guest is asked on its port
	m := l.start()
	if err := m.Stop(l.ctx()); err != nil {
		t.Error(err)
	}
	l = newLab(t, fakevmm.VFKitScript{Deaf: true}) // the guest has a button only
	m = l.start()
	if err := m.Stop(l.ctx()); err != nil {
		t.Error(err)
	}
	l = newLab(t, fakevmm.VFKitScript{Deaf: true, Button: "nobody has pressed it"})
	m = l.start()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if err := m.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("stopped a deaf guest: %v", err)
	}
	if err := m.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waited: %v", err)
	}
	l.dial(m, fakevmm.EchoPort).Close() // it goes on
	waited := make(chan error, 1)
	go func() { waited <- m.Wait(context.Background()) }()
	if err := m.Kill(); err != nil {
		t.Error(err)
	}
	if err := <-waited; err != nil {
		t.Errorf("a kill is no failure: %v", err)
	}
	l.nothingLeft()
}

func TestPause(t *testing.T) {
	l := newLab(t, fakevmm.VFKitScript{})
	m := l.start()
	conn := l.dial(m, fakevmm.EchoPort)
	for range 2 {
		if err := m.Pause(l.ctx()); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Fprint(conn, "x")
	conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a paused guest answers: %v", err)
	}
	wantKind(t, m.Stop(l.ctx()), atoll.ErrConflict, "resume it first")
	for range 2 {
		if err := m.Resume(l.ctx()); err != nil {
			t.Fatal(err)
		}
	}
	conn.SetReadDeadline(time.Now().Add(testenv.Scale(10 * time.Second)))
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		t.Errorf("after it was resumed: %v", err)
	}
	l = newLab(t, fakevmm.VFKitScript{Fault: "cannot pause"})
	m = l.start()
	wantKind(t, m.Pause(l.ctx()), atoll.ErrInternal, "500", "cannot pause")
	l = newLab(t, fakevmm.VFKitScript{Die: "Pause"})
	m = l.start()
	if err := m.Pause(l.ctx()); err == nil {
		t.Error("paused one that has died of it")
	}
}

// Frames are the messages of the socket, in both directions.
func TestNetwork(t *testing.T) {
	l := newLab(t, fakevmm.VFKitScript{})
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_DGRAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	syscall.CloseOnExec(fds[0])
	syscall.CloseOnExec(fds[1])
	ours := os.NewFile(uintptr(fds[0]), "ours")
	defer ours.Close()
	l.h.Network, l.h.MAC = os.NewFile(uintptr(fds[1]), "theirs"), net.HardwareAddr{2, 0, 0, 0, 0, 9}
	theirs := l.h.Network
	m := l.start()
	if err := theirs.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the machine has not closed its network: %v", err)
	}
	frame := append([]byte("\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x01\x08\x00"), make([]byte, 1500)...)
	if _, err := ours.Write(frame); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 2048)
	n, err := ours.Read(got)
	if want := "\x02\x00\x00\x00\x00\x01\x02\x00\x00\x00\x00\x09\x08\x00"; err != nil || n != len(frame) || string(got[:14]) != want {
		t.Errorf("got %d bytes %q, %v", n, got[:min(n, 14)], err)
	}
	m.Kill()

	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	l.h.Network, l.opts.Program = w, "/there/is/none"
	wantKind(t, l.machine().Start(l.ctx()), atoll.ErrUnavailable, "brew install")
	if err := w.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a machine that does not start has not closed its network: %v", err)
	}
}

func TestStartFails(t *testing.T) {
	const unsigned = `Error: The process doesn't have the "com.apple.security.virtualization" entitlement.`
	for name, c := range map[string]struct {
		script fakevmm.VFKitScript
		change func(l *lab)
		kind   atoll.Kind
		say    string
	}{
		"no program":  {fakevmm.VFKitScript{}, func(l *lab) { l.opts.Program = "/there/is/none" }, atoll.ErrUnavailable, "brew install vfkit"},
		"dies":        {fakevmm.VFKitScript{Die: "begin", Say: "out of luck"}, nil, atoll.ErrUnavailable, "exit status 1: out of luck"},
		"unsigned":    {fakevmm.VFKitScript{Die: "running", Say: unsigned}, nil, atoll.ErrUnavailable, "make sign"},
		"broken":      {fakevmm.VFKitScript{Broken: true}, nil, atoll.ErrInternal, "could not be turned on"},
		"lost disk":   {fakevmm.VFKitScript{}, func(l *lab) { l.h.Disks[0].Path = "/there/is/none" }, atoll.ErrUnavailable, "/there/is/none"},
		"lost initrd": {fakevmm.VFKitScript{}, func(l *lab) { l.h.Initrd = "/there/is/none" }, atoll.ErrUnavailable, "/there/is/none"},
		"no console":  {fakevmm.VFKitScript{}, func(l *lab) { l.h.Console = l.opts.Program + "/none" }, atoll.ErrInternal, "console"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, c.script)
			if c.change != nil {
				c.change(l)
			}
			m := l.machine()
			wantKind(t, m.Start(l.ctx()), c.kind, c.say)
			l.nothingLeft()
			if err := m.Kill(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("slow", func(t *testing.T) {
		l := newLab(t, fakevmm.VFKitScript{Starting: 60_000})
		ctx, cancel := context.WithTimeout(context.Background(), 400*time.Millisecond)
		defer cancel()
		if err := l.machine().Start(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		l.nothingLeft()
	})
}

func TestEndsByItself(t *testing.T) {
	l := newLab(t, fakevmm.VFKitScript{Die: "Stop", Say: "crashed"})
	m := l.start()
	if err := m.Stop(l.ctx()); err != nil {
		t.Error(err)
	}
	wantKind(t, m.Wait(l.ctx()), atoll.ErrInternal, "exit status 1: crashed")
	m.Kill()
	wantKind(t, m.Wait(l.ctx()), atoll.ErrInternal, "crashed")
	l.nothingLeft()

	m = l.machine()
	_, err := m.Dial(l.ctx(), fakevmm.GuestPort)
	wantKind(t, err, atoll.ErrStopped)
}

func TestEndsWithItsStarter(t *testing.T) {
	l := newLab(t, fakevmm.VFKitScript{})
	vmtest.StartElsewhere(t, l.opts, l.h)()
	for deadline := time.Now().Add(testenv.Scale(10 * time.Second)); exec.Command("pgrep", "-f", l.opts.Program+" --log-level").Run() == nil; {
		if time.Now().After(deadline) {
			t.Fatal("it outlives its starter")
		}
		time.Sleep(20 * time.Millisecond)
	}
	m := l.start() // with what that one has left
	l.dial(m, fakevmm.EchoPort)
	m.Kill()
	l.nothingLeft()
}

func TestNewChecks(t *testing.T) {
	l := newLab(t, fakevmm.VFKitScript{})
	kernel := func(text string) func(h *vm.Hardware) {
		return func(h *vm.Hardware) {
			h.Kernel = filepath.Join(l.home, "kernel")
			if err := os.WriteFile(h.Kernel, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		change func(h *vm.Hardware)
		kind   atoll.Kind
		say    string
	}{
		"relative dir":   {func(h *vm.Hardware) { h.Dir = "x" }, atoll.ErrInvalid, "absolute"},
		"dir's name":     {func(h *vm.Hardware) { h.Dir = "/Application Support" }, atoll.ErrInvalid, "letters"},
		"archive":        {func(h *vm.Hardware) { h.Root = "/root.tar" }, atoll.ErrUnsupported, "archive"},
		"CID":            {func(h *vm.Hardware) { h.CID = 4 }, atoll.ErrUnsupported, "all have 3"},
		"no kernel":      {func(h *vm.Hardware) { h.Kernel = "" }, atoll.ErrInvalid, "no kernel"},
		"lost kernel":    {func(h *vm.Hardware) { h.Kernel = "/there/is/none" }, atoll.ErrInvalid, "/there/is/none"},
		"empty kernel":   {kernel(""), atoll.ErrInvalid, "is empty"},
		"gzip":           {kernel("\x1f\x8b\x08 and more"), atoll.ErrInvalid, "decompress it"},
		"zstd":           {kernel("\x28\xb5\x2f\xfd and more"), atoll.ErrInvalid, "decompress it"},
		"EFI":            {kernel("MZ\x00\x00zimg and more"), atoll.ErrInvalid, "compressed EFI image"},
		"quotes":         {func(h *vm.Hardware) { h.Cmdline = []string{`a="b c"`} }, atoll.ErrInvalid, "quotes"},
		"comma":          {func(h *vm.Hardware) { h.Initrd = "/a,b" }, atoll.ErrInvalid, "commas"},
		"comma in share": {func(h *vm.Hardware) { h.Shares = []vm.Share{{Tag: "a", Dir: "/a,readonly"}} }, atoll.ErrInvalid, "commas"},
		"comma in disk":  {func(h *vm.Hardware) { h.Disks = []vm.Disk{{ID: "a", Path: "/a,b"}} }, atoll.ErrInvalid, "commas"},
		"read-only":      {func(h *vm.Hardware) { h.Shares = []vm.Share{{Tag: "a", Dir: "/", ReadOnly: true}} }, atoll.ErrUnsupported, "read-only disk"},
		"port 0":         {func(h *vm.Hardware) { h.Ports = []uint32{0} }, atoll.ErrInvalid, "port 0"},
		"port twice":     {func(h *vm.Hardware) { h.Ports = []uint32{5, 5} }, atoll.ErrInvalid, "twice"},
		"qcow2":          {func(h *vm.Hardware) { h.Disks = []vm.Disk{{ID: "a", Path: "/a", Format: vm.FormatQcow2}} }, atoll.ErrUnsupported, "qcow2"},
		"snapshot":       {func(h *vm.Hardware) { h.Snapshot = "/s" }, atoll.ErrUnsupported, "snapshots"},
	} {
		h := l.h
		c.change(&h)
		_, err := vz.New(l.opts).New(&h)
		t.Run(name, func(t *testing.T) { wantKind(t, err, c.kind, c.say) })
	}
	if runtime.GOOS != "darwin" {
		_, err := vz.New(vz.Options{}).New(&l.h)
		wantKind(t, err, atoll.ErrUnsupported, "vz sandbox provider is only available on macOS (darwin), current platform: "+runtime.GOOS)
	}
}

func TestProbe(t *testing.T) {
	l := newLab(t, fakevmm.VFKitScript{})
	if p := vz.New(vz.Options{Program: "/there/is/none"}).Probe(l.ctx()); p.OK || p.Fix != "brew install vfkit" {
		t.Errorf("without vfkit: %+v", p)
	}
	sysctl := func(text string) {
		if err := os.WriteFile(filepath.Join(l.home, "sysctl"), []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", l.home+":"+os.Getenv("PATH"))
	sysctl(`[ "$*" = "-n kern.hv_support" ] && echo 1`)
	if p := vz.New(l.opts).Probe(l.ctx()); !p.OK || p.Notes[0] != "vfkit version: v0.6.1" {
		t.Errorf("got %+v", p)
	}
	sysctl("echo 0")
	if p := vz.New(l.opts).Probe(l.ctx()); p.OK || !strings.Contains(p.Reason, "no hypervisor") {
		t.Errorf("without a hypervisor: %+v", p)
	}
	if runtime.GOOS != "darwin" {
		if p := vz.New(vz.Options{}).Probe(l.ctx()); p.OK || p.Reason != "vz sandbox provider is only available on macOS (darwin), current platform: "+runtime.GOOS || p.Fix == "" {
			t.Errorf("elsewhere: %+v", p)
		}
	}
}
