//go:build linux

package kubernetes_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testcluster"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/kubernetes"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// Pods created by the real controller of agent-sandbox keep the same promises as pods created
// without it. The shipped roles suffice, and none of their permissions is superfluous.
func TestAgentSandbox(t *testing.T) {
	if testing.Short() {
		t.Skip("in -short TestConformance is enough")
	}
	lab(t)
	t.Run("not installed", notInstalled)
	a := lab(t).AgentSandbox(t)
	account := &counted{used: map[string]bool{}}
	files := []string{"sandboxes/role.yaml", "components/agent-sandbox/role.yaml"}
	config := account.config(t, files...)
	t.Cleanup(func() {
		for _, file := range files {
			lab(t).Kubectl(t, "delete", "--filename", deploy+file)
		}
	})
	as := func(o *kubernetes.Options) {
		withAgentSandbox(o)
		o.Config, o.Namespace = config, "atoll-sandboxes"
	}
	t.Run("suite", func(t *testing.T) {
		providertest.Run(t, func(t *testing.T) atoll.Provider { return open(t, as) },
			providertest.Slow(4), providertest.Count(10), providertest.Leaks(heldByAgents), providertest.Reopen(reopen), providertest.CrashSandbox(crash),
			providertest.Only("crash"), beside) // the controller starts and ends pods, and does nothing else
	})
	t.Run("warm suite", func(t *testing.T) {
		with := func(change ...func(*kubernetes.Options)) *kubernetes.Provider { return open(t, change...) }
		providertest.Run(t, func(t *testing.T) atoll.Provider { return warmed(t, as, with) },
			providertest.Slow(4), providertest.Leaks(heldByAgents), providertest.Reopen(reopen), providertest.Only("exec"), providertest.WireOnly(), together)
	})
	t.Run("its life", func(t *testing.T) { lives(t, provider(t, as), "v1beta1") })
	t.Run("an older version", olderVersion)
	t.Run("a pod of its own", ownPod)
	t.Run("a deleted pod", func(t *testing.T) { agentsPodIsDeleted(t, as) })
	t.Run("warm pods", func(t *testing.T) { warmPods(t, as) })
	t.Run("refusals", agentsRefusals)
	t.Run("no controller", func(t *testing.T) { noController(t, a) })
	account.check(t, lab(t).Kubectl(t, "get", "clusterrole", "atoll-agent-sandbox", "--output=json"), kubernetes.NeededAgents())
}

// withAgentSandbox makes agent-sandbox create pods.
func withAgentSandbox(o *kubernetes.Options) { o.AgentSandbox = kubernetes.AgentSandboxOn }

// heldByAgents returns what held returns, and the objects of agent-sandbox of any provider.
func heldByAgents(t *testing.T) []string {
	t.Helper()
	list := held(t)
	core, _, done := clients(t)
	defer done()
	for _, kind := range []string{"agents.x-k8s.io/v1beta1/sandboxes", "extensions.agents.x-k8s.io/v1beta1/sandboxclaims"} {
		text, err := core.RESTClient().Get().AbsPath("/apis/"+kind).Param("labelSelector", "atoll/owner").SetHeader("Accept", "application/json").Do(context.Background()).Raw()
		var all metav1.PartialObjectMetadataList
		if err == nil {
			err = json.Unmarshal(text, &all)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, object := range all.Items {
			list = append(list, kind+" "+object.Name)
		}
	}
	return list
}

// Without agent-sandbox, the setting on fails with instructions, and auto creates pods without
// it.
func notInstalled(t *testing.T) {
	p := provider(t, withAgentSandbox)
	_, err := p.Create(t.Context(), &atoll.Spec{})
	if atoll.KindOf(err) != atoll.ErrUnavailable || !strings.Contains(err.Error(), "does not serve sandboxes.agents.x-k8s.io: install agent-sandbox") {
		t.Errorf("Create: %v", err)
	}
	if probe := p.Probe(t.Context()); probe.OK || !strings.Contains(probe.Reason, "install agent-sandbox") {
		t.Errorf("Probe: %+v", probe)
	}
	auto := provider(t, func(o *kubernetes.Options) { o.AgentSandbox = kubernetes.AgentSandboxAuto })
	says(t, created(t, auto, atoll.Spec{}), "true")
	if probe := auto.Probe(t.Context()); !probe.OK {
		t.Errorf("Probe: %+v", probe)
	}
}

// An older hides v1beta1 from its clients; the requests go to the real cluster, which converts
// between versions.
type older struct{ http.RoundTripper }

func (o older) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := o.RoundTripper.RoundTrip(req)
	if err == nil && req.URL.Path == "/apis/agents.x-k8s.io/v1beta1" {
		resp.StatusCode = http.StatusNotFound
	}
	return resp, err
}

