package bundle

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/machine/vm"
)

// capabilities is the attribute with a file's capabilities.
const capabilities = "security.capability"

// testInit builds the first process of machines in tests.
func testInit(t *testing.T) []byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "init")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, "./testdata/init")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	program, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return program
}

func guestProgram(program []byte) func() ([]byte, error) {
	return func() ([]byte, error) { return program, nil }
}

func debianBundle(t *testing.T) *Bundle { return builtBundle(t, "debian") }

// builtBundle returns a bundle that scripts/bundle has built.
func builtBundle(t *testing.T, name string) *Bundle {
	t.Helper()
	b, err := openStore(t, testenv.BundleStore(t), Options{}).Get(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// withModules puts the modules of an initrd's bundle and another init into a new one.
func withModules(t *testing.T, b *Bundle, r Recipe, program []byte) string {
	t.Helper()
	store := filepath.Dir(filepath.Dir(b.Dir))
	parts, err := filepath.Glob(filepath.Join(store, partsDir, "*", modulesDir))
	if err != nil || len(parts) == 0 {
		t.Fatalf("no modules in %s (%v)", store, err)
	}
	s := openStore(t, store, Options{})
	for _, dir := range parts {
		p, err := s.readPart(filepath.Base(filepath.Dir(dir)))
		if err != nil || p.Kernel.Digest != b.Kernel.Digest {
			continue
		}
		load, err := loadPart(p, r.moduleNames())
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		in, err := packInitrd(dir, program, b.Kernel.Release, load, r.Compress)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Equal(in.Modules, b.Initrd.Modules) { // else it was made for other recipes
			return filepath.Join(dir, in.Name)
		}
	}
	t.Fatalf("no part has that kernel and modules %q", b.Initrd.Modules)
	return ""
}

// bootMachine boots a machine under emulation until it powers off, and returns what it has
// printed. On a busy host the kernel may fail to calibrate its clock, and then hangs for
// good: bootMachine logs that, and tries again.
func bootMachine(t *testing.T, kernel, initrd, root string, args ...string) string {
	t.Helper()
	testenv.Need(t, testenv.Program("qemu-system-x86_64", "qemu-system-x86"))
	cmdline := "console=ttyS0 quiet panic=-1 reboot=t " + clockArgument() + " -- " + strings.Join(args, " ")
	var out []byte
	for range 4 {
		ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(40*time.Second))
		cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-M", "microvm,rtc=on", "-m", "256",
			"-nodefaults", "-nographic", "-no-reboot", "-serial", "stdio", "-kernel", kernel, "-initrd", initrd, "-append", cmdline,
			"-drive", "id=root,file="+root+",format=raw,if=none,readonly=on", "-device", "virtio-blk-device,drive=root,serial=root")
		start := time.Now()
		var err error
		out, err = cmd.CombinedOutput()
		timeout := ctx.Err()
		cancel()
		if timeout == nil {
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			t.Logf("%d ms, of which: %s", time.Since(start).Milliseconds(), strings.Join(regexp.MustCompile(`init: (up|modules|root).*at [0-9.]+`).FindAllString(string(out), -1), ", "))
			return string(out)
		}
		t.Logf("the machine hung after %q, once more", out)
	}
	t.Fatalf("the machine does not come up: %s", out)
	return ""
}

// clockArgument returns a kernel argument with the approximate frequency of the CPU's clock.
func clockArgument() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	m := regexp.MustCompile(`(?m)^cpu MHz\s*: ([0-9]+)\.([0-9]{3})$`).FindSubmatch(b)
	if err != nil || m == nil {
		return ""
	}
	return "tsc_early_khz=" + string(m[1]) + string(m[2])
}

