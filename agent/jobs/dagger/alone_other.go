//go:build !unix

package dagger

import (
	"os"
	"os/exec"
)

// isolateProcess leaves cmd unchanged.
func isolateProcess(*exec.Cmd) {}

// killProcess ends the CLI.
func killProcess(p *os.Process) { _ = p.Kill() } // it may have ended