func (o older) WrappedRoundTripper() http.RoundTripper { return o.RoundTripper }

// before makes a provider use such a cluster.
func before(o *kubernetes.Options) {
	o.Config = rest.CopyConfig(o.Config)
	o.Config.Wrap(func(next http.RoundTripper) http.RoundTripper { return older{next} })
}

// A provider uses the newest known version that the cluster serves, also with a namespace for
// each project.
func olderVersion(t *testing.T) {
	p := provider(t, withAgentSandbox, before, func(o *kubernetes.Options) { o.Namespace, o.PerProject = "p"+atoll.NewID()[:8], true })
	lives(t, p, "v1alpha1")
	if err := p.RemoveProject(t.Context(), atoll.DefaultProject); err != nil {
		t.Error(err)
	}
}

// lives takes a sandbox through its life with that version of the API, and checks what kubectl
// shows.
func lives(t *testing.T, p *kubernetes.Provider, version string) {
	t.Helper()
	if probe := p.Probe(t.Context()); !probe.OK || !strings.Contains(strings.Join(probe.Notes, " "), "agent-sandbox ("+version+")") {
		t.Errorf("Probe: %+v", probe)
	}
	c := lab(t)
	is := func(sb atoll.Sandbox, column, want string) {
		t.Helper()
		c.Kubectl(t, "wait", "sandboxes.v1beta1.agents.x-k8s.io", "--all-namespaces", "--selector=atoll/session="+sb.ID(), "--for=jsonpath="+column+"="+want, "--timeout="+testenv.Scale(2*time.Minute).String())
	}
	sb := created(t, p, atoll.Spec{})
	says(t, sb, "echo work > /work/file")
	is(sb, `{.status.conditions[?(@.type=="Ready")].status}`, "True")
	if err := sb.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	is(sb, `{.spec.operatingMode}`, "Suspended")
	is(sb, `{.status.conditions[?(@.type=="Suspended")].status}`, "True")
	if got := podsOf(t, sb); got != "" {
		t.Errorf("the pods of what is stopped are %q", got)
	}
	if err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	is(sb, `{.status.conditions[?(@.type=="Ready")].status}`, "True")
	if got := says(t, sb, "cat /work/file"); got != "work\n" {
		t.Errorf("its file has %q", got)
	}
	if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Fatal(err)
	}
	if got := c.Kubectl(t, "get", "sandboxes.agents.x-k8s.io", "--all-namespaces", "--output=name"); got != "" {
		t.Errorf("there is still %s", got)
	}
	short := created(t, p, atoll.Spec{Cmd: []string{"/bin/busybox", "true"}})
	becomes(t, short, 2*time.Minute, "stopped", func(st atoll.Status) bool { return st.State == atoll.StateStopped })
	is(short, `{.spec.operatingMode}`, "Suspended")
}

// A sandbox that was started without agent-sandbox keeps running, and becomes a Sandbox with
// its next start.
func ownPod(t *testing.T) {
	p := provider(t)
	id := created(t, p, atoll.Spec{}).ID()
	opts := optionsOf(p)
	withAgentSandbox(&opts)
	later, err := kubernetes.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	defer later.Close()
	sb, err := later.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	says(t, sb, "echo work > /work/file")
	if err := sb.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := says(t, sb, "cat /work/file"); got != "work\n" {
		t.Errorf("its file has %q", got)
	}
	lab(t).Kubectl(t, "get", "sandboxes.agents.x-k8s.io", opts.Prefix+"-"+id)
	if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Fatal(err)
	}
}

// podsOf returns the pods of a sandbox.
func podsOf(t *testing.T, sb atoll.Sandbox) string {
	t.Helper()
	return lab(t).Kubectl(t, "get", "pods", "--all-namespaces", "--selector=atoll/session="+sb.ID(), "--output=name")
}

