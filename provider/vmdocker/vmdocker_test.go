//go:build linux

package vmdocker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/fakewsl"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
	"github.com/seed46cd37a8/atoll/machine/image"
	"github.com/seed46cd37a8/atoll/machine/image/bundle"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/provider/microvm"
	"github.com/seed46cd37a8/atoll/provider/vmdocker"
)

// busybox is the image of sandboxes in these tests; no registry has it.
const busybox = "atoll-local/busybox:1"

// A lab is a state directory whose machines live as long as the tests: an emulated one takes
// most of a minute to start.
type lab struct {
	dir    string
	bundle string

	once sync.Once
	err  error
}

var shared lab

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == fakewsl.Name {
		os.Exit(fakewsl.Main(os.Args))
	}
	code := m.Run()
	if err := shared.close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// bundleName is the name of the bundle of these tests, with the current guest.
const bundleName = "docker-of-a-test"

func need(t testing.TB) {
	t.Helper()
	testenv.Need(t, testenv.Program("qemu-system-x86_64", "qemu-system-x86"), testenv.Program("sqfstar", "squashfs-tools"), testenv.Program("mmdebstrap", "mmdebstrap"), testenv.StaticBusybox)
}

func (l *lab) start(t testing.TB) error {
	need(t)
	l.once.Do(func() {
		l.bundle = testenv.BundleStore(t)
		if l.dir, l.err = os.MkdirTemp("/tmp", "vmd"); l.err != nil { // sockets have short names
			return
		}
		store, err := bundle.Open(l.bundle, bundle.Options{Guest: testenv.Guest})
		if err == nil {
			_, err = store.Build(context.Background(), bundle.Recipe{Name: bundleName, Docker: true}, nil)
			err = errors.Join(err, store.Close())
		}
		l.err = err
	})
	return l.err
}

// A place is a provider with the providers below it.
type place struct {
	*vmdocker.Provider
	machines *microvm.Provider
	below    func() error
}

func (p *place) Close() error { return errors.Join(p.Provider.Close(), p.below()) }

// open opens the lab once more.
func (l *lab) open(change ...func(*vmdocker.Options)) (_ *place, err error) {
	bundles, err := bundle.Open(l.bundle, bundle.Options{Guest: testenv.Guest})
	if err != nil {
		return nil, err
	}
	images, err := image.Open(filepath.Join(l.dir, "images"), image.Options{})
	if err != nil {
		return nil, errors.Join(err, bundles.Close())
	}
	opts := vmdocker.Options{
		Dir: filepath.Join(l.dir, "state"), Bundle: bundleName, Guest: testenv.Guest, Image: busybox, Disk: 4 << 30,
		Config: vm.Config{DataDir: filepath.Join(l.dir, "disks"), ConsoleLogDir: filepath.Join(l.dir, "consoles"), CPUCount: 1, MemoryMB: 1024},
		Fetch: func(ctx context.Context, ref, as string, _ atoll.PullPolicy, progress func(atoll.Progress)) (io.ReadCloser, error) {
			if strings.HasSuffix(ref, busybox) {
				return archive(ref)
			}
			im, err := images.Get(ctx, ref, progress)
			if err != nil {
				return nil, err
			}
			return images.Save(ctx, im, as)
		},
	}
	for _, f := range change {
		f(&opts)
	}
	machines, err := microvm.New(microvm.Options{
		Dir: filepath.Join(l.dir, "machines"), RunDir: filepath.Join(l.dir, "run"), Bundles: bundles, Default: bundleName, Accel: "tcg",
		Files: func(spec *atoll.Spec) microvm.Files {
			return microvm.Files{Console: opts.Config.ConsoleLog(spec.Project), Disks: map[string]string{bundle.DataDisk: opts.Config.DataDisk(spec.Project)}}
		},
	})
	if err != nil {
		return nil, errors.Join(err, images.Close(), bundles.Close())
	}
	opts.Machines, opts.Slow = machines, machines.Slow
	p, err := vmdocker.New(opts)
	if err != nil {
		return nil, errors.Join(err, machines.Close(), images.Close(), bundles.Close())
	}
	return &place{p, machines, sync.OnceValue(func() error { return errors.Join(machines.Close(), images.Close(), bundles.Close()) })}, nil
}

var packed struct {
	sync.Mutex
	archive []byte
}

// archive returns the image busybox in the format of docker save.
func archive(ref string) (io.ReadCloser, error) {
	packed.Lock()
	defer packed.Unlock()
	return io.NopCloser(strings.NewReader(string(packed.archive))), nil
}

func pack(t testing.TB) {
	packed.Lock()
	defer packed.Unlock()
	if packed.archive != nil {
		return
	}
	tag, err := name.NewTag(busybox)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := tarball.Write(tag, testimage.WithSockets(t), &b); err != nil {
		t.Fatal(err)
	}
	packed.archive = []byte(b.String())
}