// The real bundle boots, and has the contents that its manifest lists.
func TestBundleBoots(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the machines of this test are amd64")
	}
	b := debianBundle(t)
	program := testInit(t)
	for name, recipe := range map[string]Recipe{"as it is": {}, "compressed": {Compress: true}} {
		t.Run(name, func(t *testing.T) {
			out := bootMachine(t, b.Path(b.Kernel.File), withModules(t, b, recipe, program), b.Path(b.Root().File), "/usr/bin/su", "/usr/bin/git", "/etc/ssl/certs/ca-certificates.crt")
			for _, want := range []string{
				fmt.Sprintf("init: modules %d ", len(b.Initrd.Modules)),
				"init: file /usr/bin/su urwxr-xr-x", "init: file /usr/bin/git -rwxr-xr-x", "init: file /etc/ssl/certs/ca-certificates.crt -rw-r--r--",
				"init: mke2fs 1.", "init: root PRETTY_NAME=\"Debian GNU/Linux 12",
			} {
				if !strings.Contains(out, want) {
					t.Errorf("%q is missing: %s", want, out)
				}
			}
		})
	}
	for _, p := range []string{"python3=", "git=", "ca-certificates="} {
		if !slices.ContainsFunc(b.Root().Packages, func(have string) bool { return strings.HasPrefix(have, p) }) {
			t.Errorf("%s is missing in %q", p, b.Root().Packages)
		}
	}
	f, err := elf.Open(b.Path(*b.Kernel.ELF))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Type != elf.ET_EXEC || f.Machine != elf.EM_X86_64 || f.Entry == 0 {
		t.Errorf("the unpacked kernel is %v for %v, entered at %#x", f.Type, f.Machine, f.Entry)
	}
	// Another store pulls the same bundle, with the unpacked kernel extracted from the
	// other one.
	out := filepath.Join(t.TempDir(), "out")
	if err := openStore(t, filepath.Dir(filepath.Dir(b.Dir)), Options{}).Export(t.Context(), b, out); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(out, b.Kernel.ELF.Name)); err != nil {
		t.Fatal(err)
	}
	pulled, err := openStore(t, t.TempDir(), Options{}).Pull(t.Context(), out, PullOptions{})
	if err != nil || pulled.Digest != b.Digest {
		t.Fatalf("pulled: %v, %v", pulled, err)
	}
}

// The machine of a Docker Engine loads the modules that the engine needs, and has the
// Init that starts it.
func TestDockerBundleBoots(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the machines of this test are amd64")
	}
	b := builtBundle(t, "docker")
	initrd := withModules(t, b, Recipe{Docker: true}, testInit(t))
	out := bootMachine(t, b.Path(b.Kernel.File), initrd, b.Path(b.Root().File), "/usr/sbin/dockerd", "/usr/bin/containerd", "/usr/sbin/runc", "/usr/sbin/mkfs.ext4", vm.InitFile)
	if want := fmt.Sprintf("init: modules %d ", len(b.Initrd.Modules)); !strings.Contains(out, want) || !strings.Contains(out, "init: root PRETTY_NAME") {
		t.Errorf("%q, or its root, is missing: %s", want, out)
	}
	for _, m := range []string{"bridge", "overlay", "xt_MASQUERADE", "iptable_nat", "veth"} {
		if !slices.Contains(b.Initrd.Modules, m) {
			t.Errorf("module %s is missing in %q", m, b.Initrd.Modules)
		}
	}
	said, err := exec.Command("unsquashfs", "-cat", b.Path(b.Root().File), vm.InitFile).Output()
	if err != nil {
		t.Fatal(err)
	}
	var init vm.Init
	if err := json.Unmarshal(said, &init); err != nil || !reflect.DeepEqual(&init, b.Init) || !reflect.DeepEqual(&init, dockerInit) {
		t.Errorf("init on the disk %+v, in the manifest %+v, want %+v (%v)", init, b.Init, dockerInit, err)
	}
	if size := b.Root().Size; size > 500<<20 {
		t.Errorf("the disk has %s, more than 500 MiB", size)
	}
}

