//go:build linux

package docker_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testenv"
	"github.com/seed46cd37a8/atoll/internal/testimage"
	"github.com/seed46cd37a8/atoll/provider/docker"
	"github.com/seed46cd37a8/atoll/providertest"
)

// busybox is the image that the test engine has.
const busybox = "atoll-local/busybox:1"

// engine is a Docker Engine of the tests' own, in namespaces that end with it.
var engine struct {
	once   sync.Once
	dir    string
	host   string
	guest  []byte
	daemon *exec.Cmd
	tether *os.File // the daemon ends when this is closed
	err    error
}

// makerEnv makes this program one that makes a sandbox, "true" one without a guest,
// and waits to be killed; its arguments are Options.
const makerEnv = "ATOLL_DOCKER_TEST_MAKER"

// init keeps the main thread for TestMain: a goroutine that ends on it in
// another namespace would leave it there, and it is what /proc shows of this process.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	if os.Getenv(makerEnv) != "" {
		fmt.Fprintln(os.Stderr, maker(os.Args[1:]))
		os.Exit(1)
	}
	if host := os.Getenv(proberEnv); host != "" {
		if err := prober(host); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code := m.Run()
	if err := stopEngine(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// needEngine starts the engine for the first test that needs it, and returns
// its address.
func needEngine(t testing.TB) string {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.Program("dockerd", "docker.io"), testenv.StaticBusybox)
	engine.once.Do(func() {
		engine.err = startEngine()
		if engine.err == nil {
			engine.err = loadBusybox(t, engine.host)
		}
		if engine.err == nil {
			engine.err = makeNetworks()
		}
	})
	if engine.err != nil {
		t.Fatal(engine.err)
	}
	return engine.host
}

func startEngine() (err error) {
	if engine.dir, err = os.MkdirTemp("", "atoll-docker-"); err != nil {
		return err
	}
	guest := filepath.Join(engine.dir, "guest")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", guest, "../../cmd/atoll-guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the guest: %w: %s", err, out)
	}
	if engine.guest, err = os.ReadFile(guest); err != nil {
		return err
	}
	if err := makeCertificates(engine.dir); err != nil {
		return err
	}
	at := func(name string) string { return filepath.Join(engine.dir, name) }
	engine.host = "unix://" + at("docker.sock")
	engine.daemon, engine.tether, err = startDaemon(engine.dir, "--host", engine.host, "--host", "tcp://"+tlsAddress,
		"--tlsverify", "--tlscacert", at("ca.pem"), "--tlscert", at("server-cert.pem"), "--tlskey", at("server-key.pem"), "--add-runtime", otherRuntime+"=runc")
	return err
}

// startDaemon starts a Docker Engine in namespaces of its own, which keeps all it has
// in dir, and waits until it answers at dir/docker.sock. It ends when the file is
// closed, and is started again when it ends before that.
func startDaemon(dir string, args ...string) (daemon *exec.Cmd, ours *os.File, err error) {
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(at("none.json"), []byte("{}"), 0o600); err != nil {
		return nil, nil, err
	}
	args = append([]string{
		"-c", `mount --make-rprivate / && mount -t proc proc /proc && busybox ip link set lo up || exit
		{ cat <&3; echo >"$0/end"; kill $(cat "$0/pid"); } & # cat until the tests have ended
		until [ -e "$0/end" ]; do dockerd "$@" & wait $!; rm -f "$0/pid"; done; wait`,
		dir, "--data-root", at("data"), "--exec-root", at("exec"), "--pidfile", at("pid"),
		"--config-file", at("none.json"), "--cgroup-parent", "/" + filepath.Base(dir),
		"--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false",
	}, args...)
	daemon = exec.Command("sh", args...)
	log, err := os.Create(at("log"))
	if err != nil {
		return nil, nil, err
	}
	defer log.Close()
	daemon.Stdout, daemon.Stderr = log, log
	tether, ours, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer tether.Close()
	daemon.Env = append(os.Environ(), "TMPDIR="+dir) // for what it leaves when it is killed
	daemon.ExtraFiles = []*os.File{tether}
	daemon.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, Setpgid: true,
	}
	if err := daemon.Start(); err != nil {
		return nil, ours, err
	}
	if err := answers("unix://" + at("docker.sock")); err != nil {
		text, _ := os.ReadFile(at("log"))
		return daemon, ours, fmt.Errorf("dockerd does not answer: %w\n%s", err, text)
	}
	return daemon, ours, nil
}

