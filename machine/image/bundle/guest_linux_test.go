package bundle_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/machine/image/bundle"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/machine/vm/qemu"
	"github.com/seed46cd37a8/atoll/server/api/client"
)

// A built bundle boots a machine with a guest in it, that has Debian's programs, and
// retains files on a disk that it has formatted.
func TestGuest(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the machines of this test are amd64")
	}
	testenv.Need(t, testenv.Program("qemu-system-x86_64", "qemu-system-x86"), testenv.Program("sqfstar", "squashfs-tools"), testenv.Program("mmdebstrap", "mmdebstrap"))
	store, err := bundle.Open(testenv.BundleStore(t), bundle.Options{Guest: testenv.Guest})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	b, err := store.Build(t.Context(), bundle.Recipe{Name: "of-a-test"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.Remove("of-a-test", nil); err != nil {
			t.Error(err)
		}
	}()

	driver, err := qemu.New(t.Context(), qemu.Options{Accel: "tcg"})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "vm") // t.TempDir's would be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	data := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(data, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(data, 64<<20); err != nil {
		t.Fatal(err)
	}
	console := filepath.Join(t.TempDir(), "console")
	m, err := driver.New(&vm.Hardware{
		ID: "t", Dir: dir, Console: console, CPUs: 1, Memory: 256 << 20,
		Kernel: b.Path(b.Kernel.File), Initrd: b.Path(b.Initrd.File),
		Disks: []vm.Disk{{ID: bundle.RootDisk, Path: b.Path(b.Root().File), ReadOnly: true}, {ID: "data", Path: data}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(3*time.Minute))
	defer cancel()
	start := time.Now()
	if err := m.Start(ctx); err != nil {
		t.Fatal(err)
	}
	defer m.Kill()
	defer func() {
		if t.Failed() {
			text, _ := os.ReadFile(console)
			t.Logf("the console: %s", text)
		}
	}()
	conn, err := m.Dial(ctx, vm.PortControl)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	t.Logf("the guest answers after %d ms", time.Since(start).Milliseconds())
	const id = "0123456789abcdef0123456789abcdef"
	entropy := make([]byte, 32)
	rand.Read(entropy)
	if err := json.NewEncoder(conn).Encode(guest.Order{Setup: &guest.Setup{
		Config: guest.Config{ID: id, Workdir: "/work"}, Hostname: "box", Time: time.Now().UnixNano(), Entropy: entropy,
		Root: guest.Root{Disk: bundle.RootDisk}, Mounts: []guest.MachineDir{{Target: "/work", Disk: "data"}},
	}}); err != nil {
		t.Fatal(err)
	}
	var reply guest.Reply
	if err := json.NewDecoder(conn).Decode(&reply); err != nil || reply.Kind != "" || reply.Message != "" {
		t.Fatalf("the guest says %+v (%v)", reply, err)
	}
	client, err := client.New(ctx, client.Options{Info: &atoll.Info{Name: "guest"}, Dial: func(ctx context.Context) (net.Conn, error) { return m.Dial(ctx, vm.PortAPI) }})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	out, err := atoll.Output(ctx, client.Sandbox(id), &atoll.Command{Args: []string{"sh", "-c",
		`python3 -c 'import json, ssl, sqlite3; print(json.dumps(6 * 7))'; git --version; echo x > /work/x; echo y > /etc/y && stat -f -c %T /work; stat -c %a /usr/bin/su`}})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("and has run Python after %d ms", time.Since(start).Milliseconds())
	for _, want := range []string{"42\n", "git version 2.", "ext2/ext3\n", "4755\n"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q is missing: %s", want, out)
		}
	}
	if err := m.Stop(ctx); err != nil {
		t.Errorf("Stop: %v", err)
	}
}
