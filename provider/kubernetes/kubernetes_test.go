//go:build linux

package kubernetes_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	networkingv1client "k8s.io/client-go/kubernetes/typed/networking/v1"
	"k8s.io/client-go/rest"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testcluster"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
	"github.com/seed46cd37a8/atoll/provider/kubernetes"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

func TestMain(m *testing.M) {
	if os.Getenv(makerEnv) != "" {
		fmt.Fprintln(os.Stderr, makeSandbox(os.Args[1:]))
		os.Exit(1)
	}
	code := m.Run()
	if err := testcluster.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// The images that the cluster's machine has.
const (
	guestRef   = "localhost/atoll-guest:1"
	busyboxRef = "localhost/busybox:1"
)

var loaded sync.Once

// lab returns the cluster with everything that the tests need in it.
func lab(t testing.TB) *testcluster.Cluster {
	t.Helper()
	c := testcluster.Need(t)
	loaded.Do(func() {
		c.Load(t, guestRef, guestImage(t))
		c.Load(t, busyboxRef, testimage.WithSockets(t))
	})
	return c
}

// guestImage returns an image with only the guest's program.
func guestImage(t testing.TB) v1.Image {
	t.Helper()
	program, err := testenv.Guest()
	if err != nil {
		t.Fatal(err)
	}
	return testimage.New(t, v1.Config{}, testimage.Layer(t, testimage.File("atoll-guest", 0o555, string(program))))
}

// options has the options of each opened provider: kubernetes.Options by *kubernetes.Provider.
var options sync.Map

// open returns a provider of the test cluster with names of its own.
func open(t testing.TB, change ...func(*kubernetes.Options)) *kubernetes.Provider {
	t.Helper()
	opts := kubernetes.Options{Config: lab(t).Config(), Namespace: "default"}
	for _, f := range change {
		f(&opts)
	}
	return openAt(t, opts)
}

// openAt is like open, for any options.
func openAt(t testing.TB, opts kubernetes.Options) *kubernetes.Provider {
	t.Helper()
	opts.Prefix, opts.Image, opts.GuestImage, opts.Requests = "t"+atoll.NewID()[:8], cmp.Or(opts.Image, busyboxRef), guestRef, 0.02
	opts.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	p, err := kubernetes.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	options.Store(p, opts)
	return p
}

func optionsOf(p *kubernetes.Provider) kubernetes.Options {
	opts, _ := options.Load(p)
	return opts.(kubernetes.Options)
}

// reopen returns another provider like p.
func reopen(t *testing.T, p atoll.Provider) atoll.Provider {
	again, err := kubernetes.New(optionsOf(p.(*kubernetes.Provider)))
	if err != nil {
		t.Fatal(err)
	}
	options.Store(again, optionsOf(p.(*kubernetes.Provider)))
	return again
}

// makerEnv makes this program create a sandbox and wait to be killed.
const makerEnv = "ATOLL_KUBERNETES_TEST_MAKER"

// elsewhere creates sandboxes in another process.
func elsewhere(change ...func(*kubernetes.Options)) func(*testing.T) (*exec.Cmd, func() atoll.Provider) {
	return func(t *testing.T) (*exec.Cmd, func() atoll.Provider) {
		p := open(t, change...)
		opts := optionsOf(p)
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(exe, opts.Config.Host, opts.Config.BearerToken, opts.Prefix, opts.Image, opts.GuestImage, string(opts.Profile), opts.Namespace)
		cmd.Env = append(os.Environ(), makerEnv+"=1")
		return cmd, func() atoll.Provider { return reopen(t, p) }
	}
}

// makeSandbox runs in that process.
func makeSandbox(args []string) error {
	config := testcluster.ConfigOf(args[0], args[1])
	p, err := kubernetes.New(kubernetes.Options{
		Config: config, Namespace: args[6], Prefix: args[2], Image: args[3], GuestImage: args[4], Profile: kubernetes.Profile(args[5]), Requests: 0.02,
	})
	if err != nil {
		return err
	}
	defer p.Close()
	return providertest.CreateAndWait(p, os.Stdin, os.Stdout)
}

// clients returns clients of the API server, with connections of their own until done.
func clients(t testing.TB) (core *corev1client.CoreV1Client, net *networkingv1client.NetworkingV1Client, done func()) {
	t.Helper()
	config := lab(t).Config()
	config.Proxy = http.ProxyFromEnvironment
	client, err := rest.HTTPClientFor(config)
	if err == nil {
		core, err = corev1client.NewForConfigAndClient(config, client)
	}
	if err == nil {
		net, err = networkingv1client.NewForConfigAndClient(config, client)
	}
	if err != nil {
		t.Fatal(err)
	}
	return core, net, func() { utilnet.CloseIdleConnectionsFor(client.Transport) }
}

// held returns the objects of any provider in the cluster.
func held(t *testing.T) (list []string) {
	t.Helper()
	core, net, done := clients(t)
	defer done()
	opts := metav1.ListOptions{LabelSelector: "atoll/owner"}
	add := func(kind string, name func(i int) string, n int, err error) {
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			list = append(list, kind+" "+name(i))
		}
	}
	pods, err := core.Pods("").List(context.Background(), opts)
	add("pod", func(i int) string { return pods.Items[i].Name }, len(pods.Items), err)
	maps, err := core.ConfigMaps("").List(context.Background(), opts)
	add("configmap", func(i int) string { return maps.Items[i].Name }, len(maps.Items), err)
	claims, err := core.PersistentVolumeClaims("").List(context.Background(), opts)
	add("claim", func(i int) string { return claims.Items[i].Name }, len(claims.Items), err)
	policies, err := net.NetworkPolicies("").List(context.Background(), opts)
	add("policy", func(i int) string { return policies.Items[i].Name }, len(policies.Items), err)
	return list
}

