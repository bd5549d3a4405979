package tools_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/frontmatter"
	"github.com/seed46cd37a8/atoll/agent/tools"
)

// A program that has run has a result, also if it leaves too many files to list.
func TestRunThatLeavesTooMuch(t *testing.T) {
	lists := 0
	p := &brokenProvider{ProviderLayer: atoll.ProviderLayer{Provider: newBench(t, tools.Options{}).provider}}
	p.list = func() error {
		if lists++; lists%2 == 0 {
			return atoll.Errorf("list", ".", atoll.ErrExhausted, "more than 200000 entries")
		}
		return nil
	}
	images := frontmatter.Images{Shortcuts: map[string]string{"linux": "host"}}
	b := newBenchOn(t, p, tools.Options{Images: images})
	r := b.call("sandbox_run", m{"runtime": "bash", "code": "echo done"}).wantFields("ok", true, "stdout", "done\n", "artifacts", nil)
	if !strings.Contains(fmt.Sprint(r.out["note"]), "more than 200000 entries") {
		t.Errorf("it gives %v", r.out)
	}
	p.list = func() error { return nil }
	b = newBenchOn(t, p, tools.Options{Images: images, Agent: &frontmatter.Sandbox{Mode: frontmatter.ModeCompute, Runtime: "bash", Limits: frontmatter.Limits{Timeout: time.Minute, MaxFileSize: 1000, MaxFiles: 2}}})
	r = b.call("sandbox_run", m{"runtime": "bash", "code": "touch 1 2 3"}).wantFields("ok", true)
	if all, _ := r.out["artifacts"].([]any); len(all) != 2 || !strings.Contains(fmt.Sprint(r.out["note"]), "more files than the 2") {
		t.Errorf("it gives %v", r.out)
	}
}
