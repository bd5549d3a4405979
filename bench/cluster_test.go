//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/coder/websocket"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"k8s.io/client-go/rest"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testcluster"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
)

// The rows of the comparisons of clusters, besides viaAPI and the rows of pools.
const (
	kubectlRun   = "kubectl run, and kubectl wait until it is Ready"
	kubectlClaim = "kubectl create of a pod and its claim, and kubectl wait until it is Ready"
	clusterExec  = "exec of Kubernetes's API"
)

// The goals of a server with sandboxes in a cluster.
const (
	clusterKnown  = 200
	clusterList   = 50 * time.Millisecond // for 99 of 100 lists of clusterKnown sandboxes
	clusterClaim  = 60                    // milliseconds
	clusterFaster = 4                     // times as fast as exec of Kubernetes's API
)

var clusterOut = flag.String("cluster-out", "", "`file` to merge the results of BenchmarkCluster into")

// BenchmarkCluster compares the provider kubernetes with Kubernetes itself, on the cluster of the
// tests. It is a Go benchmark to have that cluster. It ignores b.N and prints its own table.
//
//	go test ./bench -run '^$' -bench Cluster -benchtime 1x
func BenchmarkCluster(tb *testing.B) {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		tb.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l := &clusterLab{TB: tb, Cluster: testcluster.Own(tb), bench: &bench{dir: dir, rounds: 15}}
	if l.bench.atoll, err = filepath.Abs("../bin/atoll"); err != nil {
		tb.Fatal(err)
	}
	commit := ""
	if *clusterOut != "" {
		if commit, err = currentCommit(tb.Context()); err != nil {
			tb.Fatal(err)
		}
		l.bench.table.stamp = stampLine(commit, time.Now())
	}
	program, err := testenv.Guest()
	if err != nil {
		tb.Fatal(err)
	}
	l.Load(tb, clusterImage, testimage.WithSockets(tb))
	l.Load(tb, clusterGuest, testimage.New(tb, v1.Config{}, testimage.Layer(tb, testimage.File("atoll-guest", 0o555, string(program)))))
	ctx := context.Background()
	for _, measure := range []func(context.Context) error{l.measureCreates, l.measureExec, l.measureClaims, l.measureLists} {
		if err := measure(ctx); err != nil {
			tb.Fatal(err)
		}
	}
	text := l.bench.table.formatMarkdown(describeMachine(ctx, ""))
	tb.Log("\n" + text)
	if *clusterOut != "" {
		if err := writeResults(*clusterOut, text, commit); err != nil {
			tb.Fatal(err)
		}
	}
}

const (
	clusterImage = "localhost/busybox:1"
	clusterGuest = "localhost/atoll-guest:1"
)

// A clusterLab holds the cluster and the results of BenchmarkCluster.
type clusterLab struct {
	testing.TB
	*testcluster.Cluster
	bench *bench
	made  int
}

// startServer starts a server with sandboxes in the cluster.
func (l *clusterLab) startServer(ctx context.Context, name string, settings ...string) (*server, error) {
	return startServer(ctx, l.bench, name, append([]string{
		"ATOLL_PROVIDER=kubernetes", "ATOLL_PROVIDERS=kubernetes", "ATOLL_KUBERNETES_KUBECONFIG=" + l.OutsideKubeconfig(),
		"ATOLL_KUBERNETES_IMAGE=" + clusterImage, "ATOLL_KUBERNETES_GUEST_IMAGE=" + clusterGuest,
		"ATOLL_KUBERNETES_REQUESTS=0.02", "ATOLL_KUBERNETES_NETWORK_POLICY=ignored",
	}, settings...)...)
}

// measureCreates compares creations with kubectl's: without a volume, like a bare pod, and with one.
// With a volume the scheduler waits for whole seconds until it is bound.
func (l *clusterLab) measureCreates(ctx context.Context) error {
	for _, c := range []struct {
		name, title, than string
		settings          []string
		bare              func(context.Context) (time.Duration, error)
	}{
		{"bare", "Kubernetes: created until it runs, without a volume", kubectlRun, []string{"ATOLL_KUBERNETES_EPHEMERAL=true"}, l.runPod},
		{"claims", "Kubernetes: created until it runs, with a volume of its own", kubectlClaim, nil, l.runPodWithClaim},
	} {
		s, err := l.startServer(ctx, c.name, c.settings...)
		if err != nil {
			return err
		}
		err = l.bench.compareMethods(ctx, c.title, []goal{{row: viaAPI, than: c.than, most: 1.15}}, []method{
			{c.than, c.bare},
			{viaAPI, func(ctx context.Context) (time.Duration, error) {
				start := time.Now()
				sb, err := s.Create(ctx, &atoll.Spec{})
				took := time.Since(start)
				if err == nil {
					err = sb.Remove(ctx, atoll.RemoveVolumes())
				}
				time.Sleep(podEndPause)
				return took, err
			}},
		})
		if err := errors.Join(err, s.stopServer()); err != nil {
			return err
		}
	}
	return nil
}

