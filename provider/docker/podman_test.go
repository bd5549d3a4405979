//go:build linux

package docker_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
	"github.com/seed46cd37a8/atoll/provider/docker"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// podmanEnv enables long tests, which need Podman and rootless engines: "engine" runs the groups
// that depend most on the engine, "all" the whole suite.
const podmanEnv = "ATOLL_TEST_PODMAN"

// needLongTests skips the test unless podmanEnv is set.
func needLongTests(t *testing.T) {
	t.Helper()
	if os.Getenv(podmanEnv) == "" {
		t.Skipf("set %s to engine or all", podmanEnv)
	}
}

// podmanRegistry is the address of a registry that the tests' Podman uses without TLS.
const podmanRegistry = "127.0.0.1:5000"

// coverDirs is a shell script. It mounts a tmpfs on each directory that engines write to outside
// of their own, and unmounts the second cgroup hierarchy, because crun refuses to work with
// both.
const coverDirs = `for dir in /run /dev/shm /var/tmp /var/lib/containers; do [ ! -d $dir ] || mount -t tmpfs tmpfs $dir || exit; done
	! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified || exit
	`

// podmanService is a shell script that executes Podman's service.
const podmanService = `echo $$ >"$0/pid"
	export CONTAINERS_CONF="$0/containers.conf" CONTAINERS_STORAGE_CONF="$0/storage.conf" CONTAINERS_REGISTRIES_CONF="$0/registries.conf"
	exec podman system service --time=0 "$1"`

// ownDaemon returns a daemon that ends with the test.
func ownDaemon(t *testing.T) *daemon {
	t.Helper()
	d, err := newDaemon()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.End(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// needPodman skips the test if Podman is missing. No machine must have it: make test does not
// install it.
func needPodman(t *testing.T) {
	t.Helper()
	for _, file := range []string{"/usr/bin/podman", "/usr/lib/podman/netavark"} {
		if _, err := os.Stat(file); err != nil {
			t.Skipf("needs podman: %v; apt-get install podman netavark", err)
		}
	}
	testenv.Need(t, testenv.Root, testenv.StaticBusybox)
}

// configurePodman writes a configuration with which Podman uses only its own directory.
func (d *daemon) configurePodman(t *testing.T) {
	t.Helper()
	for name, text := range map[string]string{
		"containers.conf": "[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nexit_command_delay = 1\n" +
			fmt.Sprintf("[network]\nnetwork_backend = \"netavark\"\nnetwork_config_dir = %q\n", d.At("networks")),
		"storage.conf":    fmt.Sprintf("[storage]\ndriver = \"overlay\"\ngraphroot = %q\nrunroot = %q\n", d.At("data"), d.At("run")),
		"registries.conf": fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n", podmanRegistry),
	} {
		if err := os.WriteFile(d.At(name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// dropPodmanCgroups removes the cgroups of those containers, and their parents, which all
// Podmans of a machine share, if nobody uses them.
func dropPodmanCgroups(t *testing.T, containers []string) {
	for _, c := range containers {
		if err := testenv.DropCgroups("libpod_parent/libpod-"+filepath.Base(c), 0); err != nil {
			t.Error(err)
		}
	}
	for _, group := range []string{"libpod_parent/conmon", "libpod_parent"} {
		_ = testenv.DropCgroups(group, 0) // it may be in use
	}
}

// startPodman starts Podman's service for one test.
func startPodman(t *testing.T) *daemon {
	t.Helper()
	needPodman(t)
	var left []string
	t.Cleanup(func() { dropPodmanCgroups(t, left) })
	d := ownDaemon(t)
	t.Cleanup(func() { left, _ = filepath.Glob(d.At("data/overlay-containers/*")) })
	d.configurePodman(t)
	err := d.Start(coverDirs, "sh", "-c", podmanService, d.Dir, d.Host)
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

// TestConformancePodman runs the suite with Podman's service. Groups that only use connections
// to guests do not depend on the engine; they run only if podmanEnv is "all".
func TestConformancePodman(t *testing.T) {
	needLongTests(t)
	d := startPodman(t)
	opts := append(pullableAt(t, d.Registry(t, podmanRegistry), testimage.Tiny(t, "text")),
		providertest.Slow(3), providertest.Count(20), providertest.Leaks(d.Held), providertest.OtherProcess(d.makeElsewhere()), providertest.CrashSandbox(d.crashSandbox("SIGQUIT")),
		providertest.Network(openNetwork, d.Dial), providertest.Reopen(reopen), watchesException, bindsException,
		providertest.Except("images/a stopped sandbox can start after its image was removed by force",
			"by force, Podman removes the sandbox with its image, so that it is refused"))
	if os.Getenv(podmanEnv) != "all" {
		opts = append(opts, providertest.Only("volumes", "images", "watch", "limits", "named"))
	}
	providertest.Run(t, func(t *testing.T) atoll.Provider { return d.openProvider(t) }, opts...)
}

// Podman cannot mount some paths, creates missing sources, and removes sandboxes with their
// image. The provider prevents these requests.
func TestPodman(t *testing.T) {
	d := startPodman(t)
	p := d.openProvider(t)
	t.Cleanup(func() { p.Close() })
	checkWorks(t, p)
	ctx, dir := t.Context(), t.TempDir()
	bind := func(source, target string) error {
		_, err := p.Create(ctx, &atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountBind, Source: source, Target: target}}})
		return err
	}
	wantKind(t, "a colon", bind(dir, "/a:ro"), atoll.ErrUnsupported, `"/a:ro"`, `":"`)
	missing := filepath.Join(dir, "missing")
	wantKind(t, "a source that is not there", bind(missing, "/a"), atoll.ErrNotExist, missing)
	if _, err := os.Stat(missing); err == nil {
		t.Error("the missing source was created")
	}
	_, err := p.Create(ctx, &atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountTmpfs, Target: "/a,ro=true"}}})
	wantKind(t, "a comma", err, atoll.ErrUnsupported, `","`)

	wantKind(t, "GPUs", func() error {
		_, err := p.Create(ctx, &atoll.Spec{Resources: atoll.Resources{GPUs: "all"}})
		return err
	}(), atoll.ErrUnsupported, "GPUs")
	other := d.openProvider(t, func(o *docker.Options) { o.Runtime = "runc" })
	t.Cleanup(func() { other.Close() })
	wantProbe(t, atoll.ProbeProvider(ctx, other), "podman does not accept a runtime", "containers.conf")
	_, err = other.Create(ctx, &atoll.Spec{})
	wantKind(t, "a runtime", err, atoll.ErrUnsupported, "containers.conf")

	ref := d.Registry(t, podmanRegistry).Push("kept:1", testimage.Tiny(t, "text"))
	sb := createSandbox(t, p, atoll.Spec{Image: ref})
	if err := sb.Stop(ctx, 0); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "RemoveImage by force", p.RemoveImage(ctx, ref, true), atoll.ErrConflict, "remove them first")
	if err := sb.Start(ctx); err != nil {
		t.Errorf("Start: %v", err)
	}
}

