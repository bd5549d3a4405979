package template

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/local"
)

// The command of Turn runs, also with the longest prompt; and the kernel rejects one
// byte more than MaxPrompt.
func TestTurnRuns(t *testing.T) {
	p, err := local.New(local.Options{Dir: filepath.Join(t.TempDir(), "local")})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	tpl, err := NewSet().Get("shell", "")
	if err != nil {
		t.Fatal(err)
	}
	spec, err := tpl.SpecFor(testNames)
	if err != nil {
		t.Fatal(err)
	}
	sb, err := p.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Remove(t.Context(), atoll.RemoveVolumes())
	const script = "printf said #"
	for _, prompt := range []string{script, script + strings.Repeat("x", MaxPrompt-len(script))} {
		cmd, err := tpl.Turn(prompt, true)
		if err != nil {
			t.Fatal(err)
		}
		if out, err := atoll.Output(t.Context(), sb, cmd); string(out) != "said" || err != nil {
			t.Errorf("a prompt of %d bytes: %q, %v", len(prompt), out, err)
		}
	}
	long := strings.Repeat("x", MaxPrompt+1)
	if _, err := atoll.Output(t.Context(), sb, &atoll.Command{Args: tpl.Agent.Args(long, false)}); !errors.Is(err, atoll.ErrExecFailed) && !errors.Is(err, atoll.ErrInvalid) {
		t.Errorf("a prompt that is longer: %v, want it not to be started", err)
	}
	stdin := Template{Name: "t", Agent: Agent{Command: []string{"wc", "-c"}, Stdin: true}}
	cmd, err := stdin.Turn(long, false)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := atoll.Output(t.Context(), sb, cmd); strings.TrimSpace(string(out)) != "131072" || err != nil {
		t.Errorf("the same on stdin: %q, %v", out, err)
	}
}
