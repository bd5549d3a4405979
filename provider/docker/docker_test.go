//go:build linux

package docker_test

import (
	"fmt"
	"net/http"
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

// busybox is the image that the test engine has.
const busybox = "atoll-local/busybox:1"

// engine is the Docker Engine of most tests.
var engine struct {
	*daemon
	once sync.Once
	err  error
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

// The networks that the test engine has besides its own, and another runtime.
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

// options are those that providers were opened with: docker.Options by *docker.Provider.
var options sync.Map

func optionsOf(p *docker.Provider) docker.Options {
	opts, _ := options.Load(p)
	return opts.(docker.Options)
}

// open returns a provider of the test engine with names of its own.
func open(t testing.TB, change ...func(*docker.Options)) *docker.Provider {
	t.Helper()
	needEngine(t)
	return engine.open(t, change...)
}

// open returns a provider of its sandboxes with names of its own.
func (d *daemon) open(t testing.TB, change ...func(*docker.Options)) *docker.Provider {
	t.Helper()
	opts := docker.Options{Dir: t.TempDir(), Host: d.Host, Image: busybox, Prefix: "t" + atoll.NewID()[:8], Guest: testenv.Guest}
	for _, f := range change {
		f(&opts)
	}
	p, err := docker.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	options.Store(p, opts)
	t.Cleanup(d.dropImages) // what one test has pulled another has not
	t.Cleanup(func() {
		if t.Failed() {
			d.revive(t, patience)
		}
	})
	return p
}

// elsewhere has sandboxes made by another process.
func elsewhere(change ...func(*docker.Options)) func(*testing.T) (*exec.Cmd, func() atoll.Provider) {
	return engine.elsewhere(change...)
}

// elsewhere has its sandboxes made by another process.
func (d *daemon) elsewhere(change ...func(*docker.Options)) func(*testing.T) (*exec.Cmd, func() atoll.Provider) {
	return func(t *testing.T) (*exec.Cmd, func() atoll.Provider) { return newMaker(t, d.open(t, change...)) }
}

// newMaker returns a process that makes sandboxes like those of p, which it closes.
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
	cmd.Env = append(os.Environ(), makerEnv+"="+strconv.FormatBool(opts.Plain))
	return cmd, func() atoll.Provider {
		p, err := docker.New(opts)
		if err != nil {
			t.Fatal(err)
		}
		options.Store(p, opts)
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
	return engine.crash(signal)
}

func (d *daemon) crash(signal string) func(*testing.T, atoll.Provider, atoll.Sandbox) {
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
	return pullableFrom(t, serve(t), img)
}

func pullableFrom(t *testing.T, reg *testimage.Registry, img v1.Image) []providertest.Option {
	ref := reg.Push("tiny:1", img)
	unplug := func(t *testing.T) {
		reg.Fault(func(http.Handler) http.Handler { return http.NotFoundHandler() })
		t.Cleanup(func() { reg.Fault(nil) })
	}
	return []providertest.Option{providertest.Pullable(ref), providertest.Source("/file", "text", unplug), providertest.Debian(debian)}
}

func TestConformance(t *testing.T) {
	needEngine(t)
	opts := append(pullable(t, tiny(t)), providertest.Count(100))
	if testing.Short() { // as with the race detector, which finds nothing in what an engine's walls do
		opts = append(opts, providertest.Count(40), providertest.Rest("-short: these are those that do much at once"),
			providertest.Only("birth", "expiry", "exec", "output", "time", "tty", "files", "volumes", "sessions", "memory", "crash", "watch", "death", "dial", "ledger", "faults"))
	}
	providertest.Run(t, func(t *testing.T) atoll.Provider { return open(t) }, append(opts, together,
		providertest.Slow(3), providertest.Leaks(held), providertest.Elsewhere(elsewhere()), providertest.Crash(crash("SIGQUIT")),
		providertest.Network(openNetwork, dialInside), sharedWatches,
		providertest.Reopen(reopen))...)
}

// together is what needs no containers of its own.
var together = providertest.Shared("exec", "output", "time", "tree", "tty", "files", "sub", "dial", "pause")

// sharedWatches is what of the host no container can be kept from using up.
var sharedWatches = providertest.Except("siege/a program that takes all file watches exhausts only its own sandbox",
	"the kernel counts watches by user, and users of containers are those of the host unless the engine has userns-remap: decision 26")

// reopen returns another provider like p.
func reopen(t *testing.T, p atoll.Provider) atoll.Provider {
	again, err := docker.New(optionsOf(p.(*docker.Provider)))
	if err != nil {
		t.Fatal(err)
	}
	return again
}
