// Package testcluster runs a Kubernetes cluster of one node for tests: real programs, in their own
// namespaces, which end with the test program however that ends.
package testcluster

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
)

// The cluster's networks, in their own network namespace.
const (
	Address  = "10.87.0.2" // of the node; the API server listens on port 6443
	pods     = "10.88.0.0/16"
	services = "10.89.0.0/16"
)

// A Cluster is a running cluster.
type Cluster struct {
	Token string // of the administrator

	dir    string
	cmd    *exec.Cmd
	ended  context.Context // ends when cmd has ended
	client *http.Client

	outside net.Listener
	quit    context.CancelFunc // ends the goroutines that serve the cluster
}

// shared is the cluster of a test program, since a start takes seconds.
var shared struct {
	once sync.Once
	*Cluster
	err error
}

// Need returns the cluster of the test program. The first call starts it; Stop stops it.
func Need(t testing.TB) *Cluster {
	t.Helper()
	needParts(t)
	shared.once.Do(func() { shared.Cluster, shared.err = startCluster(t) })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.Cluster
}

// Own returns a cluster that is stopped at the end of the test. A test program can have only one at a
// time.
func Own(t testing.TB) *Cluster {
	t.Helper()
	needParts(t)
	c, err := startCluster(t)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.stopCluster(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func needParts(t testing.TB) {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.Cgroups, testenv.KubePrograms, testenv.StaticBusybox,
		testenv.Program("containerd", "docker.io"), testenv.Program("runc", "docker.io"), testenv.Program("nft", "nftables"), testenv.File("/usr/lib/cni/bridge", "containernetworking-plugins"))
}

// Stop stops the cluster of the test program, if it was started. TestMain must call it at the end.
func Stop() error {
	if shared.Cluster == nil {
		return nil
	}
	return shared.Cluster.stopCluster()
}

// startCluster starts a cluster and waits until it can run pods.
func startCluster(t testing.TB) (_ *Cluster, err error) {
	dir, err := os.MkdirTemp("", "atoll-cluster-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir, Token: rand.Text()}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.stopCluster())
		}
	}()
	config, err := json.Marshal(map[string]string{
		"Dir": dir, "Cgroup": filepath.Base(dir), "Address": Address, "Pods": pods, "Services": services, "Busybox": testenv.Busybox(t),
		"Token": c.Token, "NodeToken": rand.Text(), "ControllerToken": rand.Text(), "SchedulerToken": rand.Text(), "ProxyToken": rand.Text(),
	})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(c.filePath("config.json"), config, 0o600); err != nil {
		return nil, err
	}
	out, err := os.Create(c.filePath("node.log"))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	c.cmd = exec.Command(testenv.Kube(t, "kube"), "node", c.filePath("config.json"))
	c.cmd.Stdout, c.cmd.Stderr = out, out
	c.cmd.Env = append(os.Environ(), "GOGC=400") // trade memory for CPU: the collector is a third of an API server's work
	c.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		Setpgid:    true,
	}
	if err := startChild(c.cmd); err != nil {
		return nil, err
	}
	ended, end := context.WithCancelCause(context.Background())
	c.ended = ended
	go func() { end(fmt.Errorf("cluster ended: %w", c.cmd.Wait())) }()
	c.client = &http.Client{Transport: &http.Transport{DialContext: c.Dial, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // in the cluster's own network namespace
	ctx, cancel := context.WithTimeout(c.ended, startTime)
	defer cancel()
	if err := c.loadImage(ctx, "localhost/pause:1", pauseImage(t)); err != nil {
		return nil, c.explainError(err)
	}
	if err := c.waitReady(ctx); err != nil {
		return nil, c.explainError(err)
	}
	if err := c.forwardOutside(); err != nil {
		return nil, err
	}
	work, quit := context.WithCancel(context.Background())
	c.quit = quit
	return c, c.provideVolumes(work)
}

// startTime limits the start of a cluster, which takes seconds on an idle machine.
var startTime = testenv.Scale(4 * time.Minute)

// startChild starts a program that the kernel kills when this one ends. This needs the thread that
// started the program to exist, so startChild dedicates one to it.
func startChild(cmd *exec.Cmd) error {
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := cmd.Start()
		done <- err
		if err == nil {
			select {} // retain the thread
		}
		runtime.UnlockOSThread()
	}()
	return <-done
}

// filePath returns the path of one of the cluster's files.
func (c *Cluster) filePath(name ...string) string {
	return filepath.Join(append([]string{c.dir}, name...)...)
}

