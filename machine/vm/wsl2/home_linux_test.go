package wsl2_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/fakewsl"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/machine/vm/vmtest"
	"github.com/seed46cd37a8/atoll/machine/vm/wsl2"
)

func init() {
	program = func(args []string) int {
		if _, err := os.Stat(filepath.Join(filepath.Dir(args[0]), scriptFile)); err == nil {
			return fakeWSL(args)
		}
		return fakewsl.Main(args)
	}
}

// A house is a WSL whose distributions are real, and machines with one Home in it.
type house struct {
	t    *testing.T
	dir  string
	opts wsl2.Options
	h    vm.Hardware
}

// newHouse has the real guest, and busybox.
func newHouse(t *testing.T) *house {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.StaticBusybox)
	dir, err := os.MkdirTemp("", "wsl") // not t.TempDir, whose paths are long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(fakewsl.Remove(dir), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	program, err := fakewsl.Install(dir)
	if err != nil {
		t.Fatal(err)
	}
	h := &house{t: t, dir: dir, opts: wsl2.Options{Program: program, Guest: []string{guestPath, "distro"}}}
	h.h = vm.Hardware{ID: "m-1", Dir: filepath.Join(dir, "m"), Console: filepath.Join(dir, "console"), Root: filepath.Join(dir, "root.tar"), Home: filepath.Join(dir, "home")}
	if err := os.Mkdir(h.h.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if text, err := os.ReadFile(h.h.Console); err == nil && t.Failed() {
			t.Logf("the console: %s", text)
		}
	})
	h.archive("one")
	return h
}

// archive writes a root archive, of that version, with more in it.
func (h *house) archive(version string, more ...v1.Layer) {
	h.t.Helper()
	program, err := testenv.Guest()
	if err != nil {
		h.t.Fatal(err)
	}
	layers := append(more, testimage.Layer(h.t,
		testimage.Dir("sbin/", 0o755), testimage.File(guestPath, 0o755, string(program)), testimage.File("etc/version", 0o644, version), testimage.File("only-"+version, 0o600, "")))
	img, err := mutate.AppendLayers(testimage.Busybox(h.t), layers...)
	if err != nil {
		h.t.Fatal(err)
	}
	from := mutate.Extract(img)
	defer from.Close()
	to, err := os.Create(h.h.Root)
	if err == nil {
		_, err = io.Copy(to, from)
		err = errors.Join(err, to.Close())
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *house) driver() *wsl2.Driver { return wsl2.New(h.opts) }

func (h *house) start() vm.Machine {
	h.t.Helper()
	m, err := h.try()
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { m.Kill() })
	if conn, err := m.Dial(ctxOf(h.t), vm.PortControl); err != nil {
		h.t.Fatal(err)
	} else {
		conn.Close()
	}
	return m
}

func (h *house) try() (vm.Machine, error) {
	m, err := h.driver().New(&h.h)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(h.t.Context(), testenv.Scale(time.Minute))
	defer cancel()
	return m, m.Start(ctx)
}

// one is the only distribution.
func (h *house) one() fakewsl.Distribution {
	h.t.Helper()
	all, err := fakewsl.List(h.dir)
	if err != nil || len(all) != 1 {
		h.t.Fatalf("distributions: %v, %v", all, err)
	}
	return all[0]
}

