package testenv

import (
	"os"
	"path/filepath"
	"testing"
)

// KubePrograms are the programs that scripts/kube builds.
var KubePrograms = Part{what: "the programs of a Kubernetes cluster", script: "scripts/kube", missing: func() error {
	_, err := kubeProgram("kube")
	return err
}}

// Kube needs KubePrograms and returns the path of one of them, such as "kubectl".
func Kube(t testing.TB, program string) string {
	t.Helper()
	Need(t, KubePrograms)
	path, err := kubeProgram(program)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func kubeProgram(program string) (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "atoll-test", "kube", program)
	_, err = os.Stat(path)
	return path, err
}

// AgentSandboxPrograms are the programs that scripts/agent-sandbox builds.
var AgentSandboxPrograms = Part{what: "the controller of agent-sandbox", script: "scripts/agent-sandbox", missing: func() error {
	_, err := agentSandbox()
	return err
}}

// AgentSandbox needs AgentSandboxPrograms and returns the directory with the program
// agent-sandbox-controller and its CRDs in crds.
func AgentSandbox(t testing.TB) string {
	t.Helper()
	Need(t, AgentSandboxPrograms)
	path, err := agentSandbox()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func agentSandbox() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "atoll-test", "agent-sandbox")
	_, err = os.Stat(path)
	return path, err
}

// File returns the part of a file that the Debian package pkg installs.
func File(path, pkg string) Part {
	return Part{what: path, install: pkg, missing: func() error {
		_, err := os.Stat(path)
		return err
	}}
}
