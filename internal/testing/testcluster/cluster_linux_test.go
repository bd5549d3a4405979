package testcluster_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/internal/testing/testcluster"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := testcluster.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// A pod runs an image of a test's registry and prints; the node becomes unready and ready again.
func TestCluster(t *testing.T) {
	if !testenv.RunAll() {
		t.Skip("the tests of provider kubernetes do the same: CHECK_ALL=1 runs it")
	}
	c := testcluster.Need(t)
	ref := c.Registry(t).Push("busybox:1", testimage.Busybox(t))
	c.Kubectl(t, "run", "hello", "--image="+ref, "--restart=Never", "--", "/bin/busybox", "echo", "hello")
	t.Cleanup(func() { c.Kubectl(t, "delete", "pod", "hello", "--force", "--grace-period=0") })
	c.Kubectl(t, "wait", "pod/hello", "--for=jsonpath={.status.phase}=Succeeded", "--timeout="+testenv.Scale(4*time.Minute).String())
	if out := c.Kubectl(t, "logs", "hello"); out != "hello\n" {
		t.Errorf("the pod printed %q", out)
	}
	c.Hold(t, "kubelet")
	c.Kubectl(t, "wait", "node/node1", "--for=condition=Ready=Unknown", "--timeout="+testenv.Scale(4*time.Minute).String())
	c.Release(t, "kubelet")
	c.Hold(t, "kube-apiserver")
	c.Release(t, "kube-apiserver")
	if out := c.Kubectl(t, "get", "nodes", "--no-headers"); !strings.Contains(out, " Ready ") {
		t.Errorf("the node is not ready: %s", out)
	}
}
