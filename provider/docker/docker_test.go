//go:build linux

package docker_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
	"github.com/seed46cd37a8/atoll/provider/docker"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// busybox is the default image of the tests.
const busybox = "atoll-local/busybox:1"

// engine is the Docker Engine of most tests.
var engine struct {
	*daemon
	once sync.Once
	err  error
}

// runMakerEnv makes this program create a sandbox and wait to be killed; "true" means without a
// guest. Its arguments are Options.
const runMakerEnv = "ATOLL_DOCKER_TEST_MAKER"

// init reserves the main thread for TestMain: /proc shows the namespaces of that thread for this
// process, and a goroutine could end on it in another namespace.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	if os.Getenv(runMakerEnv) != "" {
		fmt.Fprintln(os.Stderr, runMaker(os.Args[1:]))
		os.Exit(1)
	}
	if host := os.Getenv(runProberEnv); host != "" {
		if err := runProber(host); err != nil {
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

// needEngine starts the engine for the first test that needs it, and returns its address.
func needEngine(t testing.TB) string {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.Program("dockerd", "docker.io"), testenv.StaticBusybox)
	engine.once.Do(func() {
		engine.err = startEngine()
		if engine.err == nil {
			engine.err = engine.loadBusybox(t)
		}
		if engine.err == nil {
			engine.err = engine.makeNetworks()
		}
	})
	if engine.err != nil {
		t.Fatal(engine.err)
	}
	return engine.Host
}

func startEngine() (err error) {
	if engine.daemon, err = newDaemon(); err != nil {
		return err
	}
	if err := makeCertificates(engine.Dir); err != nil {
		return err
	}
	at := engine.At
	return engine.Dockerd("--host", "tcp://"+tlsAddress,
		"--tlsverify", "--tlscacert", at("ca.pem"), "--tlscert", at("server-cert.pem"), "--tlskey", at("server-key.pem"), "--add-runtime", otherRuntime+"=runc")
}

// The test engine's additional networks and runtime.
const (
	openNetwork     = "of-the-suite"
	internalNetwork = "inside.only"
	otherRuntime    = "runc-by-another-name"
)

func stopEngine() error {
	if engine.daemon == nil {
		return nil
	}
	return engine.End()
}

// openedOptions has the docker.Options of each *docker.Provider.
var openedOptions sync.Map

func optionsOf(p *docker.Provider) docker.Options {
	opts, _ := openedOptions.Load(p)
	return opts.(docker.Options)
}

// open returns a provider of the test engine with a prefix of its own.
func open(t testing.TB, change ...func(*docker.Options)) *docker.Provider {
	t.Helper()
	needEngine(t)
	return engine.openProvider(t, change...)
}

// openProvider returns a provider of this engine with a prefix of its own.
func (d *daemon) openProvider(t testing.TB, change ...func(*docker.Options)) *docker.Provider {
	t.Helper()
	opts := docker.Options{Dir: t.TempDir(), Host: d.Host, Image: busybox, Prefix: "t" + atoll.NewID()[:8], Guest: testenv.Guest}
	for _, f := range change {
		f(&opts)
	}
	p, err := docker.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	openedOptions.Store(p, opts)
	t.Cleanup(d.dropImages) // tests do not share pulled images
	t.Cleanup(func() {
		if t.Failed() {
			d.restartSilent(t, answerTimeout)
		}
	})
	return p
}

// newElsewhere returns a function that prepares another process to create sandboxes in the test
// engine.
func newElsewhere(change ...func(*docker.Options)) func(*testing.T) (*exec.Cmd, func() atoll.Provider) {
	return engine.makeElsewhere(change...)
}

// makeElsewhere does the same for this engine.
func (d *daemon) makeElsewhere(change ...func(*docker.Options)) func(*testing.T) (*exec.Cmd, func() atoll.Provider) {
	return func(t *testing.T) (*exec.Cmd, func() atoll.Provider) {
		return newMaker(t, d.openProvider(t, change...))
	}
}

// newMaker closes p, and returns a process that creates sandboxes with its options.
func newMaker(t *testing.T, p *docker.Provider) (cmd *exec.Cmd, reopen func() atoll.Provider) {
	opts := optionsOf(p)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	program, err := testenv.Guest()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "guest")
	if err := os.WriteFile(file, program, 0o600); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(exe, opts.Dir, opts.Host, opts.Prefix, file)
	cmd.Env = append(os.Environ(), runMakerEnv+"="+strconv.FormatBool(opts.Plain))
	return cmd, func() atoll.Provider {
		p, err := docker.New(opts)
		if err != nil {
			t.Fatal(err)
		}
		openedOptions.Store(p, opts)
		return p
	}
}

