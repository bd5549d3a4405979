package main

import (
	"strings"
	"testing"
)

// On a terminal, run, exec and shell without a command give a shell.
func TestTerminalShell(t *testing.T) {
	env := append(atEnv(t), "SHELL=/bin/sh")
	runServer(t, env, "--destroy-on-exit")
	mustRun(t, env, "create", "--name", "web")
	for _, args := range [][]string{
		{"run"}, {"run", "-it"}, {"run", "--keep", "--"},
		{"exec", "web"}, {"exec", "-it", "web"}, {"exec", "web", "--"},
		{"shell", "web"}, {"ssh", "-w", "/", "web"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			s := openScreen(t, atollCmd(env, "atoll", args...))
			s.awaitRaw()
			s.typed("stty size; echo $((6*7)); exit 5\r")
			s.expect("30 100")
			s.expect("42")
			if code := s.exit(); code != 5 {
				t.Errorf("exit code %d, want that of the shell, 5:\n%s", code, s.text())
			}
		})
	}
	if out := mustRun(t, env, "ls", "-q", "-f", "state=running"); strings.Count(out, "\n") != 1 {
		t.Errorf("running sandboxes %q, want web only", out)
	}
}