// testTree returns a tree like that of an unpacked image.
func testTree(t *testing.T) *Tree {
	t.Helper()
	dir := t.TempDir()
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	do(os.Chmod(dir, 0o755))
	do(os.MkdirAll(filepath.Join(dir, "usr/bin"), 0o755))
	do(os.Mkdir(filepath.Join(dir, "tmp"), 0o755))
	do(os.Chmod(filepath.Join(dir, "tmp"), 0o777|os.ModeSticky))
	do(os.WriteFile(filepath.Join(dir, "usr/bin/tool"), []byte("#!/bin/sh\n"), 0o755))
	do(os.Link(filepath.Join(dir, "usr/bin/tool"), filepath.Join(dir, "usr/bin/same")))
	do(os.Symlink("usr/bin", filepath.Join(dir, "bin")))
	do(os.WriteFile(filepath.Join(dir, "usr/bin/raised"), []byte("x"), 0o755))
	do(os.Chmod(filepath.Join(dir, "usr/bin/raised"), 0o755|os.ModeSetuid))
	do(os.WriteFile(filepath.Join(dir, "usr/bin/ping"), []byte("y"), 0o755))
	do(os.WriteFile(filepath.Join(dir, "own"), []byte("z"), 0o640))
	old := time.Unix(1500000000, 0)
	for _, f := range []string{"usr/bin/tool", "usr/bin/raised", "usr/bin/ping", "own"} {
		if os.Geteuid() == 0 && f == "own" {
			do(os.Chown(filepath.Join(dir, f), 1000, 50))
		}
		do(os.Chtimes(filepath.Join(dir, f), old, old))
	}
	if os.Geteuid() == 0 {
		const netRaw = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
		do(unix.Setxattr(filepath.Join(dir, "usr/bin/ping"), capabilities, []byte(netRaw), 0))
	}
	return &Tree{Dir: dir, Digest: digestOf([]byte("image")), Owners: os.Geteuid() == 0, Config: Config{Cmd: []string{"tool"}}, Close: func() error { return nil }}
}

func treeFunc(tree *Tree) func(context.Context, string, atoll.PullPolicy, func(atoll.Progress)) (*Tree, error) {
	return func(context.Context, string, atoll.PullPolicy, func(atoll.Progress)) (*Tree, error) { return tree, nil }
}

// A disk has all files of its image, and equal images make equal disks.
func TestBuildImage(t *testing.T) {
	testenv.Need(t, testenv.Program("sqfstar", "squashfs-tools"))
	kernel := debianBundle(t)
	recipe := Recipe{Image: "app:1", Kernel: kernel.Path(kernel.Kernel.File)}
	var digests []string
	for range 2 {
		s := openStore(t, t.TempDir(), Options{Guest: guestProgram([]byte("guest")), Tree: treeFunc(testTree(t))})
		b, err := s.Build(t.Context(), recipe, nil)
		if err != nil {
			t.Fatal(err)
		}
		wantClean(t, s)
		digests = append(digests, b.Digest)
		if b.Names[0] != "app:1" || b.Root().Image != digestOf([]byte("image")) || b.Root().Config.Cmd[0] != "tool" || b.Kernel.Release != kernel.Kernel.Release {
			t.Errorf("manifest %+v", b.Manifest)
		}
		list := exec.Command("unsquashfs", "-lls", b.Path(b.Root().File))
		list.Env = append(os.Environ(), "TZ=UTC")
		said, err := list.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, said)
		}
		out := regexp.MustCompile(` +`).ReplaceAllString(string(said), " ")
		for _, want := range []string{
			"drwxr-xr-x root/root", "drwxrwxrwt root/root", "lrwxrwxrwx root/root 7 ", "bin -> usr/bin\n", "squashfs-root/usr/bin/same\n",
			"-rwsr-xr-x root/root 1 2017-07-14 02:40 squashfs-root/usr/bin/raised\n",
		} {
			if !strings.Contains(out, want) {
				t.Errorf("%q is missing: %s", want, out)
			}
		}
		if os.Geteuid() == 0 {
			wantUnpacked(t, b.Path(b.Root().File))
		}
		// Once more, from what is there.
		var phases []string
		again, err := s.Build(t.Context(), recipe, func(p atoll.Progress) { phases = append(phases, p.Phase) })
		if err != nil || again.Digest != b.Digest {
			t.Errorf("again: %v, %v", again, err)
		}
		if slices.Contains(phases, "pack disk") || slices.Contains(phases, "unpack kernel") {
			t.Errorf("again there is done: %q", phases)
		}
	}
	if digests[0] != digests[1] {
		t.Errorf("built twice: %q", digests)
	}
}