// With Podman, no program can have a volume mounted over the guest of its sandbox.
func TestPodmanMountLinks(t *testing.T) {
	d := startPodman(t)
	p := d.openProvider(t)
	t.Cleanup(func() { p.Close() })
	t.Run("of a program", func(t *testing.T) { checkNoLinkFollowed(t, p) })
	t.Run("of an image", func(t *testing.T) { checkNoImageLinkFollowed(t, p, d.Registry(t, podmanRegistry)) })
}

// socketDialer returns a function that dials a Unix socket.
func socketDialer(host string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", strings.TrimPrefix(host, "unix://"))
	}
}

// Sandboxes without a guest work with Podman.
func TestPodmanPlain(t *testing.T) {
	p := startPodman(t).openProvider(t, withoutGuest)
	t.Cleanup(func() { p.Close() })
	checkWorks(t, p)
}

// rootlessUser is the uid that runs the rootless engines, in namespaces of the tests.
const rootlessUser = 4242

// asUser is a shell script that runs before an engine of an ordinary user. It changes copies of
// the files that user namespaces need.
var asUser = strings.NewReplacer("ID", fmt.Sprint(rootlessUser)).Replace(`
	for f in passwd group subuid subgid; do cp /etc/$f "$0/$f" || exit; done
	echo "rootless:x:ID:ID::$0/home:/bin/sh" >>"$0/passwd"; echo "rootless:x:ID:" >>"$0/group"
	echo "rootless:200000:65536" | tee -a "$0/subuid" >>"$0/subgid"
	for f in passwd group subuid subgid; do mount --bind "$0/$f" /etc/$f || exit; done
	mknod -m 666 /dev/shm/tun c 10 200 && mount --bind /dev/shm/tun /dev/net/tun || exit
	mkdir -p "$0/home" "$0/data" "$0/xdg" && chown -R ID:ID "$0" || exit
	set -- setpriv --reuid ID --regid ID --clear-groups --inh-caps=-all env HOME="$0/home" XDG_RUNTIME_DIR="$0/xdg" USER=rootless "$@"
	`)

// rootlessDocker returns the path of dockerd-rootless.sh.
func rootlessDocker() (string, error) {
	const debian = "/usr/share/docker.io/contrib/dockerd-rootless.sh"
	if _, err := os.Stat(debian); err == nil {
		return debian, nil
	}
	return exec.LookPath("dockerd-rootless.sh")
}

