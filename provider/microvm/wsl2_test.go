//go:build linux

package microvm_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/image/bundle"
	"github.com/seed46cd37a8/atoll/provider/microvm"
	"github.com/seed46cd37a8/atoll/provider/microvm/internal/vmengine"
)

// withArchive opens a provider whose store has a root archive, with an Init or without one.
func withArchive(t *testing.T, driver, init string) *microvm.Provider {
	t.Helper()
	src := filepath.Join(t.TempDir(), "docker-wsl")
	manifest := fmt.Sprintf(`{"version": 1, "arch": %q, "disks": [{"name": "root.tar.gz", "size": 4, "digest": "sha256:%x", "id": "root", "format": "tar.gz"}]%s}`,
		runtime.GOARCH, sha256.Sum256([]byte("root")), init)
	for name, text := range map[string]string{"manifest.json": manifest, "root.tar.gz": "root"} {
		if err := os.MkdirAll(src, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(src, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	store, err := bundle.Open(t.TempDir(), bundle.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Pull(t.Context(), src, bundle.PullOptions{}); err != nil {
		t.Fatal(err)
	}
	p, err := microvm.New(microvm.Options{Dir: runDir(t), Bundles: store, Driver: driver, Program: filepath.Join(t.TempDir(), "wsl.exe")})
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

// Machines that are distributions of WSL have no size and no disks: requests for these get an
// error, as does a request for a sandbox that is such a machine.
func TestWSL2Refuses(t *testing.T) {
	const init = `, "init": {"start": [{"args": ["/bin/true"]}]}`
	p := withArchive(t, vmengine.WSL2, init)
	if c := p.Info().Caps; c.MemoryLimit || c.CPULimit || c.ProcessLimit || c.DiskLimit || c.Volumes || c.ReadOnlyRoot || c.Usage || !c.NetworkOn {
		t.Errorf("caps %+v", c)
	}
	const archive = microvm.EngineArchive
	for _, c := range []struct {
		of   *microvm.Provider
		spec atoll.Spec
		says string
	}{
		{p, atoll.Spec{}, "use vmdocker"},
		{p, atoll.Spec{Image: "python:3.11-slim"}, "use vmdocker"},
		{withArchive(t, vmengine.WSL2, ""), atoll.Spec{Image: archive}, "use vmdocker"},
		{p, atoll.Spec{Image: archive, Resources: atoll.Resources{Memory: 1 << 30}}, "no size of their own"},
		{p, atoll.Spec{Image: archive, Resources: atoll.Resources{CPUs: 2}}, "no size of their own"},
		{p, atoll.Spec{Image: archive, Resources: atoll.Resources{Processes: 20}}, "no size of their own"},
		{p, atoll.Spec{Image: archive, Resources: atoll.Resources{Disk: 1 << 30}}, "disks of their own"},
		{p, atoll.Spec{Image: archive, ReadOnlyRoot: true}, "disks of their own"},
		{p, atoll.Spec{Image: archive, Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "v", Target: "/v"}}}, "shared directories"},
		{withArchive(t, vmengine.QEMU, init), atoll.Spec{Image: archive}, "boot a kernel"},
	} {
		if _, err := c.of.Create(t.Context(), &c.spec); atoll.KindOf(err) != atoll.ErrUnsupported || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v, want unsupported with %q", c.spec, err, c.says)
		}
	}
	if list, err := p.List(t.Context(), atoll.Filter{}); err != nil || len(list) > 0 {
		t.Errorf("there is %+v, %v", list, err)
	}
	probe := p.Probe(t.Context())
	if probe.OK || !strings.Contains(probe.Reason, "wsl.exe") {
		t.Errorf("probe %+v", probe)
	}
}

// Forget removes the data of a machine, be it a disk or a directory, and needs no hypervisor if
// there is none.
func TestForget(t *testing.T) {
	disk := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(disk, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, p := range map[string]*microvm.Provider{
		disk: withArchive(t, vmengine.QEMU, ""), filepath.Join(t.TempDir(), "none"): withArchive(t, vmengine.WSL2, ""),
	} {
		if err := p.Forget(t.Context(), path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s is there (%v)", path, err)
		}
	}
}