// wantUnpacked looks at the files of testTree on a disk as root sees them.
func wantUnpacked(t *testing.T, disk string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "root")
	if said, err := exec.Command("unsquashfs", "-quiet", "-no-progress", "-d", dir, disk).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	var one, two, own unix.Stat_t
	if err := errors.Join(unix.Stat(dir+"/usr/bin/tool", &one), unix.Stat(dir+"/usr/bin/same", &two), unix.Stat(dir+"/own", &own)); err != nil {
		t.Fatal(err)
	}
	if one.Ino != two.Ino || own.Uid != 1000 || own.Gid != 50 || own.Mode&0o777 != 0o640 || own.Mtim.Sec != 1500000000 {
		t.Errorf("hard link %d and %d, owner %d:%d, mode %o, time %d", one.Ino, two.Ino, own.Uid, own.Gid, own.Mode, own.Mtim.Sec)
	}
	caps := make([]byte, 64)
	if n, err := unix.Getxattr(dir+"/usr/bin/ping", capabilities, caps); err != nil || n != 20 || caps[5] != 0x20 {
		t.Errorf("capabilities %x, %v", caps[:max(n, 0)], err)
	}
}

// Debian's packages installed twice make the same disk.
func TestDebianTwice(t *testing.T) {
	if os.Getenv("ATOLL_TEST_DEBIAN") != "twice" {
		t.Skip("installs a system twice, which takes minutes: set ATOLL_TEST_DEBIAN=twice")
	}
	testenv.Need(t, testenv.Root, testenv.Program("sqfstar", "squashfs-tools"), testenv.Program("mmdebstrap", "mmdebstrap"))
	kernel := debianBundle(t)
	s := openStore(t, t.TempDir(), Options{Guest: guestProgram([]byte("guest"))})
	var digests []string
	for range 2 {
		b, err := s.Build(t.Context(), Recipe{Packages: []string{"python3-minimal"}, Kernel: kernel.Path(kernel.Kernel.File), Fresh: true}, nil)
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, b.Digest)
	}
	if digests[0] != digests[1] {
		t.Errorf("built twice: %q", digests)
	}
	wantClean(t, s)
}

// A build that is interrupted at any moment leaves nothing, and the next one succeeds.
func TestBuildInterrupted(t *testing.T) {
	testenv.Need(t, testenv.Program("sqfstar", "squashfs-tools"), testenv.Program("mmdebstrap", "mmdebstrap"))
	kernel := debianBundle(t)
	image := Recipe{Image: "app:1", Kernel: kernel.Path(kernel.Kernel.File)}
	for _, c := range []struct {
		phase  string
		after  time.Duration
		recipe Recipe
	}{
		{"read kernel", 0, image}, {"unpack kernel", 0, image}, {"pack disk", 0, image}, {"pack", 0, image},
		{"install", 0, Recipe{Kernel: image.Kernel}}, {"install", 3 * time.Second, Recipe{Kernel: image.Kernel}},
	} {
		t.Run(fmt.Sprint(c.phase, " ", c.after), func(t *testing.T) {
			tree := testTree(t)
			s := openStore(t, t.TempDir(), Options{Guest: guestProgram([]byte("guest")), Tree: treeFunc(tree)})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			_, err := s.Build(ctx, c.recipe, func(p atoll.Progress) {
				if p.Phase == c.phase {
					time.AfterFunc(c.after, cancel)
					if c.after == 0 {
						<-ctx.Done()
					}
				}
			})
			if c.phase == "pack" && err == nil {
				return // too late for anybody
			}
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("interrupted: %v", err)
			}
			wantClean(t, s)
			if list, err := s.List(); err != nil || len(list) > 0 {
				t.Errorf("there is %v, %v", list, err)
			}
			if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || bytes.Contains(mounts, []byte(s.dir)) {
				t.Errorf("something is mounted (%v)", err)
			}
			if _, err := s.Build(t.Context(), image, nil); err != nil {
				t.Error(err)
			}
		})
	}
}

