package main

import (
	"testing"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// What users reported as broken, as they typed it: with gVisor, the host's programs and the clients that they used.
func TestCases(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.Program("ssh", "openssh-client"), testenv.Program("git", "git"), testenv.Program("curl", "curl"))
	needGVisor(t)
	runScripts(t, "testdata/cases", "gvisor")
}