// pauseImage returns the image of the container that holds the namespaces of a pod.
func pauseImage(t testing.TB) v1.Image {
	img, err := mutate.Config(testimage.Busybox(t), v1.Config{Entrypoint: []string{"/bin/busybox", "sleep", "2000000000"}})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// Load loads an image into the node under a name.
func (c *Cluster) Load(t testing.TB, ref string, img v1.Image) {
	t.Helper()
	if err := c.loadImage(t.Context(), ref, img); err != nil {
		t.Fatal(err)
	}
}

// loadImage loads an image into the node under a name, as soon as its containerd answers.
func (c *Cluster) loadImage(ctx context.Context, ref string, img v1.Image) error {
	packed, err := testimage.Archive(ref, img)
	if err != nil {
		return err
	}
	for {
		cmd := exec.CommandContext(ctx, "ctr", "--address", c.filePath("containerd.sock"), "--namespace", "k8s.io", "images", "import", "-")
		cmd.Stdin = bytes.NewReader(packed)
		out, err := cmd.CombinedOutput()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("load %s: %w: %s", ref, cmp.Or(context.Cause(ctx), err), out)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// waitReady waits until the cluster can run pods: the node is ready, and their service account exists.
func (c *Cluster) waitReady(ctx context.Context) error {
	for {
		var node struct {
			Status struct {
				Conditions []struct{ Type, Status string }
			}
		}
		err := c.getObject(ctx, "/api/v1/nodes/node1", &node)
		if err == nil && !slices.Contains(node.Status.Conditions, struct{ Type, Status string }{"Ready", "True"}) {
			err = errors.New("node is not ready")
		}
		if err == nil {
			err = c.getObject(ctx, "/api/v1/namespaces/default/serviceaccounts/default", nil)
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// getObject gets an object from the API server.
func (c *Cluster) getObject(ctx context.Context, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL()+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+c.Token)
	resp, err := c.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	if err == nil && into != nil {
		err = json.Unmarshal(body, into)
	}
	return err
}

// explainError adds the last lines of the logs to an error.
func (c *Cluster) explainError(err error) error {
	if err == nil {
		return nil
	}
	logs, _ := filepath.Glob(c.filePath("log", "*"))
	for _, log := range append(logs, c.filePath("node.log")) {
		text, _ := os.ReadFile(log)
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		err = fmt.Errorf("%w\n%s: %s", err, filepath.Base(log), strings.Join(lines[max(0, len(lines)-4):], "\n\t"))
	}
	return err
}

// URL returns the URL of the API server.
func (c *Cluster) URL() string { return "https://" + net.JoinHostPort(Address, "6443") }

// Kubeconfig returns the path of the administrator's kubeconfig for programs in the cluster's network.
func (c *Cluster) Kubeconfig() string { return c.filePath("pki", "admin.kubeconfig") }

// Dial connects to an address in the cluster's network: of the API server, a pod or a service.
func (c *Cluster) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = c.Inside(func() (err error) {
		var d net.Dialer
		conn, err = d.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// init locks the main goroutine to the main thread. A goroutine that ends on the main thread in
// another namespace would leave the thread there, and /proc shows the main thread for this process.
func init() { runtime.LockOSThread() }

// Inside calls fn in the cluster's network namespace.
func (c *Cluster) Inside(fn func() error) error { return testenv.InNetwork(c.cmd.Process.Pid, fn) }

// Kubectl runs kubectl as the administrator and returns its output.
func (c *Cluster) Kubectl(t testing.TB, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), testenv.Kube(t, "kubectl"), append([]string{"--kubeconfig", c.Kubeconfig()}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	var out []byte
	err := c.Inside(func() (err error) {
		out, err = cmd.Output()
		return err
	})
	if err != nil {
		t.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return string(out)
}

// Registry starts a registry, until the end of the test, that the node can reach.
func (c *Cluster) Registry(t testing.TB) *testimage.Registry {
	t.Helper()
	var l net.Listener
	err := c.Inside(func() (err error) {
		l, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return testimage.ServeOn(t, l, c.Dial)
}

// Hold kills a program of the cluster, such as "kubelet", and prevents its restart until Release or
// the end of the test.
func (c *Cluster) Hold(t testing.TB, program string) {
	t.Helper()
	if err := os.WriteFile(c.filePath("hold", program), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Release(t, program) })
	c.waitProgram(t, program, false)
}

// Release allows the restart of a program after Hold, and waits until the cluster can run pods.
func (c *Cluster) Release(t testing.TB, program string) {
	t.Helper()
	if err := os.Remove(c.filePath("hold", program)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	c.waitProgram(t, program, true)
	ctx, cancel := context.WithTimeout(c.ended, startTime)
	defer cancel()
	if err := c.waitReady(ctx); err != nil {
		t.Fatal(c.explainError(err))
	}
}

// waitProgram waits until a program runs, or does not run.
func (c *Cluster) waitProgram(t testing.TB, program string, runs bool) {
	t.Helper()
	for end := time.Now().Add(testenv.Scale(time.Minute)); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(c.filePath("run", program)); (err == nil) == runs {
			return
		}
	}
	t.Fatalf("%s runs: %v, want %v", program, !runs, runs)
}

// stopCluster stops the cluster and removes its files.
func (c *Cluster) stopCluster() error {
	if c.quit != nil {
		c.quit()
	}
	if c.outside != nil {
		_ = c.outside.Close()
	}
	if c.ended != nil {
		_ = c.cmd.Process.Kill()
		<-c.ended.Done() // by then the kernel has ended all processes in its namespaces
	}
	if c.client != nil {
		c.client.CloseIdleConnections()
	}
	return errors.Join(testenv.DropCgroups(filepath.Base(c.dir), time.Minute), os.RemoveAll(c.dir))
}
