package testengine

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// DaggerGateway is the address of the machine for the containers of a Dagger engine.
const DaggerGateway = "10.87.0.1"

// Dagger needs a Dagger engine, its CLI and their dependencies, and returns an engine that ends with
// the test. Its containers reach only DaggerGateway. It pulls over plain HTTP from the registry at its
// machine's loopback address.
func Dagger(t testing.TB, registry string) *Engine {
	t.Helper()
	program := testenv.Dagger(t, "engine")
	testenv.Need(t, testenv.Root, testenv.StaticBusybox, testenv.Program("runc", "runc"), testenv.Program("dnsmasq", "dnsmasq-base"),
		testenv.Program("iptables", "iptables"), testenv.File("/usr/lib/cni/bridge", "containernetworking-plugins"))
	e, err := New()
	if err != nil {
		t.Fatal(err)
	}
	e.Host = "unix://" + e.At("dagger.sock")
	t.Cleanup(func() {
		if err := e.End(); err != nil {
			t.Errorf("Dagger engine: %v", err)
		}
	})
	if err := e.startDagger(program, testenv.Dagger(t, "dnsname"), registry); err != nil {
		t.Fatal(err)
	}
	return e
}

// prepareNamespaces is a shell script that gives the engine its own directories, because it writes
// into /etc and /run, reads the traffic of its containers from /sys, and installs certificates.
const prepareNamespaces = `mkdir "$0/mem" && mount -t tmpfs -o mode=711 engine "$0/mem" &&
	mkdir -p "$0/mem/etc" "$0/mem/work" "$0/mem/run" "$0/mem/tmp" "$0/mem/cgroup" &&
	mount -t overlay -o "lowerdir=/etc,upperdir=$0/mem/etc,workdir=$0/mem/work" etc /etc && mount --bind "$0/mem/run" /run &&
	mount --rbind /sys/fs/cgroup "$0/mem/cgroup" && mount -t sysfs sys /sys && mount --rbind "$0/mem/cgroup" /sys/fs/cgroup || exit
	export TMPDIR="$0/mem/tmp" PATH="$0/bin:$PATH"`

// startDagger starts a Dagger engine and waits until it listens.
func (e *Engine) startDagger(program, dnsname, registry string) error {
	links := map[string]string{"bin/update-ca-certificates": "/bin/true", "bin/c_rehash": "/bin/true", "cni/dnsname": dnsname}
	for _, plugin := range []string{"bridge", "firewall", "host-local", "loopback"} {
		links["cni/"+plugin] = "/usr/lib/cni/" + plugin
	}
	for name, target := range links {
		if err := os.MkdirAll(filepath.Dir(e.At(name)), 0o755); err != nil {
			return err
		}
		if err := os.Symlink(target, e.At(name)); err != nil {
			return err
		}
	}
	config := fmt.Sprintf("[worker.oci]\n  defaultCgroupParent = %q\n[registry.%q]\n  http = true\n", "/"+filepath.Base(e.Dir), registry)
	if err := os.WriteFile(e.At("engine.toml"), []byte(config), 0o600); err != nil {
		return err
	}
	return e.startEngine(e.checkListening, prepareNamespaces, "sh", "-c", `echo $$ >"$0"; exec "$@"`, e.At("pid"),
		program, "--config", e.At("engine.toml"), "--root", e.At("mem/state"), "--addr", e.Host, "--oci-cni-binary-dir", e.At("cni"),
		"--network-name", "dagger", "--network-cidr", "10.87.0.0/16")
}

// checkListening waits until the engine listens on its socket.
func (e *Engine) checkListening() error {
	for end := time.Now().Add(startTime); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("unix", e.Host[len("unix://"):])
		if err == nil {
			return conn.Close()
		}
		if time.Now().After(end) {
			return err
		}
	}
}
