//go:build linux

package docker_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testenv"
	"github.com/seed46cd37a8/atoll/providertest"
)

// podmanRegistry is where podman expects a registry without TLS.
const podmanRegistry = "127.0.0.1:5000"

// podman starts Podman's service for one test. It keeps nothing outside of its
// directory: what else it would write to is covered.
func podman(t *testing.T) *daemon {
	t.Helper()
	if _, err := os.Stat("/usr/lib/podman/netavark"); err != nil {
		t.Skipf("needs podman with netavark: %v; apt-get install podman netavark catatonit", err)
	}
	testenv.Need(t, testenv.Root, testenv.StaticBusybox)
	d, err := newDaemon()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.end(); err != nil {
			t.Error(err)
		}
	})
	for name, text := range map[string]string{
		"containers.conf": "[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nexit_command_delay = 1\n" +
			"[network]\nnetwork_backend = \"netavark\"\nnetwork_config_dir = \"" + d.at("networks") + "\"\n",
		"storage.conf":    fmt.Sprintf("[storage]\ndriver = \"overlay\"\ngraphroot = %q\nrunroot = %q\n", d.at("data"), d.at("run")),
		"registries.conf": fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n", podmanRegistry),
	} {
		if err := os.WriteFile(d.at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	err = d.start(
		`for dir in /run /dev/shm /var/tmp /var/lib/containers; do [ ! -d $dir ] || mount -t tmpfs tmpfs $dir || exit; done
		! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified || exit # with both versions, crun refuses
		export CONTAINERS_CONF="$0/containers.conf" CONTAINERS_STORAGE_CONF="$0/storage.conf" CONTAINERS_REGISTRIES_CONF="$0/registries.conf"`,
		"sh", "-c", `echo $$ >"$0/pid"; exec podman --log-level info system service --time=0 "$1"`, d.dir, d.host)
	if err == nil {
		err = d.loadBusybox(t)
	}
	if err == nil {
		err = d.makeNetworks()
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// What Podman's service does as the Docker Engine that it says it is.
func TestConformancePodman(t *testing.T) {
	d := podman(t)
	providertest.Run(t, func(t *testing.T) atoll.Provider { return d.open(t) }, append(pullableFrom(t, d.serve(t, podmanRegistry), tiny(t)),
		providertest.Slow(3), providertest.Count(20), providertest.Leaks(d.held), providertest.Elsewhere(d.elsewhere()), providertest.Crash(d.crash("SIGQUIT")),
		providertest.Network(openNetwork, d.dial),
		providertest.Reopen(reopen))...)
}
