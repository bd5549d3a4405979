//go:build unix

package wsl2_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/machine/vm/vmtest"
	"github.com/seed46cd37a8/atoll/machine/vm/wsl2"
)

// program runs this program when its name is wsl.exe.
var program = fakeWSL

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "wsl.exe" {
		os.Exit(program(os.Args))
	}
	vmtest.Starter(wsl2.New)
	os.Exit(m.Run())
}

// A lab is a fake WSL, and what a machine is made of.
type lab struct {
	t    testing.TB
	home string
	h    vm.Hardware
	opts wsl2.Options
}

func newLab(t testing.TB, s script) *lab {
	t.Helper()
	dir, err := os.MkdirTemp("", "wsl") // not t.TempDir, whose paths are long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l := &lab{t: t, home: dir, opts: wsl2.Options{Program: filepath.Join(dir, "wsl.exe"), Guest: []string{guestPath, "on", "two  words"}}}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	l.h = vm.Hardware{ID: "m-1", Dir: filepath.Join(dir, "m"), Console: filepath.Join(dir, "console"), Root: filepath.Join(dir, "root.tar.gz")}
	if err := errors.Join(os.Symlink(self, l.opts.Program), os.Mkdir(l.h.Dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	l.script(s)
	l.archive(true, map[string]string{"./sbin/guest": "the guest", "./etc/wsl.conf": "[interop]\nenabled = true\n", "etc/hostname": "box"})
	return l
}

func (l *lab) script(s script) {
	l.t.Helper()
	text, err := json.Marshal(s)
	if err == nil {
		err = os.WriteFile(filepath.Join(l.home, scriptFile), text, 0o600)
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

// archive writes the root archive.
func (l *lab) archive(zip bool, files map[string]string) {
	l.t.Helper()
	var b bytes.Buffer
	var to io.Writer = &b
	z := gzip.NewWriter(&b)
	if zip {
		to = z
	}
	w := tar.NewWriter(to)
	for name, text := range files {
		h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(text)), PAXRecords: map[string]string{"SCHILY.xattr.user.note": "kept"}}
		if err := w.WriteHeader(h); err != nil {
			l.t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			l.t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		l.t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		l.t.Fatal(err)
	}
	if err := os.WriteFile(l.h.Root, b.Bytes(), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Scale(time.Minute))
	l.t.Cleanup(cancel)
	return ctx
}

func (l *lab) machine() vm.Machine {
	l.t.Helper()
	m, err := wsl2.New(l.opts).New(&l.h)
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

// known are the distributions that there are.
func (l *lab) known() (all []distribution) {
	l.t.Helper()
	text, err := os.ReadFile(filepath.Join(l.home, registryFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	return all
}

func (l *lab) nothingLeft() {
	l.t.Helper()
	if all := l.known(); len(all) > 0 {
		l.t.Errorf("distributions are left: %v", all)
	}
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

func TestLife(t *testing.T) {
	for name, s := range map[string]script{
		"new":   {Boot: 200},
		"old":   {Old: true, Off: true},
		"noisy": {Noise: "wsl: Es wurde eine localhost-Proxykonfiguration erkannt.\n"},
	} {
		t.Run(name, func(t *testing.T) { testLife(t, newLab(t, s)) })
	}
}

func testLife(t *testing.T, l *lab) {
	m := l.start()
	if all := l.known(); len(all) != 1 || all[0].Name != "atoll-m-1" || !strings.HasPrefix(all[0].Dir, l.h.Dir) {
		t.Errorf("distributions: %v", all)
	}
	conn, err := m.Dial(l.ctx(), guestPort)
	if err != nil {
		t.Fatal(err)
	}
	client, err := guest.Connect(l.ctx(), conn, l.h.ID)
	if err != nil {
		t.Fatal(err)
	}
	inside := client.Sandbox()
	if got, err := atoll.ReadFile(l.ctx(), inside, "etc/hostname"); err != nil || string(got) != "box" {
		t.Errorf("its root has %q, %v", got, err)
	}
	if got, err := atoll.ReadFile(l.ctx(), inside, "etc/wsl.conf"); err != nil || strings.Contains(string(got), "enabled = true") ||
		!strings.Contains(string(got), "[automount]\nenabled = false") || !strings.Contains(string(got), "[interop]\nenabled = false") {
		t.Errorf("the machine gets of Windows: %s %v", got, err)
	}
	client.Close()
	_, err = m.Dial(l.ctx(), 99)
	wantKind(t, err, atoll.ErrUnavailable, "nothing listens on port 99")
	half, err := m.Dial(l.ctx(), echoPort)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(half, "half")
	if err := half.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(half); err != nil || string(got) != "half" {
		t.Errorf("after CloseWrite read %q, %v", got, err)
	}
	open, err := m.Dial(l.ctx(), echoPort)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Stop(l.ctx()); err != nil {
		t.Fatal(err)
	}
	if err := m.Wait(l.ctx()); err != nil {
		t.Error(err)
	}
	open.SetReadDeadline(time.Now().Add(testenv.Scale(10 * time.Second)))
	if _, err := open.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection outlives the machine: %v", err)
	}
	_, err = m.Dial(l.ctx(), guestPort)
	wantKind(t, err, atoll.ErrUnavailable, "has ended")
	for range 2 {
		if err := m.Kill(); err != nil {
			t.Error(err)
		}
	}
	l.nothingLeft()
	if console, err := os.ReadFile(l.h.Console); err != nil || !strings.Contains(string(console), "guest begins: [/sbin/guest on two  words]") {
		t.Errorf("the console has %q, %v", console, err)
	}
	wantKind(t, m.Start(l.ctx()), atoll.ErrConflict)
	wantKind(t, m.Pause(l.ctx()), atoll.ErrUnsupported)
	wantKind(t, m.Resume(l.ctx()), atoll.ErrUnsupported)
	wantKind(t, m.Snapshot(l.ctx(), l.home), atoll.ErrUnsupported)
}

func TestKill(t *testing.T) {
	l := newLab(t, script{Deaf: true})
	l.archive(false, map[string]string{"sbin/guest": ""})
	m := l.start()
	if _, err := m.Dial(l.ctx(), echoPort); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if err := m.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("stopped a deaf guest: %v", err)
	}
	waited := make(chan error, 1)
	go func() { waited <- m.Wait(context.Background()) }()
	if err := m.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Errorf("a kill is no failure: %v", err)
	}
	l.nothingLeft()
}

// A kill that WSL does not carry out says so, and can be tried again.
func TestKillFails(t *testing.T) {
	l := newLab(t, script{})
	m := l.start()
	l.script(script{Fail: map[string]string{"--unregister": "ERROR_SHARING_VIOLATION"}})
	wantKind(t, m.Kill(), atoll.ErrInternal, "--unregister", "ERROR_SHARING_VIOLATION")
	l.script(script{})
	if err := m.Kill(); err != nil {
		t.Error(err)
	}
	l.nothingLeft()
}

func TestStartFails(t *testing.T) {
	for name, c := range map[string]struct {
		script script
		change func(l *lab)
		kind   atoll.Kind
		say    string
	}{
		"no program":  {script{}, func(l *lab) { l.opts.Program = "/there/is/none" }, atoll.ErrUnavailable, "wsl --install"},
		"no Hyper-V":  {script{Fail: map[string]string{"--import": "CreateVm/HCS/HCS_E_HYPERV_NOT_INSTALLED"}}, nil, atoll.ErrUnavailable, "wsl --install"},
		"no space":    {script{Fail: map[string]string{"--import": "RegisterDistro/ERROR_DISK_FULL"}}, nil, atoll.ErrExhausted, "schade"},
		"no list":     {script{Fail: map[string]string{"--list": "E_ACCESSDENIED"}}, nil, atoll.ErrDenied, "--list"},
		"a fault":     {script{Fail: map[string]string{"--list": "E_UNEXPECTED"}}, nil, atoll.ErrInternal, "E_UNEXPECTED"},
		"old":         {script{Old: true, Fail: map[string]string{"--import": "E_INVALIDARG"}}, nil, atoll.ErrInvalid, "Das hat nicht geklappt – schade."},
		"no archive":  {script{}, func(l *lab) { l.h.Root += "x" }, atoll.ErrInvalid, "root.tar.gzx"},
		"no console":  {script{}, func(l *lab) { l.h.Console = l.opts.Program + "/none" }, atoll.ErrInternal, "console"},
		"a bad one":   {script{}, func(l *lab) { os.WriteFile(l.h.Root, bytes.Repeat([]byte("nonsense"), 200), 0o600) }, atoll.ErrInvalid, "tar"},
		"a short one": {script{}, func(l *lab) { os.Truncate(l.h.Root, 100) }, atoll.ErrInvalid, "unexpected EOF"},
		"etc a file":  {script{}, func(l *lab) { l.archive(false, map[string]string{"etc": "x"}) }, atoll.ErrInvalid, "/etc is not a directory"},
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
	for _, verb := range []string{"--list", "--import"} {
		t.Run(verb+" is slow", func(t *testing.T) {
			l := newLab(t, script{Slow: map[string]int{verb: 60_000}})
			ctx, cancel := context.WithTimeout(context.Background(), testenv.Scale(1500*time.Millisecond))
			defer cancel()
			time.AfterFunc(testenv.Scale(time.Second), func() { l.script(script{}) }) // so that cleaning up is not
			err := l.machine().Start(ctx)
			wantKind(t, err, atoll.ErrTimeout)
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			l.nothingLeft()
		})
	}
}

func TestGuestEnds(t *testing.T) {
	l := newLab(t, script{Exit: 3})
	m := l.start()
	if _, err := m.Dial(l.ctx(), diePort); err != nil && atoll.KindOf(err) != atoll.ErrUnavailable { // it may end before it has answered
		t.Error(err)
	}
	wantKind(t, m.Wait(l.ctx()), atoll.ErrInternal, "exit status 3", "told to end")
	_, err := m.Dial(l.ctx(), echoPort)
	wantKind(t, err, atoll.ErrUnavailable, "has ended")
	if err := m.Kill(); err != nil {
		t.Error(err)
	}
	wantKind(t, m.Wait(l.ctx()), atoll.ErrInternal, "exit status 3")
	l.nothingLeft()

	l = newLab(t, script{})
	l.opts.Guest = []string{"/sbin/none"}
	m = l.start()
	wantKind(t, m.Wait(l.ctx()), atoll.ErrInternal, "execvpe(/sbin/none) failed")
}

func TestGuestIsSilent(t *testing.T) {
	l := newLab(t, script{Silent: true})
	m := l.start()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if _, err := m.Dial(ctx, guestPort); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("dialled: %v", err)
	}
	if err := m.Kill(); err != nil {
		t.Error(err)
	}
	l.nothingLeft()
}

func TestNewChecks(t *testing.T) {
	l := newLab(t, script{})
	for name, c := range map[string]struct {
		change func(h *vm.Hardware)
		kind   atoll.Kind
	}{
		"id":            {func(h *vm.Hardware) { h.ID = "a b" }, atoll.ErrInvalid},
		"relative home": {func(h *vm.Hardware) { h.Home = "x" }, atoll.ErrInvalid},
		"relative dir":  {func(h *vm.Hardware) { h.Dir = "x" }, atoll.ErrInvalid},
		"no root":       {func(h *vm.Hardware) { h.Root = "" }, atoll.ErrInvalid},
		"CPUs":          {func(h *vm.Hardware) { h.CPUs = 1 }, atoll.ErrUnsupported},
		"memory":        {func(h *vm.Hardware) { h.Memory = 1 << 30 }, atoll.ErrUnsupported},
		"kernel":        {func(h *vm.Hardware) { h.Kernel = "/k" }, atoll.ErrUnsupported},
		"cmdline":       {func(h *vm.Hardware) { h.Cmdline = []string{"quiet"} }, atoll.ErrUnsupported},
		"CID":           {func(h *vm.Hardware) { h.CID = 3 }, atoll.ErrUnsupported},
		"disks":         {func(h *vm.Hardware) { h.Disks = []vm.Disk{{ID: "a", Path: "/a"}} }, atoll.ErrUnsupported},
		"shares":        {func(h *vm.Hardware) { h.Shares = []vm.Share{{Tag: "a", Dir: "/"}} }, atoll.ErrUnsupported},
		"snapshot":      {func(h *vm.Hardware) { h.Snapshot = "/s" }, atoll.ErrUnsupported},
	} {
		h := l.h
		c.change(&h)
		if _, err := wsl2.New(l.opts).New(&h); atoll.KindOf(err) != c.kind {
			t.Errorf("%s: %v, want kind %q", name, err, c.kind)
		}
	}
	for _, guest := range [][]string{nil, {"guest"}} {
		if _, err := wsl2.New(wsl2.Options{Program: l.opts.Program, Guest: guest}).New(&l.h); atoll.KindOf(err) != atoll.ErrInvalid {
			t.Errorf("guest %q: %v", guest, err)
		}
	}
	_, err := wsl2.New(wsl2.Options{Guest: l.opts.Guest}).New(&l.h)
	wantKind(t, err, atoll.ErrUnsupported, "only available on Windows, current platform: ")
}

func TestProbe(t *testing.T) {
	l := newLab(t, script{})
	if p := wsl2.New(l.opts).Probe(l.ctx()); !p.OK || p.Notes[0] != "WSL version: 2.4.13.0" {
		t.Errorf("got %+v", p)
	}
	for name, s := range map[string]script{
		"old": {Old: true}, "off": {Fail: map[string]string{"--status": "WSL_E_WSL_OPTIONAL_COMPONENT_REQUIRED"}},
	} {
		l.script(s)
		if p := wsl2.New(l.opts).Probe(l.ctx()); p.OK || p.Reason == "" || !strings.Contains(p.Fix, "wsl --") {
			t.Errorf("%s: %+v", name, p)
		}
	}
	if p := wsl2.New(wsl2.Options{Program: "/there/is/none"}).Probe(l.ctx()); p.OK || p.Fix == "" {
		t.Errorf("without wsl.exe: %+v", p)
	}
	if p := wsl2.New(wsl2.Options{}).Probe(l.ctx()); p.OK || p.Reason != "wsl2 is only available on Windows, current platform: "+runtime.GOOS || p.Fix == "" {
		t.Errorf("elsewhere: %+v", p)
	}
}

func TestDecode(t *testing.T) {
	for in, want := range map[string]string{
		"":                        "",
		"U\x00b\x00\r\x00\n\x00":  "Ub\n",
		"\xff\xfeU\x00\x13\x20":   "U–",
		"plain\r\nUTF-8 – text":   "plain\nUTF-8 – text",
		"\xef\xbb\xbfwith a mark": "with a mark",
		"\x3d\xd8\x00\xde!\x00":   "😀!",
		"o\x00d\x00d\x00 \x00e":   "odd ",
		"\x3d\xd8!\x00":           "\ufffd!",
	} {
		if got := wsl2.Decode([]byte(in)); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// A starter was killed: the guest has ended with its stdin, and the next machine of that name
// removes the distribution.
func TestLeftovers(t *testing.T) {
	l := newLab(t, script{})
	vmtest.StartElsewhere(t, l.opts, l.h)()
	if len(l.known()) != 1 {
		t.Fatalf("distributions: %v", l.known())
	}
	m := l.start()
	conn, err := m.Dial(l.ctx(), echoPort)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if err := m.Kill(); err != nil {
		t.Error(err)
	}
	l.nothingLeft()
}
