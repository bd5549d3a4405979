package main

import (
	"strings"
	"testing"
)

// On a terminal, prune asks, and only a yes removes something.
func TestTerminalPrune(t *testing.T) {
	env := atEnv(t)
	runServer(t, env, "--destroy-on-exit")
	mustRun(t, env, "create", "--name", "web")
	mustRun(t, env, "rm", "web")
	for _, answer := range []string{"\r", "no\r", "\x04"} {
		s := openScreen(t, atollCmd(env, "atoll", "volume", "prune"))
		s.expect("remove 1 volume with all files? [y/N] ")
		s.typed(answer)
		s.expect("nothing was removed")
		if code := s.exit(); code != 0 {
			t.Errorf("%q: exit code %d, want 0", answer, code)
		}
	}
	s := openScreen(t, atollCmd(env, "atoll", "volume", "prune"))
	s.expect("[y/N] ")
	s.typed("\x03")
	if code := s.exit(); code != 130 {
		t.Errorf("^C: exit code %d, want 130:\n%s", code, s.text())
	}
	if out := mustRun(t, env, "volume", "ls", "-q"); !strings.HasPrefix(out, "data-") {
		t.Fatalf("volumes %q, want the data volume", out)
	}
	s = openScreen(t, atollCmd(env, "atoll", "volume", "prune"))
	s.expect("[y/N] ")
	s.typed("y\r")
	if code := s.exit(); code != 0 {
		t.Errorf("yes: exit code %d, want 0:\n%s", code, s.text())
	}
	if out := mustRun(t, env, "volume", "ls", "-q"); out != "" {
		t.Errorf("volumes %q after a yes, want none", out)
	}
}