// pullable returns an image for the suite, in a registry of the cluster's machine.
func pullable(t *testing.T) []providertest.Option {
	t.Helper()
	r := lab(t).Registry(t)
	debian := func(t *testing.T) string { return lab(t).Registry(t).Push("debian:1", testimage.Debian(t)) }
	return []providertest.Option{providertest.PullableImage(r.Push("tiny:1", testimage.Tiny(t, "text"))), providertest.ImageSource("/file", "text", r.Unplug),
		providertest.MovingImage(r.PushTiny("moving:1")), providertest.Debian(debian)}
}

// The suite with the shipped role, in a namespace that enforces the Pod Security Standard
// restricted. The role suffices, and none of its permissions is superfluous.
func TestConformance(t *testing.T) {
	account := &counted{used: map[string]bool{}}
	config := account.config(t, "sandboxes/role.yaml")
	t.Cleanup(func() { lab(t).Kubectl(t, "delete", "--filename", deploy+"sandboxes/role.yaml") })
	as := func(o *kubernetes.Options) { o.Config, o.Namespace = config, "atoll-sandboxes" }
	opts := append(pullable(t), providertest.WireOnly()) // provider/docker runs the promises of the guest
	if testing.Short() {
		opts = append(opts, providertest.Only("exec", "files", "watch", "remove"), providertest.SkipRest("in -short these are enough"))
	} else if !testenv.RunAll() {
		opts = append(opts, providertest.SkipGroups("TestBaseline runs it, where programs may do more", "escape"),
			providertest.SkipGroups("docker's sandboxes have the same runtime", "exhaustion"),
			providertest.OverEngine())
	}
	providertest.Run(t, func(t *testing.T) atoll.Provider { return open(t, as) },
		append(opts, providertest.Slow(4), providertest.Count(10), providertest.Leaks(held), providertest.OtherProcess(elsewhere(as)),
			providertest.Reopen(reopen), providertest.CrashSandbox(crash), providertest.FailSteps(stepwise(as)), sharedWatches, lostEnd, rootsFiles, rootsPrograms, together, beside)...)
	if testing.Short() {
		return
	}
	tryAll(t, as)
	account.check(t, lab(t).Kubectl(t, "--namespace=atoll-sandboxes", "get", "role", "atoll", "--output=json"), kubernetes.Needed(false))
}

// together lists the groups that need no pods of their own: a pod takes a second to create.
var together = providertest.Shared("exec", "output", "time", "tree", "tty", "files", "sub", "dial", "escape", "network")

// beside lists the groups that need pods of their own, and wait for them.
var beside = providertest.Parallel(4, "create", "expiry", "volumes", "images", "restart", "watch", "remove", "errors", "caps", "limits", "isolation", "crash")

// sharedWatches excepts a resource of the node that no pod can be kept from using up.
var sharedWatches = providertest.Except("exhaustion/a program that takes all file watches exhausts only its own sandbox",
	"the kernel counts watches by user, and users of pods are those of their node unless it has user namespaces: decision 26")

// lostEnd excepts what the container runtime does not do.
var lostEnd = providertest.Except("remove/Stop retains the last output of the main process",
	"containerd 1.6 may lose the last 128 KiB of a log that grows fast when its container ends")

// rootsFiles excepts users that the profile restricted does not have; TestBaseline has them.
var rootsFiles = providertest.Except("images/each sandbox starts with the files of its image, and changes only its own",
	"the image's files are root's, whom the profile restricted does not have")

// rootsPrograms excepts what only root can do: install packages.
var rootsPrograms = providertest.Except("debian/programs of a distribution work in a sandbox as they do elsewhere",
	"dpkg wants to be root, whom the profile restricted does not have")

// crash deletes the pod of a sandbox without the provider's knowledge.
func crash(t *testing.T, p atoll.Provider, sb atoll.Sandbox) {
	t.Helper()
	opts := optionsOf(p.(*kubernetes.Provider))
	lab(t).Kubectl(t, "--namespace", opts.Namespace, "delete", "pod", opts.Prefix+"-"+sb.ID(), "--force", "--grace-period=0")
}

// stepwise opens a provider whose steps can fail.
func stepwise(change func(*kubernetes.Options)) func(*testing.T, func(name string) error) atoll.Provider {
	return func(t *testing.T, step func(name string) error) atoll.Provider {
		return open(t, change, func(o *kubernetes.Options) { kubernetes.OnStep(o, step) })
	}
}

// Users depend on the profile, and with them isolation, capabilities, owners of files, and
// programs that need root.
func TestBaseline(t *testing.T) {
	if testing.Short() {
		t.Skip("in -short TestConformance is enough")
	}
	lab(t)
	groups := []string{"isolation", "escape", "images"}
	if testenv.RunAll() {
		groups = append(groups, "files", "debian") // no file or program needs more than those of the other groups
	}
	providertest.Run(t, func(t *testing.T) atoll.Provider { return open(t, baseline) },
		append(pullable(t), providertest.Slow(4), providertest.Leaks(held), providertest.Reopen(reopen),
			providertest.Only(groups...), providertest.WireOnly(), together, beside)...)
}

func baseline(o *kubernetes.Options) { o.Profile = kubernetes.Baseline }
