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

// Pods made by the real controller of agent-sandbox keep the promises of those that are
// made without. The roles that are shipped are enough, and all of them is needed.
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
		agentMaker(o)
		o.Config, o.Namespace = config, "atoll-sandboxes"
	}
	t.Run("suite", func(t *testing.T) {
		providertest.Run(t, func(t *testing.T) atoll.Provider { return open(t, as) },
			providertest.Slow(4), providertest.Count(10), providertest.Leaks(heldByAgents), providertest.Reopen(reopen), providertest.Crash(crash),
			providertest.Only("death", "crash"), beside) // the controller starts and ends pods, and has no other part
	})
	t.Run("warm suite", func(t *testing.T) {
		with := func(change ...func(*kubernetes.Options)) *kubernetes.Provider { return open(t, change...) }
		providertest.Run(t, func(t *testing.T) atoll.Provider { return warmed(t, as, with) },
			providertest.Slow(4), providertest.Leaks(heldByAgents), providertest.Reopen(reopen), providertest.Only("exec"), providertest.Wire(), together)
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

// agentMaker has agent-sandbox make pods.
func agentMaker(o *kubernetes.Options) { o.AgentSandbox = kubernetes.AgentSandboxOn }

// heldByAgents is held, and what is of any provider among the objects of agent-sandbox.
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

// notInstalled: who wants agent-sandbox is told what to do, who would take it does without.
func notInstalled(t *testing.T) {
	p := provider(t, agentMaker)
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

// An older is a cluster that does not serve v1beta1, as far as clients can see; for the rest
// it is the real one, which converts.
type older struct{ http.RoundTripper }

func (o older) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := o.RoundTripper.RoundTrip(req)
	if err == nil && req.URL.Path == "/apis/agents.x-k8s.io/v1beta1" {
		resp.StatusCode = http.StatusNotFound
	}
	return resp, err
}

func (o older) WrappedRoundTripper() http.RoundTripper { return o.RoundTripper }

// before has a provider see such a cluster.
func before(o *kubernetes.Options) {
	o.Config = rest.CopyConfig(o.Config)
	o.Config.Wrap(func(next http.RoundTripper) http.RoundTripper { return older{next} })
}

// olderVersion: of what a cluster serves the newest version that is known is used, also with
// a namespace for each project.
func olderVersion(t *testing.T) {
	p := provider(t, agentMaker, before, func(o *kubernetes.Options) { o.Namespace, o.PerProject = "p"+atoll.NewID()[:8], true })
	lives(t, p, "v1alpha1")
	if err := p.RemoveProject(t.Context(), atoll.DefaultProject); err != nil {
		t.Error(err)
	}
}

// lives takes a sandbox through its life, of which kubectl tells what Atoll does, with that
// version of the API.
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

// ownPod: what was started without agent-sandbox runs on, and is a Sandbox after its next start.
func ownPod(t *testing.T) {
	p := provider(t)
	id := created(t, p, atoll.Spec{}).ID()
	opts := optionsOf(p)
	agentMaker(&opts)
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

// podsOf are those of a sandbox.
func podsOf(t *testing.T, sb atoll.Sandbox) string {
	t.Helper()
	return lab(t).Kubectl(t, "get", "pods", "--all-namespaces", "--selector=atoll/session="+sb.ID(), "--output=name")
}

// agentsPodIsDeleted: the controller makes another pod in place of one that somebody
// deletes, in which nothing runs: the sandbox has failed, as it says, and its Sandbox is
// suspended, until it is started.
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

// agentsRefusals: what the controller may not make is said at once, in Kubernetes's words.
func agentsRefusals(t *testing.T) {
	c := lab(t)
	namespace := "n" + atoll.NewID()[:8]
	c.Kubectl(t, "create", "namespace", namespace)
	t.Cleanup(func() { c.Kubectl(t, "delete", "namespace", namespace) })
	c.Kubectl(t, "-n", namespace, "create", "quota", "few", "--hard=pods=1")
	p := provider(t, agentMaker, func(o *kubernetes.Options) { o.Namespace = namespace })
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
	bad := provider(t, agentMaker, baseline, func(o *kubernetes.Options) { o.Namespace = namespace })
	if _, err := bad.Create(t.Context(), &atoll.Spec{}); atoll.KindOf(err) != atoll.ErrUnavailable || !strings.Contains(err.Error(), "violates PodSecurity") {
		t.Errorf("a pod that is not restricted: %v", err)
	}
}

// warmPods: a sandbox that can have a pod that waits gets one, which is then as its own would
// be; what such a pod cannot be, gets its own.
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
	for range 3 { // more than there are
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

// warmed is a provider that has two pods kept warm until the end of the test, and they are.
func warmed(t *testing.T, as func(*kubernetes.Options), open func(...func(*kubernetes.Options)) *kubernetes.Provider) (p *kubernetes.Provider) {
	t.Helper()
	t.Cleanup(func() { // after what open has done at the end; who keeps none has those of others deleted
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

// full waits until two pods wait.
func full(t *testing.T, p *kubernetes.Provider) {
	t.Helper()
	if _, err := p.List(t.Context(), atoll.Filter{}); err != nil {
		t.Fatal(err)
	}
	lab(t).Kubectl(t, "--namespace="+optionsOf(p).Namespace, "wait", "sandboxwarmpools.extensions.agents.x-k8s.io/"+optionsOf(p).Prefix+"-warm", "--for=jsonpath={.status.readyReplicas}=2", "--timeout="+testenv.Scale(4*time.Minute).String())
}

// crashAny is crash, whatever the pod is called.
func crashAny(t *testing.T, p atoll.Provider, sb atoll.Sandbox) {
	t.Helper()
	in := "--namespace=" + optionsOf(p.(*kubernetes.Provider)).Namespace
	lab(t).Kubectl(t, in, "delete", "--force", "--grace-period=0", strings.TrimSpace(podsOf(t, sb)))
}

// noController: without its controller nothing starts, and it is said why; what runs goes on,
// and can be stopped and removed.
func noController(t *testing.T, a *testcluster.AgentSandbox) {
	p := provider(t, agentMaker)
	sb := created(t, p, atoll.Spec{})
	var impatient []*kubernetes.Provider // each is asked where the one before was too hasty: a busy machine takes long to do the steps before
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
	fails("Create", "agent-sandbox has made no pod", func(hasty *kubernetes.Provider) error {
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
	fails("Start", "does its controller run?", func(hasty *kubernetes.Provider) error {
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