// If another program deletes a pod, the controller creates another one, in which nothing runs:
// the sandbox has failed and says so, and its Sandbox is suspended until the next start.
func agentsPodIsDeleted(t *testing.T, as func(*kubernetes.Options)) {
	c, p := lab(t), provider(t, as)
	in := "--namespace=" + optionsOf(p).Namespace
	sb := created(t, p, atoll.Spec{Cmd: []string{"/bin/busybox", "sh", "-c", "echo run >> /work/runs; exec /bin/busybox sleep 1000"}})
	crash(t, p, sb)
	st := becomes(t, sb, 2*time.Minute, "failed", func(st atoll.Status) bool { return st.State == atoll.StateFailed })
	if !strings.Contains(st.Reason, "its pod was deleted by somebody else") {
		t.Errorf("the reason is %q", st.Reason)
	}
	name := optionsOf(p).Prefix + "-" + sb.ID()
	c.Kubectl(t, in, "wait", "sandboxes.agents.x-k8s.io/"+name, `--for=jsonpath={.spec.operatingMode}=Suspended`, "--timeout="+testenv.Scale(2*time.Minute).String())
	if err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := says(t, sb, "cat /work/runs"); got != "run\nrun\n" {
		t.Errorf("it ran as %q, want twice", got)
	}
	c.Kubectl(t, in, "delete", "sandboxes.agents.x-k8s.io", name)
	becomes(t, sb, 2*time.Minute, "not running", func(st atoll.Status) bool { return st.State != atoll.StateRunning })
	if err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	says(t, sb, "true")
}

