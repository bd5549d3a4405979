package testcluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// An AgentSandbox is an installation of kubernetes-sigs/agent-sandbox in a cluster: its CRDs, and its
// controller, which runs on the cluster's node.
type AgentSandbox struct {
	c       *Cluster
	program string
	cmd     *exec.Cmd
	ended   chan struct{}
}

// agentService tells the API server where to convert between the versions of agent-sandbox objects: at
// the controller, which listens on the node's address.
const agentService = `apiVersion: v1
kind: Namespace
metadata: {name: agent-sandbox-system}
---
apiVersion: v1
kind: Service
metadata: {name: agent-sandbox-webhook-service, namespace: agent-sandbox-system}
spec: {ports: [{name: webhook, port: 443, targetPort: 9443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: agent-sandbox-webhook, namespace: agent-sandbox-system, labels: {kubernetes.io/service-name: agent-sandbox-webhook-service}}
addressType: IPv4
endpoints: [{addresses: ["` + Address + `"]}]
ports: [{name: webhook, port: 9443, protocol: TCP}]
`

// AgentSandbox installs agent-sandbox until the end of the test, and starts its controller.
func (c *Cluster) AgentSandbox(t testing.TB) *AgentSandbox {
	t.Helper()
	dir := testenv.AgentSandbox(t)
	service := filepath.Join(t.TempDir(), "service.yaml")
	if err := os.WriteFile(service, []byte(agentService), 0o600); err != nil {
		t.Fatal(err)
	}
	a := &AgentSandbox{c: c, program: filepath.Join(dir, "agent-sandbox-controller")}
	crds := filepath.Join(dir, "crds")
	t.Cleanup(func() {
		a.Stop(t)
		c.Kubectl(t, "delete", "--ignore-not-found", "--wait=false", "--filename", service)
		c.Kubectl(t, "delete", "--ignore-not-found", "--timeout="+testenv.Scale(4*time.Minute).String(), "--filename", crds)
	})
	c.Kubectl(t, "create", "--filename", crds, "--filename", service) // apply would add a copy, for which the CRDs are too large
	c.Kubectl(t, "wait", "--for=condition=Established", "--timeout="+testenv.Scale(4*time.Minute).String(), "--filename", crds)
	a.Start(t)
	return a
}

// Start starts the controller and waits until it serves conversions.
func (a *AgentSandbox) Start(t testing.TB) {
	t.Helper()
	a.cmd = exec.Command(a.program, "--extensions", "--leader-elect=false", "--metrics-bind-address=0", "--health-probe-bind-address=0",
		"--kubeconfig", a.c.Kubeconfig(), "--webhook-cert-dir", a.c.filePath("agent-sandbox"))
	log, err := os.OpenFile(a.c.filePath("log", "agent-sandbox"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	a.cmd.Stdout, a.cmd.Stderr = log, log
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	a.ended = make(chan struct{})
	started := make(chan error, 2)
	go func() {
		started <- a.c.Inside(func() error { // the controller ends with its thread, so wait for it here
			err := a.cmd.Start()
			started <- err
			if err == nil {
				_ = a.cmd.Wait() // Stop kills it
				close(a.ended)
			}
			return nil
		})
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), startTime)
	defer cancel()
	for {
		conn, err := a.c.Dial(ctx, "tcp", Address+":9443")
		if err == nil {
			_ = conn.Close()
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(a.c.explainError(fmt.Errorf("agent-sandbox does not listen: %w", err)))
		case <-a.ended:
			t.Fatal(a.c.explainError(fmt.Errorf("agent-sandbox ended: %s", a.cmd.ProcessState)))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Stop kills the controller, if it runs.
func (a *AgentSandbox) Stop(t testing.TB) {
	t.Helper()
	if a.cmd == nil || a.cmd.Process == nil {
		return
	}
	_ = a.cmd.Process.Kill() // fails if it has ended
	<-a.ended
	a.cmd = nil
}
