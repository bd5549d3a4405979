// Package deploy_test deploys Atoll to a cluster with the manifests in this directory.
package deploy_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"

	"github.com/seed46cd37a8/atoll/internal/testing/testcluster"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := errors.Join(testcluster.Stop(), removeBuilt()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// The names of the server's image and of the image of sandboxes in the cluster.
const (
	serverRef  = "localhost/atoll:test"
	busyboxRef = "localhost/busybox:1"
)

// overlay returns a kustomization of this directory's bases and components, written as its
// README says, with more lines at its end.
func overlay(t *testing.T, base string, components []string, more string) string {
	t.Helper()
	dir := t.TempDir()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	up, err := filepath.Rel(dir, here)
	if err != nil {
		t.Fatal(err)
	}
	text := "resources:\n- " + up + "/" + base + "\n"
	for i, c := range components {
		if i == 0 {
			text += "components:\n"
		}
		text += "- " + up + "/components/" + c + "\n"
	}
	text += `images:
- name: registry.example.com/atoll
  newName: localhost/atoll
  newTag: test
` + replacements(t) + more
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// replacements returns the replacements of the overlay in the README.
func replacements(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)\nreplacements:.*?\n```").FindString(string(text))
	if found == "" {
		t.Fatal("the README shows no overlay")
	}
	return strings.TrimSuffix(found, "```")
}

// prepare returns a cluster with the prerequisites of all manifests.
func prepare(t *testing.T) *testcluster.Cluster {
	t.Helper()
	c := testcluster.Need(t)
	c.Kubectl(t, "apply", "-f", "base/namespace.yaml", "-f", "sandboxes/namespace.yaml", "-f", "testdata/servicemonitor.yaml")
	c.Kubectl(t, "wait", "--for=condition=Established", "crd/servicemonitors.monitoring.coreos.com", "--timeout="+testenv.Scale(2*time.Minute).String())
	return c
}

// A cluster accepts all manifests without a warning, even about pods that its namespace's
// security would refuse.
func TestAccepted(t *testing.T) {
	c := prepare(t)
	for _, dir := range []string{
		"base", "replicas",
		overlay(t, "base", []string{"agent-sandbox", "monitor", "namespace-per-project"}, ""),
		overlay(t, "replicas", []string{"autoscale", "monitor", "namespace-per-project"}, ""),
	} {
		objects := c.Kubectl(t, "kustomize", dir)
		if strings.HasPrefix(dir, "/") && strings.Contains(objects, "registry.example.com") {
			t.Errorf("an image is not replaced in\n%s", objects)
		}
		out := c.Kubectl(t, "apply", "--server-side", "--dry-run=server", "--warnings-as-errors", "-k", dir)
		if n := strings.Count(objects, "\nkind: "); strings.Count(out, "serverside-applied") != n+strings.Count(objects[:6], "kind: ") {
			t.Errorf("%s has %d objects, of which these were taken:\n%s", dir, n, out)
		}
	}
}

// built has the image that the tests share.
var built struct {
	once   sync.Once
	dir    string
	digest string
	err    error
}

func removeBuilt() error {
	if built.dir == "" {
		return nil
	}
	return os.RemoveAll(built.dir)
}

// buildImage runs the program that builds the image for this machine, and returns the digest
// that it prints.
func buildImage(dir string, args ...string) (string, error) {
	cmd := exec.Command("go", append([]string{"run", "../../packaging/image", "-platforms", "linux/" + runtime.GOARCH, "-o", dir}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, stderr.Bytes())
	}
	return strings.TrimSpace(string(out)), err
}

// image returns the current image of the server.
func image(t *testing.T) v1.Image {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "atoll-deploy-"); built.err == nil {
			built.digest, built.err = buildImage(filepath.Join(built.dir, "image"))
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	index, err := layout.ImageIndexFromPath(filepath.Join(built.dir, "image"))
	if err != nil {
		t.Fatal(err)
	}
	// The layout names the index of platforms, and the index names the image of each.
	for range 2 {
		m, err := index.IndexManifest()
		if err != nil || len(m.Manifests) != 1 {
			t.Fatalf("%+v, %v", m, err)
		}
		if d := m.Manifests[0]; d.MediaType.IsIndex() {
			if d.Digest.String() != built.digest {
				t.Errorf("the program has printed %s, and made %s", built.digest, d.Digest)
			}
			if index, err = index.ImageIndex(d.Digest); err != nil {
				t.Fatal(err)
			}
			continue
		}
		img, err := index.Image(m.Manifests[0].Digest)
		if err != nil {
			t.Fatal(err)
		}
		return img
	}
	t.Fatal("there is no image")
	return nil
}

// Each build makes the same image, also in a registry, with the expected content and nothing
// else.
func TestImage(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the server")
	}
	img := image(t)
	registry := testimage.Serve(t)
	again, err := buildImage(filepath.Join(t.TempDir(), "again"), "-push", registry.Host+"/atoll:1")
	if err != nil || again != built.digest {
		t.Errorf("built again it is %q, and was %q: %v", again, built.digest, err)
	}
	resp, err := http.Get("http://" + registry.Host + "/v2/atoll/manifests/1")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got := resp.Header.Get("Docker-Content-Digest"); got != built.digest {
		t.Errorf("the registry has %s, want %s", got, built.digest)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Config.User != "65532:65532" || config.Config.Labels["org.opencontainers.image.version"] == "" || config.Architecture != runtime.GOARCH {
		t.Errorf("it is made as %+v", config)
	}
	files := map[string]*tar.Header{}
	walk(t, img, func(h *tar.Header, _ io.Reader) { files[h.Name] = h })
	for name, mode := range map[string]int64{"tmp/": 0o1777, "var/": 0o755, "var/lib/": 0o755, "var/lib/atoll/": 0o700, "atoll": 0o555, "atoll-kubernetes": 0o555, "atoll-modal": 0o555, "atoll-dagger": 0o555, "atoll-guest": 0o555} {
		if files[name] == nil || files[name].Mode != mode {
			t.Errorf("%s is %+v", name, files[name])
		}
		delete(files, name)
	}
	if len(files) > 0 {
		t.Errorf("there is more: %v", files)
	}
}

// The build does not overwrite a file or directory that is not an image.
func TestImageElsewhere(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := buildImage(dir); err == nil || !strings.Contains(err.Error(), "files other than an image") {
		t.Errorf("into a directory of other files: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "mine")); err != nil {
		t.Error(err)
	}
}

// walk calls fn with every file in the image's layers.
func walk(t *testing.T, img v1.Image, fn func(h *tar.Header, r io.Reader)) {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, layer := range layers {
		stream, err := layer.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Close()
		r := tar.NewReader(stream)
		for h, err := r.Next(); err != io.EOF; h, err = r.Next() {
			if err != nil {
				t.Fatal(err)
			}
			fn(h, r)
		}
	}
}

// program returns the path of the image's atoll, to run on this machine.
func program(t *testing.T, img v1.Image) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "atoll")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	walk(t, img, func(h *tar.Header, r io.Reader) {
		if h.Name == "atoll" {
			_, err = io.Copy(f, r)
		}
	})
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

// The whole deployment: with the image and the manifests in a cluster, a client with the token
// creates sandboxes there, which outlive the server.
func TestServer(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the server, and runs it in a cluster")
	}
	testenv.Need(t, testenv.Root, testenv.KubePrograms)
	img := image(t)
	c := prepare(t)
	c.Load(t, serverRef, img)
	c.Load(t, busyboxRef, testimage.Busybox(t))
	dir := overlay(t, "base", []string{"monitor"}, `patches:
- patch: |-
    apiVersion: apps/v1
    kind: Deployment
    metadata: {name: atoll, namespace: atoll}
    spec:
      template:
        spec:
          containers:
          - name: atoll
            env:
            - {name: ATOLL_KUBERNETES_IMAGE, value: "`+busyboxRef+`"}
            - {name: ATOLL_KUBERNETES_REQUESTS, value: "0.1"}
`)
	c.Kubectl(t, "apply", "-k", dir)
	c.Kubectl(t, "--namespace=atoll", "create", "secret", "generic", "atoll", "--from-literal=token=secret-of-the-test")
	c.Kubectl(t, "--namespace=atoll", "create", "secret", "generic", "atoll-monitor", "--from-literal=token=other-secret-of-the-test")
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.Kubectl(t, "--namespace=atoll", "describe", "pods"))
			t.Log(c.Kubectl(t, "--namespace=atoll", "logs", "--selector=app.kubernetes.io/name=atoll", "--tail=50"))
		}
	})
	rolled(t, c)
	atoll := client{t, program(t, img), t.TempDir(), forward(t, c)}

	if id := atoll.run("run", "--", "hostname"); !regexp.MustCompile(`^[0-9a-f]{12}\n$`).MatchString(id) {
		t.Errorf("its host is called %q", id)
	}
	atoll.says("text\n", "run", "--", "sh", "-c", "id -u >&2; echo text")
	atoll.run("create", "--name", "web")
	atoll.says("web\n", "exec", "web", "--", "hostname")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("text\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	atoll.run("cp", file, "web:/work/file")
	atoll.run("stop", "web")
	atoll.run("start", "web")
	atoll.says("text\n", "exec", "web", "--", "cat", "/work/file")

	if got := get(t, atoll.url+"/metrics", ""); got != http.StatusUnauthorized {
		t.Errorf("/metrics without a token: %d", got)
	}
	if got := get(t, atoll.url+"/metrics", "other-secret-of-the-test"); got != http.StatusOK {
		t.Errorf("/metrics with the monitor's: %d", got)
	}

	c.Kubectl(t, "--namespace=atoll", "rollout", "restart", "deployment/atoll")
	rolled(t, c)
	atoll.url = forward(t, c)
	atoll.says("text\n", "exec", "web", "--", "cat", "/work/file")
	atoll.run("rm", "--force", "--volumes", "web")
	for end := time.Now().Add(testenv.Scale(2 * time.Minute)); ; time.Sleep(100 * time.Millisecond) { // Kubernetes deletes a claim with a delay
		left := c.Kubectl(t, "--namespace=atoll-sandboxes", "get", "pods,pvc,networkpolicies", "--output=name")
		if left == "" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("left behind: %s", left)
		}
	}
}

