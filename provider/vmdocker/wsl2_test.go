//go:build linux

package vmdocker_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/fakewsl"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/machine/image/bundle"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/provider/microvm"
	"github.com/seed46cd37a8/atoll/provider/vmdocker"
)

// archiveName is the name of the root archive of these tests, with the current guest.
const archiveName = "docker-wsl-of-a-test"

// A wslPlace is a provider whose machines are distributions of a fake WSL: wsl.exe is fake;
// root file system, guest and engine are real.
type wslPlace struct {
	*vmdocker.Provider
	machines *microvm.Provider
	wsl      string // the directory of wsl.exe
	config   vm.Config
	fetched  int // number of fetched images
}

func openWSL(t *testing.T) *wslPlace {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.Program("mmdebstrap", "mmdebstrap"), testenv.StaticBusybox)
	pack(t)
	dir, err := os.MkdirTemp("/tmp", "vmw") // sockets have short names
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	p := &wslPlace{wsl: at("wsl"), config: vm.Config{DataDir: at("disks"), ConsoleLogDir: at("consoles"), IdleTimeout: "5s"}}
	t.Cleanup(func() { // runs last
		if err := errors.Join(fakewsl.Remove(p.wsl), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	if err := os.Mkdir(p.wsl, 0o700); err != nil {
		t.Fatal(err)
	}
	program, err := fakewsl.Install(p.wsl)
	if err != nil {
		t.Fatal(err)
	}
	bundles, err := bundle.Open(testenv.BundleStore(t), bundle.Options{Guest: testenv.Guest})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bundles.Build(t.Context(), bundle.Recipe{Name: archiveName, Docker: true, Archive: true}, nil); err != nil {
		t.Fatal(err)
	}
	p.machines, err = microvm.New(microvm.Options{
		Dir: at("machines"), RunDir: at("run"), Bundles: bundles, Default: archiveName, Driver: "wsl2", Program: program,
		Files: func(spec *atoll.Spec) microvm.Files {
			return microvm.Files{Console: p.config.ConsoleLog(spec.Project), Disks: map[string]string{bundle.DataDisk: p.config.DataDisk(spec.Project)}}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	p.Provider, err = vmdocker.New(vmdocker.Options{
		Dir: at("state"), Machines: p.machines, Forget: p.machines.Forget, Bundle: archiveName, Config: p.config, Guest: testenv.Guest, Image: busybox,
		Fetch: func(_ context.Context, ref, _ string, _ atoll.PullPolicy, _ func(atoll.Progress)) (io.ReadCloser, error) {
			p.fetched++
			return archive(ref)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(p.Close(), p.machines.Close(), bundles.Close()); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (p *wslPlace) list(t *testing.T) []fakewsl.Distribution {
	t.Helper()
	list, err := fakewsl.List(p.wsl)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// distributions returns the numbers of running and of all distributions.
func (p *wslPlace) distributions(t *testing.T) (running, all int) {
	t.Helper()
	list := p.list(t)
	for _, d := range list {
		if d.PID > 0 {
			running++
		}
	}
	return running, len(list)
}

// The sandboxes of a project share a distribution but not their files, and use Atoll's network
// instead of that of WSL's machine. When the machine has ended, in whatever way, its next use
// finds everything again. It stops when nothing runs in it. When the project is removed,
// nothing is left, even if the machine does not run.
func TestWSL2(t *testing.T) {
	const project = "win"
	p := openWSL(t)
	t.Cleanup(func() {
		if err := p.RemoveProject(context.WithoutCancel(t.Context()), project); err != nil {
			t.Error(err)
		}
	})
	a := create(t, p, atoll.Spec{Project: project, Name: "a", Network: atoll.Network{Mode: atoll.NetworkOn}, Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "v", Target: "/v"}}})
	b := create(t, p, atoll.Spec{Project: project, Name: "b"})
	run(t, a, "echo of-a >/work/f; echo of-a >/etc/f; echo of-a >/v/f")
	if out := run(t, b, "ls -A /work; ls /etc/f 2>/dev/null; echo end"); out != "end\n" {
		t.Errorf("of the files of one sandbox another sees %q", out)
	}
	if running, all := p.distributions(t); running != 1 || all != 1 {
		t.Errorf("%d of %d distributions run, want 1 of 1", running, all)
	}
	p.wantNetwork(t, a, b)

	m, _, err := machineIn(t, p, project)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Stop(t.Context(), time.Second); err != nil {
		t.Fatal(err)
	}
	if running, all := p.distributions(t); running != 0 || all != 1 {
		t.Errorf("stopped: %d of %d distributions run, want 0 of 1", running, all)
	}
	if st := status(t, a); st.State != atoll.StateStopped {
		t.Errorf("its machine has stopped, and the sandbox is %s", st.State)
	}
	begin := time.Now()
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("started again in %d ms", time.Since(begin).Milliseconds())
	if out := run(t, a, "cat /work/f /etc/f /v/f"); out != "of-a\nof-a\nof-a\n" {
		t.Errorf("after a stop of the machine there is %q", out)
	}
	create(t, p, atoll.Spec{Project: project, Name: "c"})
	if p.fetched != 1 {
		t.Errorf("the image was fetched %d times, want 1", p.fetched)
	}

	for _, d := range p.list(t) { // like wsl --shutdown
		p.dropGroups(t, d)
		if err := syscall.Kill(d.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "the sandbox has ended with its machine", time.Minute, func() bool { return status(t, a).State == atoll.StateStopped })
	if err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	await(t, "the machine in which nothing runs has stopped", time.Minute, func() bool {
		running, _ := p.distributions(t)
		return running == 0
	})
	if err := p.RemoveProject(t.Context(), project); err != nil {
		t.Fatal(err)
	}
	if running, all := p.distributions(t); running != 0 || all != 0 {
		t.Errorf("removed: %d of %d distributions run, want none", running, all)
	}
	for _, path := range []string{p.config.DataDisk(project), filepath.Dir(p.config.ConsoleLog(project))} {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s is there (%v)", path, err)
		}
	}
	if list, err := p.machines.List(t.Context(), atoll.Filter{}); err != nil || len(list) > 0 {
		t.Errorf("machines %+v (%v)", list, err)
	}
}

// dropGroups removes the cgroups of a distribution's containers at the end of the test: killed
// containers leave them in this machine's kernel.
func (p *wslPlace) dropGroups(t *testing.T, d fakewsl.Distribution) {
	t.Helper()
	containers, err := os.ReadDir(filepath.Join(d.Root(), "var/lib/docker/containers"))
	if err != nil || len(containers) == 0 {
		t.Fatalf("%d containers in %s (%v)", len(containers), d.Name, err)
	}
	t.Cleanup(func() {
		for _, c := range containers {
			for _, pattern := range []string{"/sys/fs/cgroup/docker/", "/sys/fs/cgroup/*/docker/"} {
				groups, _ := filepath.Glob(pattern + c.Name())
				for _, g := range groups {
					if err := os.Remove(g); err != nil {
						t.Error(err)
					}
				}
			}
		}
	})
}

// machineIn returns the machine of a project.
func machineIn(t *testing.T, p *wslPlace, project string) (atoll.Sandbox, atoll.Status, error) {
	t.Helper()
	list, err := p.machines.List(t.Context(), atoll.Filter{Project: project})
	if err != nil || len(list) != 1 {
		t.Fatalf("machines of project %s: %+v (%v)", project, list, err)
	}
	m, err := p.machines.Get(t.Context(), list[0].ID)
	return m, list[0], err
}

// wantNetwork checks that an online sandbox reaches the gateway of Atoll's network, and not
// this machine, whose network WSL gives to all; and that an offline one has no network.
func (p *wslPlace) wantNetwork(t *testing.T, online, offline atoll.Sandbox) {
	t.Helper()
	run(t, online, "nc -w 10 192.0.0.1 53 </dev/null") // the gateway serves DNS
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		host := a.(*net.IPNet).IP
		if host.To4() == nil || host.IsLoopback() {
			continue
		}
		if out := run(t, online, "nc -w 5 "+host.String()+" "+port+" </dev/null && echo reached || echo not"); !strings.HasSuffix(out, "not\n") {
			t.Errorf("the sandbox reaches this machine at %s: %q", host, out)
		}
	}
	if out := run(t, offline, "ls /sys/class/net"); out != "lo\n" {
		t.Errorf("the sandbox without a network has %q", out)
	}
}
