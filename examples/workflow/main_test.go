//go:build linux

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/gvisor"
)

// The agents share a sandbox, though no server runs, and it goes at the end.
func TestWorkflow(t *testing.T) {
	dir, err := os.MkdirTemp("", "atoll") // short enough for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	p, err := gvisor.New(gvisor.Options{Dir: filepath.Join(dir, "probe")})
	if err != nil {
		t.Skip(err)
	}
	defer p.Close()
	program := filepath.Join(dir, "bin", "atoll")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", program, "../../cmd/atoll")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for name, value := range map[string]string{
		"XDG_STATE_HOME": dir, "XDG_CONFIG_HOME": dir, "ATOLL_PROVIDER": "gvisor", "ATOLL_PROVIDERS": "gvisor", "ATOLL_LOG_LEVEL": "error",
	} {
		t.Setenv(name, value)
	}
	if text, err := exec.Command(program, "run", "--", "true").CombinedOutput(); err != nil {
		if probe := atoll.ProbeProvider(t.Context(), p); !probe.OK && os.Getenv("CGO_ENABLED") == "0" {
			t.Skipf("gvisor does not work here: %s (%s)", probe.Reason, probe.Fix)
		}
		t.Fatalf("%v\n%s", err, text)
	}
	var out bytes.Buffer
	if err := runWorkflow(t.Context(), program, "wf_abc123", &out); err != nil {
		t.Fatalf("%v after\n%s", err, out.String())
	}
	want := `writer: workflow_wf_abc123_sandbox
tester: workflow_wf_abc123_sandbox
tester: exit code 1
debugger: workflow_wf_abc123_sandbox
debugger: the report says: 40 and 2 are 38, not 42
debugger: exit code 0, 42
workflow_wf_abc123_sandbox
`
	if out.String() != want {
		t.Errorf("the workflow prints\n%s\nwant\n%s", out.String(), want)
	}
	left, err := exec.Command(program, "ls", "-q").Output()
	if err != nil || len(left) > 0 {
		t.Errorf("left: %s, %v", left, err)
	}
}
