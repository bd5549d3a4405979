//go:build linux

package kubernetes_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/kubernetes"
)

// provider returns a provider of open, closed at the end of the test, and then checks that
// nothing is left.
func provider(t *testing.T, change ...func(*kubernetes.Options)) *kubernetes.Provider {
	t.Helper()
	p := open(t, change...)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		all, err := p.List(ctx, atoll.Filter{})
		if err != nil {
			t.Errorf("List: %v", err)
		}
		for _, st := range all {
			if sb, err := p.Get(ctx, st.ID); err == nil {
				if err := sb.Remove(ctx, atoll.RemoveVolumes()); err != nil {
					t.Errorf("Remove: %v", err)
				}
			}
		}
		if err := p.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return p
}

func created(t *testing.T, p atoll.Provider, spec atoll.Spec) atoll.Sandbox {
	t.Helper()
	sb, err := p.Create(t.Context(), &spec)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

func shell(script string) *atoll.Command {
	return &atoll.Command{Args: []string{"/bin/busybox", "sh", "-c", script}}
}

// says runs a script, and returns its output.
func says(t *testing.T, sb atoll.Sandbox, script string) string {
	t.Helper()
	cmd := shell(script)
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := atoll.Run(t.Context(), sb, cmd); err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return out.String()
}

// becomes waits until want accepts the status of a sandbox.
func becomes(t *testing.T, sb atoll.Sandbox, within time.Duration, what string, want func(atoll.Status) bool) atoll.Status {
	t.Helper()
	for end := time.Now().Add(testenv.Scale(within)); ; time.Sleep(50 * time.Millisecond) {
		st, err := sb.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if want(st) {
			return st
		}
		if time.Now().After(end) {
			t.Fatalf("it is %s, ready %v (%s), want it %s", st.State, st.Ready, st.Reason, what)
		}
	}
}

// While the API server is away, sandboxes and their running calls go on; when it is back,
// everything else works again, and no output is lost.
func TestAPIServerRestarts(t *testing.T) {
	c, p := lab(t), provider(t)
	sb := created(t, p, atoll.Spec{Name: "on"})
	cmd := shell("i=0; while [ $i -lt 300 ]; do echo $i; i=$((i+1)); sleep 0.05; done")
	long, err := sb.Exec(t.Context(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	c.Hold(t, "kube-apiserver")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := p.Create(ctx, &atoll.Spec{}); err == nil {
		t.Error("a sandbox was made while there was no API server")
	}
	if all, err := p.List(t.Context(), atoll.Filter{}); err != nil || len(all) != 1 {
		t.Errorf("List: %d, %v", len(all), err)
	}
	c.Release(t, "kube-apiserver")
	again, err := sb.Process(t.Context(), long.ID())
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := again.Attach(t.Context(), &atoll.Attachment{Stdout: &out}); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(out.String(), "\n"); lines != 300 {
		t.Errorf("it printed %d lines, want 300", lines)
	}
	if other := created(t, p, atoll.Spec{Name: "after"}); says(t, other, "echo made") != "made\n" {
		t.Error("the sandbox that was made afterwards does not work")
	}
}

// The sandboxes of a lost node are not ready, and are as before when the node is back.
func TestNodeIsLost(t *testing.T) {
	c, p := lab(t), provider(t)
	sb := created(t, p, atoll.Spec{})
	says(t, sb, "echo work > /work/file")
	c.Kubectl(t, "wait", "pod/"+optionsOf(p).Prefix+"-"+sb.ID(), "--for=condition=Ready", "--timeout="+testenv.Scale(2*time.Minute).String()) // as its node says by then
	c.Hold(t, "kubelet")
	st := becomes(t, sb, 4*time.Minute, "not ready", func(st atoll.Status) bool { return !st.Ready })
	if st.State != atoll.StateRunning || !strings.Contains(st.Reason, "node node1 does not answer") {
		t.Errorf("it is %s (%s)", st.State, st.Reason)
	}
	c.Release(t, "kubelet")
	becomes(t, sb, 4*time.Minute, "ready", func(st atoll.Status) bool { return st.Ready && st.State == atoll.StateRunning })
	if got := says(t, sb, "cat /work/file"); got != "work\n" {
		t.Errorf("its file has %q", got)
	}
}

// If another program deletes a pod, the status says so, and the next pod has the same volume.
func TestPodIsDeleted(t *testing.T) {
	p := provider(t)
	sb := created(t, p, atoll.Spec{})
	says(t, sb, "echo work > /work/file")
	crash(t, p, sb)
	st := becomes(t, sb, 2*time.Minute, "failed", func(st atoll.Status) bool { return st.State == atoll.StateFailed })
	if !strings.Contains(st.Reason, "its pod was deleted by somebody else") {
		t.Errorf("the reason is %q", st.Reason)
	}
	if err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := says(t, sb, "cat /work/file"); got != "work\n" {
		t.Errorf("its file has %q", got)
	}
}

// A stopped sandbox has the exit of its main process, even if containerd loses the end of the log
// with the guest's report.
func TestEndOfLogIsLost(t *testing.T) {
	p := provider(t)
	sb := created(t, p, atoll.Spec{Cmd: []string{"/bin/busybox", "sh", "-c", "trap 'seq 300000; exit 42' TERM; echo ready; while :; do sleep 0.02; done"}})
	main, err := sb.Process(t.Context(), atoll.MainProcess)
	if err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	go func() { _ = main.Attach(t.Context(), &atoll.Attachment{Stdout: w}) }()
	if _, err := io.ReadFull(r, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	if err := sb.Stop(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	if exit, err := main.Wait(t.Context()); err != nil || exit.Code != 42 {
		t.Errorf("the exit is %+v, %v; want code 42", exit, err)
	}
}

// A program that has started removes expired sandboxes at once, whichever of its lists arrives last.
func TestExpiredAtTheStart(t *testing.T) {
	first := open(t, func(o *kubernetes.Options) { o.Ephemeral = true })
	sb := created(t, first, atoll.Spec{TTL: atoll.Duration(time.Second)})
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	slow := optionsOf(first)
	slow.Config = rest.CopyConfig(slow.Config)
	slow.Config.Wrap(func(next http.RoundTripper) http.RoundTripper { return slowClaims{next} })
	other, err := kubernetes.New(slow)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.List(t.Context(), atoll.Filter{}); err != nil { // it opens the view
		t.Fatal(err)
	}
	for end := time.Now().Add(testenv.Scale(20 * time.Second)); ; time.Sleep(100 * time.Millisecond) {
		if _, err := other.Get(t.Context(), sb.ID()); atoll.KindOf(err) == atoll.ErrNotFound {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the expired sandbox still exists")
		}
	}
}

// slowClaims delays lists of volume claims, which say nothing about a sandbox without volumes.
type slowClaims struct{ next http.RoundTripper }

func (s slowClaims) RoundTrip(req *http.Request) (*http.Response, error) {
	if strings.HasSuffix(req.URL.Path, "/persistentvolumeclaims") && req.Method == http.MethodGet {
		time.Sleep(2 * time.Second)
	}
	return s.next.RoundTrip(req)
}

// A data volume that another program has deleted is not replaced by an empty one.
func TestVolumeIsDeleted(t *testing.T) {
	p := provider(t)
	sb := created(t, p, atoll.Spec{})
	if err := sb.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	lab(t).Kubectl(t, "delete", "pvc", optionsOf(p).Prefix+"-data-"+sb.ID())
	if err := sb.Start(t.Context()); atoll.KindOf(err) != atoll.ErrUnavailable || !strings.Contains(err.Error(), "was deleted by somebody else") {
		t.Errorf("Start: %v", err)
	}
}

// If a pod is not allowed or its image does not exist, the error has the words of Kubernetes,
// and nothing is left.
func TestRefusals(t *testing.T) {
	c := lab(t)
	namespace := "n" + atoll.NewID()[:8]
	c.Kubectl(t, "create", "namespace", namespace)
	t.Cleanup(func() { c.Kubectl(t, "delete", "namespace", namespace) })
	c.Kubectl(t, "-n", namespace, "create", "quota", "few", "--hard=pods=1")
	p := provider(t, func(o *kubernetes.Options) { o.Namespace = namespace })
	var hasty []*kubernetes.Provider // each is used if the one before was too impatient: a busy machine takes long to report the reason
	for _, patience := range []time.Duration{5 * time.Second, 20 * time.Second, 80 * time.Second} {
		hasty = append(hasty, provider(t, func(o *kubernetes.Options) { o.Namespace, o.Patience = namespace, patience }))
	}
	for _, tt := range []struct {
		what string
		spec atoll.Spec
		kind atoll.Kind
		says string
	}{
		{"no node is large enough", atoll.Spec{Resources: atoll.Resources{Memory: 100 << 40}}, atoll.ErrExhausted, "Insufficient memory"},
		{"no node has GPUs", atoll.Spec{Resources: atoll.Resources{GPUs: "1"}}, atoll.ErrExhausted, "Insufficient nvidia.com/gpu"},
		{"there is no such image", atoll.Spec{Image: "localhost:1/none:1"}, atoll.ErrUnavailable, "pull"},
		{"that is no image", atoll.Spec{Image: "Not An Image"}, atoll.ErrInvalid, "image"},
	} {
		ask := hasty
		if tt.kind == atoll.ErrInvalid { // final, so no patience is needed
			ask = []*kubernetes.Provider{p}
		}
		var err error
		said := false
		for i := 0; i < len(ask) && !said; i++ {
			_, err = ask[i].Create(t.Context(), &tt.spec)
			said = atoll.KindOf(err) == tt.kind && strings.Contains(err.Error(), tt.says)
			c.Kubectl(t, "-n", namespace, "wait", "quota", "few", "--for=jsonpath={.status.used.pods}=0", "--timeout="+testenv.Scale(4*time.Minute).String()) // Kubernetes updates the quota late
		}
		if !said {
			t.Errorf("%s: %v, want %s with %q", tt.what, err, tt.kind, tt.says)
		}
	}
	created(t, p, atoll.Spec{})
	if _, err := p.Create(t.Context(), &atoll.Spec{}); atoll.KindOf(err) != atoll.ErrExhausted || !strings.Contains(err.Error(), "exceeded quota: few") {
		t.Errorf("one more than the quota: %v", err)
	}
	if all, err := p.List(t.Context(), atoll.Filter{}); len(all) != 1 || err != nil {
		t.Errorf("List: %d, %v", len(all), err)
	}
}

// A main process that exceeds its memory limit reports that. Its node may report the end before
// the reason, so not every attempt has one.
func TestOutOfMemory(t *testing.T) {
	p := provider(t)
	var said []string
	for range 8 {
		sb := created(t, p, atoll.Spec{Cmd: []string{"/bin/busybox", "sh", "-c", "sleep 1; exec tail -c 200m /dev/zero"}, Resources: atoll.Resources{Memory: 64 << 20}})
		st := becomes(t, sb, 2*time.Minute, "ended", func(st atoll.Status) bool { return st.State != atoll.StateRunning })
		if st.State != atoll.StateFailed || st.Exit == nil || st.Exit.Signal != atoll.SIGKILL {
			t.Fatalf("it is %s (%s), %+v", st.State, st.Reason, st.Exit)
		}
		if st.Reason == "out of memory: the sandbox used more than 64m" {
			return
		}
		said = append(said, st.Reason)
	}
	t.Errorf("the reasons are %q", said)
}

// The objects in a namespace do not prevent its deletion.
func TestNamespaceIsDeleted(t *testing.T) {
	c := lab(t)
	p := provider(t, func(o *kubernetes.Options) { o.Namespace, o.PerProject = "p"+atoll.NewID()[:8], true })
	one := created(t, p, atoll.Spec{Project: "one", Name: "same"})
	other := created(t, p, atoll.Spec{Project: "other", Name: "same"})
	namespaces := strings.Fields(c.Kubectl(t, "get", "namespaces", "-l", "atoll/owner="+optionsOf(p).Prefix, "-o", "jsonpath={.items[*].metadata.name}"))
	if len(namespaces) != 2 {
		t.Fatalf("the namespaces are %q", namespaces)
	}
	c.Kubectl(t, "delete", "namespace", strings.Fields(c.Kubectl(t, "get", "pods", "-A", "-l", "atoll/session="+one.ID(), "-o", "jsonpath={.items[0].metadata.namespace}"))[0], "--timeout="+testenv.Scale(4*time.Minute).String())
	if _, err := one.Status(t.Context()); atoll.KindOf(err) != atoll.ErrNotFound {
		t.Errorf("Status of one: %v, want ErrNotFound", err)
	}
	if got := says(t, other, "echo here"); got != "here\n" {
		t.Errorf("the other project's says %q", got)
	}
	if err := p.RemoveProject(t.Context(), "other"); err != nil {
		t.Error(err)
	}
	c.Kubectl(t, "wait", "namespace", "-l", "atoll/owner="+optionsOf(p).Prefix, "--for=delete", "--timeout="+testenv.Scale(4*time.Minute).String())
}

// Two programs that share a cluster see each other's changes at once.
func TestTwoPrograms(t *testing.T) {
	a := provider(t)
	b := reopen(t, a)
	defer b.Close()
	if _, err := b.List(t.Context(), atoll.Filter{}); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		sb := created(t, a, atoll.Spec{Name: "web"})
		there, err := atoll.Resolve(t.Context(), b, "", "web")
		if err != nil || there.ID() != sb.ID() {
			t.Fatalf("Resolve: %v, %v", there, err)
		}
		if _, err := b.Create(t.Context(), &atoll.Spec{Name: "web"}); atoll.KindOf(err) != atoll.ErrAlreadyExists {
			t.Errorf("Create with the same name: %v", err)
		}
		if got := says(t, there, "echo from there"); got != "from there\n" {
			t.Errorf("it says %q", got)
		}
		if err := there.Stop(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		if err := sb.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := says(t, there, "echo again"); got != "again\n" {
			t.Errorf("it says %q", got)
		}
		if err := there.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(testenv.Scale(2 * time.Minute)); ; time.Sleep(10 * time.Millisecond) { // the other program must see the end first
			_, err := sb.Exec(t.Context(), shell("true"))
			if atoll.KindOf(err) == atoll.ErrNotFound {
				break
			}
			if atoll.KindOf(err) != atoll.ErrStopped || time.Now().After(end) {
				t.Fatalf("Exec in what another program has removed: %v", err)
			}
		}
	}
}