func (h *house) write(name, text string) {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(h.one().Root(), name), []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

func (h *house) wantFiles(want map[string]string) {
	h.t.Helper()
	for name, text := range want {
		got, err := os.ReadFile(filepath.Join(h.one().Root(), name))
		if err != nil || string(got) != text {
			h.t.Errorf("%s has %q, %v, want %q", name, got, err, text)
		}
	}
}

func kill(t *testing.T, m vm.Machine) {
	t.Helper()
	for range 2 {
		if err := m.Kill(); err != nil {
			t.Fatal(err)
		}
	}
}

// A later machine, also with another name, finds the files of a Home, and the new files of another
// root archive.
func TestHome(t *testing.T) {
	h := newHouse(t)
	m := h.start()
	if d := h.one(); d.PID == 0 || d.Name == "atoll-m-1" {
		t.Errorf("it is %+v", d)
	}
	h.write("data", "mine")
	h.write("etc/version", "changed")
	kill(t, m)
	if h.one().PID != 0 {
		t.Error("it runs on")
	}
	h.h.ID = "m-2"
	m = h.start()
	h.wantFiles(map[string]string{"data": "mine", "etc/version": "changed"})
	kill(t, m)
	h.archive("two")
	m = h.start()
	h.wantFiles(map[string]string{"data": "mine", "etc/version": "two", "only-one": "", "only-two": ""})
	if info, err := os.Stat(filepath.Join(h.one().Root(), "only-two")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	h.write("etc/version", "changed")
	kill(t, m)
	kill(t, h.start())
	h.wantFiles(map[string]string{"data": "mine", "etc/version": "changed"})
}

// What WSL has forgotten, which a user can have it do, is found by its disk.
func TestHomeUnknown(t *testing.T) {
	h := newHouse(t)
	kill(t, h.start())
	h.write("data", "mine")
	if err := os.Remove(filepath.Join(h.dir, "registry.json")); err != nil {
		t.Fatal(err)
	}
	kill(t, h.start())
	h.wantFiles(map[string]string{"data": "mine"})
	moved := filepath.Join(h.dir, "moved")
	if err := os.Rename(h.h.Home, moved); err != nil {
		t.Fatal(err)
	}
	h.h.Home = moved
	if err := os.Remove(filepath.Join(h.dir, "registry.json")); err != nil { // with the name of where it was
		t.Fatal(err)
	}
	kill(t, h.start())
	h.wantFiles(map[string]string{"data": "mine"})
	if err := fakewsl.Remove(h.dir); err != nil { // with the disk
		t.Fatal(err)
	}
	kill(t, h.start())
	h.wantFiles(map[string]string{"etc/version": "one"})
}

// An import that was cut short is done again, all of it; so is what follows one.
func TestHomeCutShort(t *testing.T) {
	h := newHouse(t)
	m := h.start()
	d := h.one()
	kill(t, m)
	if err := h.driver().Forget(t.Context(), h.h.Home); err != nil {
		t.Fatal(err)
	}
	archive, err := os.ReadFile(h.h.Root)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(h.h.Home, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(h.opts.Program, "--import", d.Name, d.Dir, "-", "--version", "2")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write(archive[:len(archive)/2]); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	h.write("etc-of-half", "")
	m = h.start()
	h.wantFiles(map[string]string{"etc/version": "one"})
	if _, err := os.Stat(filepath.Join(h.one().Root(), "etc-of-half")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something of the half is left: %v", err)
	}
	kill(t, m)

	h.write("data", "mine")
	whole := h.h.Root
	h.archive("two")
	two, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(whole, two[:len(two)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := h.try(); atoll.KindOf(err) != atoll.ErrInvalid {
		t.Errorf("started with half an archive: %v", err)
	}
	h.wantFiles(map[string]string{"data": "mine"}) // a start that fails takes nothing away
	if err := os.WriteFile(whole, two, 0o600); err != nil {
		t.Fatal(err)
	}
	kill(t, h.start())
	h.wantFiles(map[string]string{"data": "mine", "etc/version": "two"})
}

// A first start that fails leaves nothing but a Home that is nobody's.
func TestHomeNeverMade(t *testing.T) {
	h := newHouse(t)
	if err := os.WriteFile(h.h.Root, []byte("no archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := h.try(); atoll.KindOf(err) != atoll.ErrInvalid {
		t.Errorf("started with what is no archive: %v", err)
	}
	if all, err := fakewsl.List(h.dir); err != nil || len(all) > 0 {
		t.Errorf("left: %v, %v", all, err)
	}
	h.archive("one")
	kill(t, h.start())
}

func TestHomeOfTwo(t *testing.T) {
	h := newHouse(t)
	m := h.start()
	h.h.ID = "m-2"
	_, err := h.try()
	wantKind(t, err, atoll.ErrConflict, h.h.Home)
	wantKind(t, h.driver().Forget(t.Context(), h.h.Home), atoll.ErrConflict, h.h.Home)
	if h.one().PID == 0 {
		t.Error("the one that is refused has ended the other one")
	}
	kill(t, m)
	kill(t, h.start())
}

// A host that dies takes its guest along, and leaves the Home to the next one.
func TestHostDies(t *testing.T) {
	h := newHouse(t)
	die := vmtest.StartElsewhere(t, h.opts, h.h)
	t.Cleanup(die)
	h.await("nothing runs", func(d fakewsl.Distribution) bool { return d.PID != 0 })
	_, err := h.try()
	wantKind(t, err, atoll.ErrConflict)
	h.write("data", "mine")
	die()
	h.await("something runs on", func(d fakewsl.Distribution) bool { return d.PID == 0 })
	kill(t, h.start())
	h.wantFiles(map[string]string{"data": "mine"})
}

// await waits until the distribution is as it should be.
func (h *house) await(problem string, ok func(fakewsl.Distribution) bool) {
	h.t.Helper()
	for end := time.Now().Add(testenv.Scale(time.Minute)); !ok(h.one()); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			h.t.Fatal(problem)
		}
	}
}

func TestForget(t *testing.T) {
	h := newHouse(t)
	other := filepath.Join(h.dir, "other")
	kill(t, h.start())
	for _, home := range []string{h.h.Home, h.h.Home, other} {
		if err := h.driver().Forget(t.Context(), home); err != nil {
			t.Error(err)
		}
	}
	if all, err := fakewsl.List(h.dir); err != nil || len(all) > 0 {
		t.Errorf("left: %v, %v", all, err)
	}
	if _, err := os.Stat(h.h.Home); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
	wantKind(t, h.driver().Forget(t.Context(), "home"), atoll.ErrInvalid)
	kill(t, h.start())
	if err := os.WriteFile(filepath.Join(h.h.Home, "theirs"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := h.driver().Forget(t.Context(), h.h.Home); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(h.h.Home); err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
	kill(t, h.start())
	if err := os.RemoveAll(h.h.Home); err != nil { // behind WSL's back
		t.Fatal(err)
	}
	if err := h.driver().Forget(t.Context(), h.h.Home); err != nil {
		t.Error(err)
	}
	if all, err := fakewsl.List(h.dir); err != nil || len(all) > 0 {
		t.Errorf("WSL still knows %v, %v", all, err)
	}
	h.opts.Program = "/there/is/none"
	if err := h.driver().Forget(t.Context(), h.h.Home); err != nil {
		t.Errorf("without WSL: %v", err)
	}
}