// rootlessEngines start engines of an ordinary user.
var rootlessEngines = map[string]func(t *testing.T) *daemon{
	"podman": func(t *testing.T) *daemon {
		needPodman(t)
		needRootless(t)
		d := ownDaemon(t)
		d.configurePodman(t)
		if err := d.Start(coverDirs+asUser, "sh", "-c", podmanService, d.Dir, d.Host); err != nil {
			t.Fatal(err)
		}
		return d
	},
	"docker": func(t *testing.T) *daemon {
		script, err := rootlessDocker()
		if err == nil {
			_, err = exec.LookPath("rootlesskit")
		}
		if err != nil {
			t.Skipf("needs a rootless dockerd: %v; apt-get install docker.io rootlesskit", err)
		}
		testenv.Need(t, testenv.Root, testenv.StaticBusybox)
		needRootless(t)
		d := ownDaemon(t)
		err = d.Start(coverDirs+asUser, "sh", "-c", `echo $$ >"$0/pid"; exec "$@"`, d.Dir,
			script, "--host", d.Host, "--data-root", d.At("data"), "--iptables=false", "--ip6tables=false", "--bridge=none")
		if err != nil {
			t.Fatal(err)
		}
		return d
	},
}

func needRootless(t *testing.T) {
	t.Helper()
	for _, program := range []string{"newuidmap", "slirp4netns", "setpriv"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s: %v; apt-get install uidmap slirp4netns", program, err)
		}
	}
}

// A rootless engine works. Its caps and Probe name what it cannot do, and such requests fail.
func TestRootless(t *testing.T) {
	needLongTests(t)
	for name, start := range rootlessEngines {
		t.Run(name, func(t *testing.T) {
			d := start(t)
			if err := d.loadBusybox(t); err != nil {
				t.Fatal(err)
			}
			t.Run("directly, as root", func(t *testing.T) { checkCaps(t, d.openProvider(t)) })
			t.Run("through the engine", func(t *testing.T) {
				checkCaps(t, d.openProvider(t, func(o *docker.Options) { o.Host, o.Dial = "", socketDialer(o.Host) }))
			})
		})
	}
}

// checkCaps checks that the engine does what the caps say, as far as that depends on its rights.
func checkCaps(t *testing.T, p *docker.Provider) {
	t.Helper()
	t.Cleanup(func() { p.Close() })
	checkWorks(t, p)
	ctx := t.Context()
	sb := createSandbox(t, p, atoll.Spec{Env: []string{"GREETING=hello"}})
	st, err := sb.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	agrees := func(what string, can bool, err error) {
		t.Helper()
		if can && err != nil || !can && atoll.KindOf(err) != atoll.ErrUnsupported {
			t.Errorf("%s: %v, but the cap is %v", what, err, can)
		}
	}
	made := func(r atoll.Resources) error {
		limited, err := p.Create(ctx, &atoll.Spec{Resources: r})
		if err == nil {
			err = limited.Remove(ctx, atoll.RemoveVolumes())
		}
		return err
	}
	agrees("a memory limit", st.Caps.MemoryLimit, made(atoll.Resources{Memory: 64 << 20}))
	agrees("a CPU limit", st.Caps.CPULimit, made(atoll.Resources{CPUs: 0.5}))
	agrees("a process limit", st.Caps.ProcessLimit, made(atoll.Resources{Processes: 20}))
	agrees("Pause", st.Caps.Pause, atoll.Pause(ctx, sb))
	if st.Caps.Pause {
		agrees("Resume", true, atoll.Resume(ctx, sb))
	}
	_, err = atoll.UsageOf(ctx, sb)
	agrees("Usage", st.Caps.Usage, err)
	for word, can := range map[string]bool{"memory": st.Caps.MemoryLimit, "CPU": st.Caps.CPULimit, "process": st.Caps.ProcessLimit, "no pause": st.Caps.Pause} {
		notes := strings.Join(atoll.ProbeProvider(ctx, p).Notes, "\n")
		if strings.Contains(notes, word) == can {
			t.Errorf("the cap is %v, but the notes of Probe are %q", can, notes)
		}
	}
	if err := atoll.WriteFile(ctx, sb, "f", []byte("kept"), 0o644); err != nil {
		t.Errorf("WriteFile: %v", err)
	}
	if err := sb.Stop(ctx, 0); err != nil {
		t.Fatal(err)
	}
	if got, err := atoll.ReadFile(ctx, sb, "f"); string(got) != "kept" { // by a caretaker
		t.Errorf("while stopped, the file holds %q, %v", got, err)
	}
	if err := sb.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if got := runShell(t, sb, `cat f; echo " $GREETING"; grep -c : /proc/net/dev`); got != "kept hello\n1" {
		t.Errorf("after Start, the shell printed %q", got)
	}
}