// rolled waits until all desired servers are ready.
func rolled(t *testing.T, c *testcluster.Cluster) {
	t.Helper()
	c.Kubectl(t, "--namespace=atoll", "rollout", "status", "deployment/atoll", "--timeout="+testenv.Scale(10*time.Minute).String())
}

// A client runs atoll with the server at url.
type client struct {
	t             *testing.T
	program, home string
	url           string
}

func (c *client) run(args ...string) string {
	c.t.Helper()
	cmd := exec.Command(c.program, append([]string{"--url", c.url}, args...)...)
	cmd.Env = []string{"HOME=" + c.home, "PATH=/usr/bin:/bin", "ATOLL_TOKEN=secret-of-the-test"}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		c.t.Fatalf("atoll %q: %v: %s", args, err, stderr.Bytes())
	}
	return string(out)
}

func (c *client) says(want string, args ...string) {
	c.t.Helper()
	if got := c.run(args...); got != want {
		c.t.Errorf("atoll %q: %q, want %q", args, got, want)
	}
}

// get returns the status of an answer.
func get(t *testing.T, url, token string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// forward makes kubectl forward a port of this machine to a server, and returns its URL.
func forward(t *testing.T, c *testcluster.Cluster) string {
	t.Helper()
	cmd := exec.Command(testenv.Kube(t, "kubectl"), "--kubeconfig", c.OutsideKubeconfig(), "--namespace=atoll", "port-forward", "--address=127.0.0.1", "service/atoll", ":7070")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread() // kubectl ends with the thread that starts it
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	late := time.AfterFunc(testenv.Scale(3*time.Minute), func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if m := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(lines.Text()); m != "" {
			go func() { _, _ = io.Copy(io.Discard, out) }()
			return "http://" + m
		}
	}
	t.Fatal("kubectl forwards no port")
	return ""
}
