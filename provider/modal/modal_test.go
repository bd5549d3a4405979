//go:build linux

package modal_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/fakemodal"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
	"github.com/seed46cd37a8/atoll/provider/gvisor"
	"github.com/seed46cd37a8/atoll/provider/modal"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

func TestMain(m *testing.M) {
	if os.Getenv(makerEnv) != "" {
		fmt.Fprintln(os.Stderr, maker(os.Args[1:]))
		os.Exit(1)
	}
	code := m.Run()
	if err := theLab.close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// A lab is a server of Modal's protocol whose sandboxes run in gVisor, for all tests.
type lab struct {
	once    sync.Once
	err     error
	dir     string
	backend *gvisor.Provider
	server  *fakemodal.Server
}

var theLab lab

// need returns the lab, or skips the test.
func need(t testing.TB) *lab {
	t.Helper()
	if err := gvisor.Static("/proc/self/exe"); err != nil {
		t.Skipf("gVisor, whose sandboxes stand for Modal's, needs a static program: %v", err)
	}
	l := &theLab
	l.once.Do(func() { l.err = l.open() })
	if l.err != nil {
		t.Fatal(l.err)
	}
	if probe := atoll.ProbeProvider(t.Context(), l.backend); !probe.OK {
		t.Skipf("gVisor, whose sandboxes stand for Modal's, does not work here: %s; %s", probe.Reason, probe.Fix)
	}
	return l
}

func (l *lab) open() (err error) {
	if l.dir, err = os.MkdirTemp("", "modal-"); err != nil {
		return err
	}
	l.backend, err = gvisor.New(gvisor.Options{Dir: filepath.Join(l.dir, "s"), RunDir: filepath.Join(l.dir, "r"), Cgroup: "atoll-modal-"})
	if err != nil {
		return err
	}
	l.server, err = fakemodal.New(fakemodal.Options{Backend: l.backend, Dir: filepath.Join(l.dir, "modal"), TokenID: "ak-test", TokenSecret: "as-test"})
	return err
}

// close stops the server, and fails if anything is left.
func (l *lab) close() error {
	var errs []error
	if l.server != nil {
		errs = append(errs, l.server.Close())
	}
	if l.backend != nil {
		left, err := l.backend.List(context.Background(), atoll.Filter{})
		errs = append(errs, err)
		for _, st := range left {
			errs = append(errs, fmt.Errorf("sandbox %s of the backend is left", st.ID))
		}
		errs = append(errs, l.backend.Close())
	}
	if l.dir != "" {
		errs = append(errs, os.RemoveAll(l.dir))
	}
	return errors.Join(errs...)
}

// busybox returns the name of an image in a registry of its own.
func busybox(t testing.TB) string {
	return testimage.Serve(t).Push("busybox:1", testimage.WithSockets(t))
}

// options has the options of each opened provider: modal.Options by *modal.Provider.
var options sync.Map

// open returns a provider of the account with names of its own.
func open(t testing.TB, image string, change ...func(*modal.Options)) *modal.Provider {
	t.Helper()
	opts := modal.Options{
		ServerURL: need(t).server.URL(), TokenID: "ak-test", TokenSecret: "as-test",
		Prefix: "t" + atoll.NewID()[:8], Image: image, Guest: testenv.Guest, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	modal.PollEvery(&opts, 100*time.Millisecond)
	for _, f := range change {
		f(&opts)
	}
	p, err := modal.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	options.Store(p, opts)
	return p
}

func optionsOf(p atoll.Provider) modal.Options {
	opts, _ := options.Load(p)
	return opts.(modal.Options)
}

// reopen returns another provider like p.
func reopen(t *testing.T, p atoll.Provider) atoll.Provider {
	t.Helper()
	again, err := modal.New(optionsOf(p))
	if err != nil {
		t.Fatal(err)
	}
	options.Store(again, optionsOf(p))
	return again
}

// makerEnv makes this program create a sandbox and wait to be killed.
const makerEnv = "ATOLL_MODAL_TEST_MAKER"

// An opener opens providers with names of their own.
type opener func(testing.TB, ...func(*modal.Options)) *modal.Provider

// elsewhere creates sandboxes in another process.
func elsewhere(open opener) func(*testing.T) (*exec.Cmd, func() atoll.Provider) {
	return func(t *testing.T) (*exec.Cmd, func() atoll.Provider) {
		p := open(t)
		opts := optionsOf(p)
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(exe, opts.ServerURL, opts.Prefix, opts.Image, opts.App)
		cmd.Env = append(os.Environ(), makerEnv+"=1", "MODAL_TOKEN_ID="+opts.TokenID, "MODAL_TOKEN_SECRET="+opts.TokenSecret)
		return cmd, func() atoll.Provider { return reopen(t, p) }
	}
}

// maker runs in that process.
func maker(args []string) error {
	if os.Getenv(breakEnv) != "" {
		return breaker(args)
	}
	p, err := modal.New(modal.Options{
		ServerURL: args[0], TokenID: os.Getenv("MODAL_TOKEN_ID"), TokenSecret: os.Getenv("MODAL_TOKEN_SECRET"),
		Prefix: args[1], Image: args[2], App: args[3], Guest: testenv.Guest,
	})
	if err != nil {
		return err
	}
	defer p.Close()
	return providertest.CreateAndWait(p, os.Stdin, os.Stdout)
}

// pullable returns an image for the suite.
func pullable(t *testing.T) []providertest.Option {
	t.Helper()
	r := testimage.Serve(t)
	return []providertest.Option{
		providertest.PullableImage(r.Push("tiny:1", testimage.Tiny(t, "text"))), providertest.ImageSource("/file", "text", r.Unplug),
		providertest.Debian(func(t *testing.T) string { return r.Push("debian:1", testimage.Debian(t)) }),
	}
}

// The suite, through the official SDK. provider/docker runs the promises of the guest.
func TestConformance(t *testing.T) {
	l := need(t)
	image := busybox(t)
	first := open(t, image) // the data that the backend caches for an image is not a leak
	sb, err := first.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(sb.Remove(t.Context(), atoll.RemoveVolumes()), first.Close()); err != nil {
		t.Fatal(err)
	}
	opts := pullable(t)
	if !testenv.RunAll() {
		opts = append(opts, providertest.OverEngine(),
			providertest.SkipGroups("the guest keeps them, and all calls to it go one way, which the other groups take", "files", "edit"),
			providertest.SkipGroups("gVisor, which stands for Modal's isolation here, keeps them in its own suite", "isolation", "escape", "exhaustion", "debian"))
	}
	conform(t, func(t testing.TB, change ...func(*modal.Options)) *modal.Provider { return open(t, image, change...) },
		append(opts, providertest.WireOnly(), providertest.CrashSandbox(crash),
			providertest.Leaks(func(*testing.T) []string { return slices.Sorted(maps.Values(l.server.Sandboxes())) }),
			providertest.Except("exhaustion/calls return although a program stops all others in the sandbox",
				"in the stand-in the guest is no first process, and is stopped, too: nothing of it answers then"),
			providertest.Except("limits/the end of the memory ends the greediest process, says so, and spares all else",
				"in the stand-in gVisor ends the process, and says why outside of the sandbox only"))...)
}

// conform runs the suite with any server of Modal's protocol.
func conform(t *testing.T, open opener, options ...providertest.Option) {
	t.Helper()
	providertest.Run(t, func(t *testing.T) atoll.Provider { return open(t) },
		append(options, providertest.Slow(4), providertest.Count(10), providertest.OtherProcess(elsewhere(open)), providertest.Reopen(reopen), providertest.FailSteps(stepwise(open)),
			notHere("network/with a network, allowed addresses can be reached, also of the host"), notHere("network/Stop does not wait for a server that does not read"),
			notHere("exhaustion/many connections out of a sandbox do not block calls to it"),
			providertest.Except("escape/sockets of the host cannot be reached from any network", "it takes a list of names, which Modal's SDK does not have"),
			providertest.Shared("exec", "output", "time", "tree", "tty", "files", "sub", "dial"), beside)...)
}

// beside lists the groups that mostly wait for sandboxes. Group images is not among them: its promises
// remove images, which all providers share.
var beside = providertest.Parallel(4, "create", "expiry", "volumes", "restart", "watch", "remove", "errors", "caps", "limits", "isolation", "crash", "snapshot")

// notHere excepts a promise about this machine, where no sandbox of Modal runs.
func notHere(promise string) providertest.Option {
	return providertest.Except(promise, "sandboxes at Modal have no host that could be allowed")
}

// crash makes Modal lose a sandbox.
func crash(t *testing.T, p atoll.Provider, sb atoll.Sandbox) {
	t.Helper()
	server := need(t).server
	for life, name := range server.Sandboxes() {
		if strings.HasSuffix(name, sb.ID()) {
			if err := server.Preempt(life); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("no sandbox of Modal's is %s", sb.ID())
}

// stepwise opens a provider whose steps can fail.
func stepwise(open opener) func(*testing.T, func(name string) error) atoll.Provider {
	return func(t *testing.T, step func(name string) error) atoll.Provider {
		return open(t, func(o *modal.Options) { modal.OnStep(o, step) })
	}
}
