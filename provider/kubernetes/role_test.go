//go:build linux

package kubernetes_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testcluster"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/kubernetes"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// deploy has the manifests that deploy Atoll to a cluster, with the role of its account.
const deploy = "../../deploy/kubernetes/"

// A counted is an account of the cluster, which counts the permissions that it uses.
type counted struct {
	mu   sync.Mutex
	used map[string]bool // "VERB GROUP/RESOURCE[/SUBRESOURCE]"
}

// config returns the configuration of the server's account, which has the permissions in those
// files of deploy.
func (c *counted) config(t *testing.T, files ...string) *rest.Config {
	t.Helper()
	cluster := lab(t)
	for _, file := range append([]string{"base/namespace.yaml", "base/account.yaml", "sandboxes/namespace.yaml"}, files...) {
		cluster.Kubectl(t, "apply", "--filename", deploy+file)
	}
	token := strings.TrimSpace(cluster.Kubectl(t, "--namespace=atoll", "create", "token", "atoll", "--duration=2h"))
	config := testcluster.ConfigOf(cluster.Config().Host, token)
	config.WrapTransport = func(next http.RoundTripper) http.RoundTripper { return &counting{c, next} }
	return config
}

type counting struct {
	*counted
	next http.RoundTripper
}

func (c *counting) RoundTrip(req *http.Request) (*http.Response, error) {
	if what := asked(req); what != "" {
		c.mu.Lock()
		c.used[what] = true
		c.mu.Unlock()
	}
	return c.next.RoundTrip(req)
}

func (c *counting) WrappedRoundTripper() http.RoundTripper { return c.next }

// asked returns the permission that a request needs; "" if every account has it.
func asked(req *http.Request) string {
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	group := ""
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		group, parts = parts[1], parts[3:]
	default:
		return ""
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	what := parts[0]
	if len(parts) > 2 {
		what += "/" + parts[2]
	}
	verb := map[string]string{http.MethodGet: "get", http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete"}[req.Method]
	if verb == "get" && len(parts) == 1 {
		verb = "list"
		if req.URL.Query().Get("watch") != "" {
			verb = "watch"
		}
	}
	return verb + " " + group + "/" + what
}

// check checks that a role, as kubectl prints it, allows exactly what Probe checks, and that
// the account has used every permission that is not rare.
func (c *counted) check(t *testing.T, role string, needed []string) {
	t.Helper()
	var r struct{ Rules []rbacv1.PolicyRule }
	if err := json.Unmarshal([]byte(role), &r); err != nil {
		t.Fatal(err)
	}
	var allowed []string
	for _, rule := range r.Rules {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				allowed = append(allowed, verb+" "+rule.APIGroups[0]+"/"+resource)
			}
		}
	}
	slices.Sort(allowed)
	slices.Sort(needed)
	if !slices.Equal(allowed, needed) {
		t.Errorf("the role allows\n%q, and Probe asks for\n%q", allowed, needed)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, what := range allowed {
		if !c.used[what] && rare[what] == "" {
			t.Errorf("the role allows to %s, which is not used", what)
		}
	}
}

// rare lists permissions that these tests need not use, with their purpose.
var rare = map[string]string{
	"create /pods/exec":            "API servers from 1.35 on ask for it",
	"get /pods":                    "two programs want the files of a stopped sandbox at once",
	"list /configmaps":             "API servers before 1.34 do not send lists by a watch",
	"list /events":                 "the same",
	"list /persistentvolumeclaims": "the same",
	"list /pods":                   "the same, and another program has just started a sandbox",

	"list agents.x-k8s.io/sandboxes":                "the same",
	"list extensions.agents.x-k8s.io/sandboxclaims": "the same",

	"create extensions.agents.x-k8s.io/sandboxtemplates": "API servers check it if a patched object does not exist",
	"create extensions.agents.x-k8s.io/sandboxwarmpools": "the same",
}

// With a namespace for each project, where an admission policy restricts the account to those
// namespaces: the role for that suffices, and none of its permissions is superfluous.
func TestRolePerProject(t *testing.T) {
	used := &counted{used: map[string]bool{}}
	files := []string{"components/namespace-per-project/role.yaml", "components/namespace-per-project/admission.yaml"}
	config := used.config(t, files...)
	t.Cleanup(func() {
		for _, file := range files {
			lab(t).Kubectl(t, "delete", "--filename", deploy+file)
		}
	})
	bounded(t, config)
	as := func(o *kubernetes.Options) { o.Config, o.Namespace, o.PerProject = config, "atoll-sandboxes", true }
	t.Run("suite", func(t *testing.T) {
		providertest.Run(t, func(t *testing.T) atoll.Provider { return open(t, as) },
			providertest.Slow(4), providertest.Count(10), providertest.Leaks(held), providertest.Reopen(reopen), providertest.Only("volumes"), beside)
	})
	tryAll(t, as)
	used.check(t, lab(t).Kubectl(t, "get", "clusterrole", "atoll-sandboxes", "--output=json"), kubernetes.Needed(true))
}

// tryAll makes the calls that the suite does not make, and checks that the account may make
// them.
func tryAll(t *testing.T, as func(*kubernetes.Options)) {
	t.Helper()
	p := open(t, as)
	defer p.Close()
	if probe := atoll.ProbeProvider(t.Context(), p); !probe.OK {
		t.Errorf("it is said not to work: %+v", probe)
	}
	if _, err := kubernetes.Enforces(t.Context(), optionsOf(p)); err != nil {
		t.Errorf("whether policies are enforced: %v", err)
	}
	if _, err := kubernetes.Place(t.Context(), optionsOf(p)); err != nil {
		t.Errorf("which place it is: %v", err)
	}
	ended := created(t, p, atoll.Spec{Cmd: []string{"/bin/busybox", "echo", "its last words"}})
	becomes(t, ended, 3*time.Minute, "stopped", func(st atoll.Status) bool { return st.State == atoll.StateStopped })
	main, err := ended.Process(t.Context(), atoll.MainProcess)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := main.Attach(t.Context(), &atoll.Attachment{Stdout: &out}); err != nil || out.String() != "its last words\n" {
		t.Errorf("a main process that has ended: %q, %v", &out, err)
	}
	if err := atoll.RemoveProject(t.Context(), p, atoll.DefaultProject); err != nil {
		t.Errorf("removing a project: %v", err)
	}
}

// bounded waits until the admission policy keeps the account from the namespaces of others.
func bounded(t *testing.T, config *rest.Config) {
	t.Helper()
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(testenv.Scale(3 * time.Minute)); ; time.Sleep(100 * time.Millisecond) {
		err := core.ConfigMaps("default").Delete(context.Background(), "kube-root-ca.crt", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
		if apierrors.IsForbidden(err) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the account may delete what is in the namespace default: %v", err)
		}
	}
	if err := core.Namespaces().Delete(context.Background(), "default", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}); !apierrors.IsForbidden(err) {
		t.Errorf("the account may delete the namespace default: %v", err)
	}
	other := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "atoll-others"}}
	if _, err := core.Namespaces().Create(context.Background(), other, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the account may make the namespace atoll-others: %v", err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "stranger"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: busyboxRef}}}}
	if _, err := core.Pods("default").Create(context.Background(), pod, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the account may make pods in the namespace default: %v", err)
	}
}
