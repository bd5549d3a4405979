//go:build !unix

package dagger

import (
	"os"
	"os/exec"
)

// alone leaves cmd as it is.
func alone(*exec.Cmd) {}

// kill ends the CLI.
func kill(p *os.Process) { _ = p.Kill() } // it may have ended