// measureExec compares commands with exec of Kubernetes's API.
func (l *clusterLab) measureExec(ctx context.Context) (err error) {
	s, err := l.startServer(ctx, "lives")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stopServer()) }()
	sb, err := s.Create(ctx, &atoll.Spec{})
	if err != nil {
		return err
	}
	return l.bench.compareMethods(ctx, "Kubernetes: a command", []goal{{row: viaAPI, than: clusterExec, most: 1.0 / clusterFaster}}, []method{
		{clusterExec, func(ctx context.Context) (time.Duration, error) { return l.execInPod(ctx, "atoll-"+sb.ID()) }},
		{viaAPI, func(ctx context.Context) (time.Duration, error) {
			start := time.Now()
			_, err := atoll.Output(ctx, sb, &atoll.Command{Args: echoArgs})
			return time.Since(start), err
		}},
	})
}

// podEndPause is the time that a node gets to end a pod before the next one starts.
const podEndPause = 2 * time.Second

// runPod returns the time of kubectl run until the pod is ready.
func (l *clusterLab) runPod(context.Context) (time.Duration, error) {
	l.made++
	name := fmt.Sprintf("bare-%d", l.made)
	start := time.Now()
	l.Kubectl(l, "run", name, "--image="+clusterImage, "--restart=Never", "--command", "--", "/bin/busybox", "sleep", "1000")
	l.Kubectl(l, "wait", "pod/"+name, "--for=condition=Ready", "--timeout=60s")
	took := time.Since(start)
	l.Kubectl(l, "delete", "pod", name, "--force", "--grace-period=0")
	time.Sleep(podEndPause)
	return took, nil
}

// runPodWithClaim returns the time to create a pod and its volume until the pod is ready.
func (l *clusterLab) runPodWithClaim(context.Context) (time.Duration, error) {
	l.made++
	name, file := fmt.Sprintf("claimed-%d", l.made), filepath.Join(l.bench.dir, "claimed.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, claimManifest, name, clusterImage), 0o600); err != nil {
		return 0, err
	}
	start := time.Now()
	l.Kubectl(l, "create", "--filename", file)
	l.Kubectl(l, "wait", "pod/"+name, "--for=condition=Ready", "--timeout=60s")
	took := time.Since(start)
	l.Kubectl(l, "delete", "pod", name, "--force", "--grace-period=0")
	l.Kubectl(l, "delete", "pvc", name, "--wait=false")
	time.Sleep(podEndPause)
	return took, nil
}

const claimManifest = `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[1]s}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  restartPolicy: Never
  containers:
  - {name: main, image: "%[2]s", command: [/bin/busybox, sleep, "1000"], volumeMounts: [{name: data, mountPath: /data}]}
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: %[1]s}}
`

// execInPod runs a command by Kubernetes's API, on a new connection, and returns how long that took.
func (l *clusterLab) execInPod(ctx context.Context, pod string) (time.Duration, error) {
	client, err := rest.HTTPClientFor(l.Config())
	if err != nil {
		return 0, err
	}
	query := url.Values{"container": {"sandbox"}, "stdout": {"true"}, "stderr": {"true"}, "command": echoArgs}
	start := time.Now()
	ws, _, err := websocket.Dial(ctx, l.Config().Host+"/api/v1/namespaces/default/pods/"+pod+"/exec?"+query.Encode(),
		&websocket.DialOptions{HTTPClient: client, Subprotocols: []string{"v5.channel.k8s.io"}})
	if err != nil {
		return 0, err
	}
	defer ws.CloseNow()
	for {
		if _, _, err := ws.Read(ctx); websocket.CloseStatus(err) == websocket.StatusNormalClosure {
			return time.Since(start), nil
		} else if err != nil {
			return 0, err
		}
	}
}

// measureLists measures lists of many sandboxes.
func (l *clusterLab) measureLists(ctx context.Context) (err error) {
	s, err := l.startServer(ctx, "known")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stopServer()) }()
	for i := range clusterKnown {
		if _, err := s.Create(ctx, &atoll.Spec{Name: fmt.Sprintf("box-%d", i), NoStart: true}); err != nil {
			return err
		}
	}
	var times sample
	for range 300 {
		start := time.Now()
		all, err := s.List(ctx, atoll.Filter{})
		if err != nil || len(all) != clusterKnown {
			return fmt.Errorf("listed %d of %d, %v", len(all), clusterKnown, err)
		}
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	p99 := times.valueAt(0.99)
	l.bench.table.addFact(fact{"Kubernetes", fmt.Sprintf("list of %d sandboxes, API client and server: median, 99 of 100", clusterKnown),
		formatMillis(times.medianTime()) + ", " + formatMillis(p99), "<= " + formatMillis(clusterList), p99 <= clusterList})
	return nil
}

// measureClaims measures creations that find a warm sandbox.
func (l *clusterLab) measureClaims(ctx context.Context) (err error) {
	file := filepath.Join(l.bench.dir, "pool.yaml")
	if err := os.WriteFile(file, []byte("pool:\n  bench:\n    size: 3\n    image: "+clusterImage+"\n"), 0o600); err != nil {
		return err
	}
	s, err := l.startServer(ctx, "claims", "ATOLL_CONFIG="+file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stopServer()) }()
	return l.bench.compareMethods(ctx, "Kubernetes: a sandbox of the pool", []goal{{row: poolHit, millis: clusterClaim}}, []method{
		{poolHit, func(ctx context.Context) (time.Duration, error) {
			if err := waitUntil(ctx, func() error { return s.checkStocked(ctx) }); err != nil {
				return 0, err
			}
			start := time.Now()
			sb, err := s.Create(ctx, &atoll.Spec{Image: clusterImage})
			took := time.Since(start)
			if err == nil {
				err = sb.Remove(ctx, atoll.RemoveVolumes())
			}
			return took, err
		}},
	})
}