// runMaker is the main function of that process.
func runMaker(args []string) error {
	p, err := docker.New(docker.Options{
		Dir: args[0], Host: args[1], Prefix: args[2], Image: busybox, Guest: func() ([]byte, error) { return os.ReadFile(args[3]) },
		Plain: os.Getenv(runMakerEnv) == "true",
	})
	if err != nil {
		return err
	}
	defer p.Close()
	return providertest.CreateAndWait(p, os.Stdin, os.Stdout)
}

// crashWith returns a function that sends a signal to a sandbox's first process. It must not be
// SIGKILL: after that, the sandbox counts as stopped.
func crashWith(signal string) func(*testing.T, atoll.Provider, atoll.Sandbox) {
	return engine.crashSandbox(signal)
}

func (d *daemon) crashSandbox(signal string) func(*testing.T, atoll.Provider, atoll.Sandbox) {
	return func(t *testing.T, p atoll.Provider, sb atoll.Sandbox) {
		t.Helper()
		c, err := client.New(client.WithHost(d.Host))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		name := optionsOf(p.(*docker.Provider)).Prefix + "-session-" + sb.ID()
		if _, err := c.ContainerKill(t.Context(), name, client.ContainerKillOptions{Signal: signal}); err != nil {
			t.Fatal(err)
		}
	}
}

// pushDebian serves the suite's Debian image for one subtest.
func pushDebian(t *testing.T) string {
	t.Helper()
	return serveRegistry(t).Push("debian:1", testimage.Debian(t))
}

// pullableOptions serves an image for the suite. The image must have /file with the content
// "text".
func pullableOptions(t *testing.T, img v1.Image) []providertest.Option {
	t.Helper()
	return pullableAt(t, serveRegistry(t), img)
}

func pullableAt(t *testing.T, reg *testimage.Registry, img v1.Image) []providertest.Option {
	ref := reg.Push("tiny:1", img)
	return []providertest.Option{providertest.PullableImage(ref), providertest.ImageSource("/file", "text", reg.Unplug),
		providertest.MovingImage(reg.PushTiny("moving:1")), providertest.Debian(pushDebian)}
}

func TestConformance(t *testing.T) {
	needEngine(t)
	count := 40
	if testenv.RunAll() {
		count = 100
	}
	opts := append(pullableOptions(t, testimage.Tiny(t, "text")), providertest.Count(count))
	if testing.Short() { // the race detector runs with -short, and finds nothing in the engine's code
		opts = append(opts, providertest.SkipRest("-short: these are those that do much at once"),
			providertest.Only("create", "expiry", "exec", "output", "time", "tty", "files", "volumes", "sessions", "restart", "crash", "watch", "remove", "dial", "registry", "faults"))
	}
	providertest.Run(t, func(t *testing.T) atoll.Provider { return open(t) }, append(opts, sharedGroups,
		providertest.Slow(3), providertest.Leaks(heldObjects), providertest.OtherProcess(newElsewhere()), providertest.CrashSandbox(crashWith("SIGQUIT")),
		providertest.Network(openNetwork, dialInEngine), watchesException, bindsException,
		providertest.Reopen(reopen))...)
}

// sharedGroups are the groups of promises that can share a sandbox.
var sharedGroups = providertest.Shared("exec", "output", "time", "tree", "tty", "files", "sub", "dial", "pause")

// watchesException excepts a promise that no container can keep.
var watchesException = providertest.Except("exhaustion/a program that takes all file watches exhausts only its own sandbox",
	"the kernel counts watches by user, and users of containers are those of the host unless the engine has userns-remap: decision 26")

// bindsException excepts a promise that the engine does not keep.
var bindsException = providertest.Except("escape/root inside leaves no set-user-ID program and no device in a directory of the host",
	"root of a container is root of the host in a bind mount, unless the engine has userns-remap: decision 66")

// reopen returns another provider with the options of p.
func reopen(t *testing.T, p atoll.Provider) atoll.Provider {
	again, err := docker.New(optionsOf(p.(*docker.Provider)))
	if err != nil {
		t.Fatal(err)
	}
	return again
}
