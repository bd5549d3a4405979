package main

import (
	"os"
	"testing"
)

// A live list shows changes until it is interrupted.
func TestTerminalLiveList(t *testing.T) {
	env := atEnv(t)
	runServer(t, env, "--destroy-on-exit")
	mustRun(t, env, "create", "--name", "first")
	s := openScreen(t, atollCmd(env, "atoll", "ls", "-w"))
	s.expect("first")
	mustRun(t, env, "create", "--name", "second")
	s.expect("second")
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := s.exit(); code != 0 {
		t.Errorf("exit code %d, want 0:\n%s", code, s.text())
	}
}