// A full disk is ErrExhausted, for whichever program it is full.
func TestBuildFullDisk(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.Program("sqfstar", "squashfs-tools"))
	if !testenv.InOwnProcess(t) {
		return
	}
	kernel := debianBundle(t)
	for name, size := range map[string]string{"for the kernel": "8m", "for the disk": "90m"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
				t.Skipf("no tmpfs can be mounted: %v", err)
			}
			t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
			tree := testTree(t)
			f, err := os.Open("/dev/urandom")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			big, err := os.Create(filepath.Join(tree.Dir, "big"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := copyContext(t.Context(), big, &limitedFile{f, 60 << 20}); err != nil {
				t.Fatal(err)
			}
			big.Close()
			s := openStore(t, filepath.Join(dir, "s"), Options{Guest: guestProgram([]byte("guest")), Tree: treeFunc(tree)})
			_, err = s.Build(t.Context(), Recipe{Image: "app:1", Kernel: kernel.Path(kernel.Kernel.File)}, nil)
			wantKind(t, err, atoll.ErrExhausted, "no space left")
			wantClean(t, s)
		})
	}
}

type limitedFile struct {
	f    *os.File
	left int
}

func (l *limitedFile) Read(p []byte) (int, error) {
	if l.left == 0 {
		return 0, io.EOF
	}
	n, err := l.f.Read(p[:min(len(p), l.left)])
	l.left -= n
	return n, err
}

// If a tool is missing, the error says how to install it.
func TestBuildWithoutTools(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{Guest: guestProgram([]byte("guest")), Tree: treeFunc(testTree(t))})
	t.Setenv("PATH", t.TempDir())
	_, err := s.Build(t.Context(), Recipe{}, nil)
	wantKind(t, err, atoll.ErrUnavailable, "apt-get install squashfs-tools")
	_, err = s.Build(t.Context(), Recipe{Docker: true, Archive: true}, nil)
	wantKind(t, err, atoll.ErrUnavailable, "apt-get install mmdebstrap")
	sqfstar := filepath.Join(os.Getenv("PATH"), "sqfstar")
	if err := os.WriteFile(sqfstar, []byte("#!/bin/sh\necho it cannot >&2; exit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err = s.Build(t.Context(), Recipe{}, nil)
	wantKind(t, err, atoll.ErrUnavailable, "apt-get install mmdebstrap")
	if _, err := FindFormatter(); err != nil {
		t.Fatalf("e2fsprogs is on every Debian: %v", err)
	}
	_, err = s.Build(t.Context(), Recipe{Image: "app:1"}, nil)
	wantKind(t, err, atoll.ErrUnavailable, "--kernel")
	kernel := filepath.Join(t.TempDir(), "kernel")
	if err := os.WriteFile(kernel, []byte("no kernel"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = s.Build(t.Context(), Recipe{Image: "app:1", Kernel: kernel}, nil)
	wantKind(t, err, atoll.ErrInvalid, "is not a kernel")
	if err := os.WriteFile(kernel, []byte(arMagic), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = s.Build(t.Context(), Recipe{Image: "app:1", Kernel: kernel}, nil)
	wantKind(t, err, atoll.ErrInvalid, "has no data.tar")
	for _, bad := range []Recipe{
		{Archive: true}, {Docker: true, Archive: true, Compress: true}, {Docker: true, Archive: true, Kernel: kernel},
		{Image: "a", Docker: true}, {Packages: []string{"x; y"}}, {Suite: "-o"}, {Mirror: "-"}, {Modules: []string{"../x"}}, {Name: "a b"},
	} {
		_, err := s.Build(t.Context(), bad, nil)
		wantKind(t, err, atoll.ErrInvalid, "")
	}
	wantClean(t, s)
}