// If the controller may not create an object, the provider says so at once, in the words of
// Kubernetes.
func agentsRefusals(t *testing.T) {
	c := lab(t)
	namespace := "n" + atoll.NewID()[:8]
	c.Kubectl(t, "create", "namespace", namespace)
	t.Cleanup(func() { c.Kubectl(t, "delete", "namespace", namespace) })
	c.Kubectl(t, "-n", namespace, "create", "quota", "few", "--hard=pods=1")
	p := provider(t, withAgentSandbox, func(o *kubernetes.Options) { o.Namespace = namespace })
	created(t, p, atoll.Spec{})
	begun := time.Now()
	if _, err := p.Create(t.Context(), &atoll.Spec{}); atoll.KindOf(err) != atoll.ErrExhausted || !strings.Contains(err.Error(), "exceeded quota: few") {
		t.Errorf("one more than the quota: %v", err)
	}
	if took := time.Since(begun); took > testenv.Scale(time.Minute) {
		t.Errorf("it took %v to say so", took)
	}
	c.Kubectl(t, "-n", namespace, "delete", "quota", "few")
	c.Kubectl(t, "label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
	bad := provider(t, withAgentSandbox, baseline, func(o *kubernetes.Options) { o.Namespace = namespace })
	if _, err := bad.Create(t.Context(), &atoll.Spec{}); atoll.KindOf(err) != atoll.ErrUnavailable || !strings.Contains(err.Error(), "violates PodSecurity") {
		t.Errorf("a pod that is not restricted: %v", err)
	}
}

// A sandbox that fits a warm pod gets one, which is then like its own would be; any other gets
// its own.
func warmPods(t *testing.T, as func(*kubernetes.Options)) {
	p := warmed(t, as, func(change ...func(*kubernetes.Options)) *kubernetes.Provider { return provider(t, change...) })
	prefix := optionsOf(p).Prefix
	isWarm := func(sb atoll.Sandbox, want bool) {
		t.Helper()
		if pods := podsOf(t, sb); strings.HasPrefix(pods, "pod/"+prefix+"-warm-") != want {
			t.Errorf("its pod is %q; a warm one is wanted: %v", pods, want)
		}
	}
	begun := time.Now()
	sb := created(t, p, atoll.Spec{
		Name: "quick", Env: []string{"WORD=here"}, Workdir: "/work/deep",
		Cmd: []string{"/bin/busybox", "sh", "-c", "echo main in $PWD; echo run >> /work/runs; exec /bin/busybox sleep 1000"},
	})
	t.Logf("it took %v", time.Since(begun))
	isWarm(sb, true)
	if got := says(t, sb, "echo $WORD $PWD; cat /work/runs"); got != "here /work/deep\nrun\n" {
		t.Errorf("it says %q", got)
	}
	if got := lab(t).Kubectl(t, "--namespace="+optionsOf(p).Namespace, "get", "networkpolicy", prefix+"-warm-network-policy", "--output=jsonpath={.spec.policyTypes}{.spec.ingress}{.spec.egress}"); got != `["Ingress","Egress"]` {
		t.Errorf("a pod that waits may %s", got)
	}
	if st, err := sb.Status(t.Context()); err != nil || st.State != atoll.StateRunning || !st.Ready || !strings.HasPrefix(st.Image, busyboxRef) {
		t.Errorf("it is %+v, %v", st, err)
	}
	if err := sb.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	main, err := sb.Process(t.Context(), atoll.MainProcess)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := main.Attach(t.Context(), &atoll.Attachment{Stdout: &out}); err != nil || out.String() != "main in /work/deep\n" {
		t.Errorf("its main process printed %q, %v", out.String(), err)
	}
	if err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	isWarm(sb, false)
	isWarm(created(t, p, atoll.Spec{Resources: atoll.Resources{Memory: 64 << 20}}), false)

	full(t, p)
	var all []atoll.Sandbox
	for range 3 { // more than there are warm pods
		all = append(all, created(t, p, atoll.Spec{}))
	}
	isWarm(all[0], true)
	for _, one := range all {
		if got := says(t, one, "cat /work/runs 2>/dev/null; echo fresh"); got != "fresh\n" {
			t.Errorf("it says %q", got)
		}
	}
	crashAny(t, p, all[0])
	becomes(t, all[0], 2*time.Minute, "failed", func(st atoll.Status) bool { return st.State == atoll.StateFailed })
	if err := all[0].Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	says(t, all[0], "true")
}

// warmed returns a provider that keeps two pods warm until the end of the test, when both are
// warm.
func warmed(t *testing.T, as func(*kubernetes.Options), open func(...func(*kubernetes.Options)) *kubernetes.Provider) (p *kubernetes.Provider) {
	t.Helper()
	t.Cleanup(func() { // runs after open's cleanup; a provider without warm pods deletes those of others
		opts := optionsOf(p)
		opts.WarmPods = 0
		none, err := kubernetes.New(opts)
		if err != nil {
			t.Fatal(err)
		}
		defer none.Close()
		if _, err := none.List(context.Background(), atoll.Filter{}); err != nil {
			t.Error(err)
		}
		lab(t).Kubectl(t, "--namespace="+opts.Namespace, "wait", "pods", "--selector=atoll/owner="+opts.Prefix, "--for=delete", "--timeout="+testenv.Scale(4*time.Minute).String())
	})
	p = open(as, func(o *kubernetes.Options) { o.Ephemeral, o.WarmPods = true, 2 })
	full(t, p)
	return p
}

// full waits until two pods are warm.
func full(t *testing.T, p *kubernetes.Provider) {
	t.Helper()
	if _, err := p.List(t.Context(), atoll.Filter{}); err != nil {
		t.Fatal(err)
	}
	lab(t).Kubectl(t, "--namespace="+optionsOf(p).Namespace, "wait", "sandboxwarmpools.extensions.agents.x-k8s.io/"+optionsOf(p).Prefix+"-warm", "--for=jsonpath={.status.readyReplicas}=2", "--timeout="+testenv.Scale(4*time.Minute).String())
}

// crashAny is like crash, for any name of the pod.
func crashAny(t *testing.T, p atoll.Provider, sb atoll.Sandbox) {
	t.Helper()
	in := "--namespace=" + optionsOf(p.(*kubernetes.Provider)).Namespace
	lab(t).Kubectl(t, in, "delete", "--force", "--grace-period=0", strings.TrimSpace(podsOf(t, sb)))
}

// Without its controller nothing starts, and the error says why; running sandboxes go on, and
// can be stopped and removed.
func noController(t *testing.T, a *testcluster.AgentSandbox) {
	p := provider(t, withAgentSandbox)
	sb := created(t, p, atoll.Spec{})
	var impatient []*kubernetes.Provider // each is used if the one before was too impatient: a busy machine takes long for the steps before
	for _, patience := range []time.Duration{6 * time.Second, 24 * time.Second, 96 * time.Second} {
		opts := optionsOf(p)
		opts.Patience = patience
		hasty, err := kubernetes.New(opts)
		if err != nil {
			t.Fatal(err)
		}
		defer hasty.Close()
		impatient = append(impatient, hasty)
	}
	fails := func(what, want string, ask func(*kubernetes.Provider) error) {
		t.Helper()
		var err error
		for _, hasty := range impatient {
			if err = ask(hasty); atoll.KindOf(err) == atoll.ErrUnavailable && strings.Contains(err.Error(), want) {
				return
			}
		}
		t.Errorf("%s: %v, want it to say %q", what, err, want)
	}
	a.Stop(t)
	fails("Create", "agent-sandbox created no pod", func(hasty *kubernetes.Provider) error {
		_, err := hasty.Create(t.Context(), &atoll.Spec{})
		return err
	})
	says(t, sb, "echo work > /work/file")
	if err := sb.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if got := podsOf(t, sb); got != "" {
		t.Errorf("the pods of what is stopped are %q", got)
	}
	fails("Start", "check its controller", func(hasty *kubernetes.Provider) error {
		there, err := hasty.Get(t.Context(), sb.ID())
		if err != nil {
			return err
		}
		return there.Start(t.Context())
	})
	if st, err := sb.Status(t.Context()); err != nil || st.State != atoll.StateStopped {
		t.Errorf("it is %s, %v", st.State, err)
	}
	a.Start(t)
	if err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := says(t, sb, "cat /work/file"); got != "work\n" {
		t.Errorf("its file has %q", got)
	}
}