// answers waits until an engine does.
func answers(host string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.New(client.WithHost(host))
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		if _, err = c.Ping(ctx, client.PingOptions{}); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// loadBusybox gives an engine the image busybox.
func loadBusybox(t testing.TB, host string) error {
	tag, err := name.NewTag(busybox)
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	if err := tarball.Write(tag, testimage.WithSockets(t), &packed); err != nil {
		return err
	}
	c, err := client.New(client.WithHost(host))
	if err != nil {
		return err
	}
	defer c.Close()
	loaded, err := c.ImageLoad(context.Background(), &packed)
	if err != nil {
		return err
	}
	defer loaded.Close()
	_, err = bytes.NewBuffer(nil).ReadFrom(loaded)
	return err
}

// The networks that the test engine has besides its own, and another runtime.
const (
	openNetwork     = "of-the-suite"
	internalNetwork = "inside.only"
	otherRuntime    = "runc-by-another-name"
)

func makeNetworks() error {
	c, err := client.New(client.WithHost(engine.host))
	if err != nil {
		return err
	}
	defer c.Close()
	for name, internal := range map[string]bool{openNetwork: false, internalNetwork: true} {
		if _, err := c.NetworkCreate(context.Background(), name, client.NetworkCreateOptions{Driver: "bridge", Internal: internal}); err != nil {
			return err
		}
	}
	return nil
}

// dialInside connects to an address of the engine's machine.
func dialInside(ctx context.Context, address string) (conn net.Conn, err error) {
	err = inside(func() (err error) {
		var d net.Dialer
		conn, err = d.DialContext(ctx, "tcp", address)
		return err
	})
	return conn, err
}

func stopEngine() error {
	if engine.dir == "" {
		return nil
	}
	return endDaemon(engine.dir, engine.daemon, engine.tether)
}

// endDaemon ends an engine, as far as it was started, and removes all that it had.
func endDaemon(dir string, daemon *exec.Cmd, tether *os.File) error {
	if tether != nil {
		tether.Close()
	}
	if daemon != nil && daemon.Process != nil {
		_ = daemon.Wait() // with the signal
	}
	groups, err := filepath.Glob("/sys/fs/cgroup/*/" + filepath.Base(dir))
	if err != nil {
		return err
	}
	for _, group := range append(groups, "/sys/fs/cgroup/"+filepath.Base(dir)) {
		var dirs []string
		_ = filepath.WalkDir(group, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, d := range slices.Backward(dirs) {
			if err := os.Remove(d); err != nil {
				return err
			}
		}
	}
	return os.RemoveAll(dir)
}

// options are those that providers were opened with.
var options = map[*docker.Provider]docker.Options{}

// open returns a provider of the test engine with names of its own.
func open(t testing.TB, change ...func(*docker.Options)) *docker.Provider {
	t.Helper()
	host := needEngine(t)
	opts := docker.Options{
		Dir: t.TempDir(), Host: host, Image: busybox, Prefix: "t" + atoll.NewID()[:8],
		Guest: func() ([]byte, error) { return engine.guest, nil },
	}
	for _, f := range change {
		f(&opts)
	}
	p, err := docker.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	options[p] = opts
	t.Cleanup(dropImages) // what one test has pulled another has not
	return p
}

// dropImages removes all images of the engine's but busybox.
func dropImages() {
	ctx := context.Background()
	c, err := client.New(client.WithHost(engine.host))
	if err != nil {
		return
	}
	defer c.Close()
	images, err := c.ImageList(ctx, client.ImageListOptions{})
	if err != nil {
		return
	}
	for _, im := range images.Items {
		if !slices.Contains(im.RepoTags, busybox) {
			_, _ = c.ImageRemove(ctx, im.ID, client.ImageRemoveOptions{Force: true, PruneChildren: true})
		}
	}
}

// elsewhere has sandboxes made by another process.
func elsewhere(change ...func(*docker.Options)) func(*testing.T) (*exec.Cmd, func() atoll.Provider) {
	return func(t *testing.T) (*exec.Cmd, func() atoll.Provider) { return newMaker(t, open(t, change...)) }
}

// newMaker returns a process that makes sandboxes like those of p, which it closes.
func newMaker(t *testing.T, p *docker.Provider) (cmd *exec.Cmd, reopen func() atoll.Provider) {
	opts := options[p]
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(exe, opts.Dir, opts.Host, opts.Prefix, filepath.Join(engine.dir, "guest"))
	cmd.Env = append(os.Environ(), makerEnv+"="+strconv.FormatBool(opts.Plain))
	return cmd, func() atoll.Provider {
		p, err := docker.New(opts)
		if err != nil {
			t.Fatal(err)
		}
		options[p] = opts
		return p
	}
}

// maker is that process.
func maker(args []string) error {
	p, err := docker.New(docker.Options{
		Dir: args[0], Host: args[1], Prefix: args[2], Image: busybox, Guest: func() ([]byte, error) { return os.ReadFile(args[3]) },
		Plain: os.Getenv(makerEnv) == "true",
	})
	if err != nil {
		return err
	}
	defer p.Close()
	return providertest.Make(p, os.Stdin, os.Stdout)
}

// crash lets a sandbox's first process die of a signal: killed, it would count as
// stopped.
func crash(signal string) func(*testing.T, atoll.Provider, atoll.Sandbox) {
	return func(t *testing.T, p atoll.Provider, sb atoll.Sandbox) { hit(t, p, sb, signal) }
}

func hit(t *testing.T, p atoll.Provider, sb atoll.Sandbox, signal string) {
	t.Helper()
	c, err := client.New(client.WithHost(engine.host))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	name := options[p.(*docker.Provider)].Prefix + "-session-" + sb.ID()
	if _, err := c.ContainerKill(t.Context(), name, client.ContainerKillOptions{Signal: signal}); err != nil {
		t.Fatal(err)
	}
}

// held is what the engine holds of anybody's sandboxes.
func held(t *testing.T) []string {
	t.Helper()
	c, err := client.New(client.WithHost(needEngine(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var list []string
	containers, err := c.ContainerList(context.Background(), client.ContainerListOptions{All: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range containers.Items {
		list = append(list, "container "+strings.Join(x.Names, ","))
	}
	volumes, err := c.VolumeList(context.Background(), client.VolumeListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range volumes.Items {
		if !strings.Contains(x.Name, "-guest-") {
			list = append(list, "volume "+x.Name)
		}
	}
	return list
}

// inside calls fn in the engine's network namespace, where its loopback is.
func inside(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", engine.daemon.Process.Pid))
		if err == nil {
			defer ns.Close()
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			err = fn()
		}
		done <- err
	}()
	return <-done
}

// serve starts a registry that the engine can reach.
func serve(t testing.TB) *testimage.Registry {
	t.Helper()
	needEngine(t)
	var l net.Listener
	err := inside(func() (err error) {
		l, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return testimage.ServeOn(t, l, func(ctx context.Context, network, addr string) (c net.Conn, err error) {
		err = inside(func() (err error) {
			var d net.Dialer
			c, err = d.DialContext(ctx, network, addr)
			return err
		})
		return c, err
	})
}

// tiny is an image with one file and no program.
func tiny(t testing.TB) v1.Image {
	return testimage.New(t, v1.Config{}, testimage.Layer(t, testimage.File("file", 0o644, "text")))
}

// debian is an image for the suite, served for one subtest.
func debian(t *testing.T) string {
	t.Helper()
	return serve(t).Push("debian:1", testimage.Debian(t))
}

// pullable is an image for the suite that has a file with that text.
func pullable(t *testing.T, img v1.Image) []providertest.Option {
	t.Helper()
	reg := serve(t)
	ref := reg.Push("tiny:1", img)
	unplug := func(t *testing.T) {
		reg.Fault(func(http.Handler) http.Handler { return http.NotFoundHandler() })
		t.Cleanup(func() { reg.Fault(nil) })
	}
	return []providertest.Option{providertest.Pullable(ref), providertest.Source("/file", "text", unplug), providertest.Debian(debian)}
}

func TestConformance(t *testing.T) {
	needEngine(t)
	providertest.Run(t, func(t *testing.T) atoll.Provider { return open(t) }, append(pullable(t, tiny(t)),
		providertest.Slow(3), providertest.Leaks(held), providertest.Elsewhere(elsewhere()), providertest.Crash(crash("SIGQUIT")),
		providertest.Network(openNetwork, dialInside),
		providertest.Reopen(reopen))...)
}

// reopen returns another provider like p.
func reopen(t *testing.T, p atoll.Provider) atoll.Provider {
	again, err := docker.New(options[p.(*docker.Provider)])
	if err != nil {
		t.Fatal(err)
	}
	return again
}