// close removes all projects with their machines.
func (l *lab) close() error {
	if l.dir == "" {
		return nil
	}
	defer os.RemoveAll(l.dir)
	p, err := l.open()
	if err != nil {
		return err
	}
	defer p.Close()
	all, err := p.machines.List(context.Background(), atoll.Filter{})
	for _, m := range all {
		err = errors.Join(err, p.RemoveProject(context.Background(), m.Spec.Project))
	}
	return err
}

// open opens the shared lab for a test.
func open(t testing.TB, change ...func(*vmdocker.Options)) *place {
	t.Helper()
	if err := shared.start(t); err != nil {
		t.Fatal(err)
	}
	pack(t)
	p, err := shared.open(change...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func create(t testing.TB, p atoll.Provider, spec atoll.Spec) atoll.Sandbox {
	t.Helper()
	begin := time.Now()
	sb, err := p.Create(t.Context(), &spec)
	if err != nil {
		console, _ := os.ReadFile(vm.Config{ConsoleLogDir: filepath.Join(shared.dir, "consoles")}.ConsoleLog(spec.Project))
		t.Fatalf("after %d ms: %v; the end of the machine's console:\n%s", time.Since(begin).Milliseconds(), err, console[max(0, len(console)-4<<10):])
	}
	t.Logf("made %s in project %s in %d ms", sb.ID(), spec.Project, time.Since(begin).Milliseconds())
	return sb
}

func run(t testing.TB, sb atoll.Sandbox, script string) string {
	t.Helper()
	begin := time.Now()
	out, err := atoll.Output(t.Context(), sb, &atoll.Command{Args: []string{"sh", "-c", script}})
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	t.Logf("%s took %d ms", script, time.Since(begin).Milliseconds())
	return string(out)
}

func status(t testing.TB, sb atoll.Sandbox) atoll.Status {
	t.Helper()
	st, err := sb.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// Two sandboxes of a project share a machine, but not their files, nor a network unless they
// are online. TestLifeOfAProject has a sandbox of another project.
func TestProjects(t *testing.T) {
	p := open(t)
	online := atoll.Network{Mode: atoll.NetworkOn}
	a := create(t, p, atoll.Spec{Project: atoll.DefaultProject, Network: online}) // its machine runs, since TestConformance
	b := create(t, p, atoll.Spec{Project: atoll.DefaultProject, Name: "b", Network: online})
	run(t, a, "echo of-a >/work/f; echo of-a >/etc/f")
	if out := run(t, b, "ls -A /work; ls /etc/f 2>/dev/null; echo end"); out != "end\n" {
		t.Errorf("of the files of one sandbox another sees %q", out)
	}
	address := strings.TrimSpace(run(t, a, "hostname -i"))
	if _, err := a.Exec(t.Context(), &atoll.Command{Args: []string{"nc", "-l", "-p", "3002", "-e", "echo", "here"}}); err != nil {
		t.Fatal(err)
	}
	run(t, a, "until netstat -ltn | grep -q :3002; do sleep 0.1; done")
	if out := run(t, b, "nc -w 5 "+address+" 3002 </dev/null || echo not"); out != "not\n" {
		t.Errorf("from one sandbox another says %q", out)
	}
	conn, err := atoll.Dial(t.Context(), a, atoll.AgentPort)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if said, err := io.ReadAll(conn); err != nil || string(said) != "here\n" {
		t.Errorf("from the host the agent's port says %q (%v)", said, err)
	}
	gateway := strings.TrimSpace(run(t, a, "ip route | sed -n 's/default via \\([0-9.]*\\).*/\\1/p'"))
	if out := run(t, a, "nc -w 5 "+gateway+" 2375 </dev/null || echo not"); out != "not\n" {
		t.Errorf("a sandbox reaches the engine at %s: %q", gateway, out)
	}
	if kernel := bootID(t, a); kernel != bootID(t, b) {
		t.Error("the sandboxes have two kernels, want the one of their project")
	} else if host, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err != nil || kernel == string(host) {
		t.Errorf("the sandboxes have the host's kernel (%v)", err)
	}
	for _, sb := range []atoll.Sandbox{a, b} {
		if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
			t.Error(err)
		}
	}
	if list, err := p.List(t.Context(), atoll.Filter{}); err != nil || len(list) > 0 {
		t.Errorf("List: %+v, %v; want none", list, err)
	}
}

// bootID returns an id that each start of a kernel draws.
func bootID(t *testing.T, sb atoll.Sandbox) string {
	return run(t, sb, "cat /proc/sys/kernel/random/boot_id")
}
