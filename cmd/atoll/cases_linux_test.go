package main

import (
	"testing"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// The commands of users who reported faults work as they typed them: with gVisor, the host's programs and the clients that they used.
func TestCases(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.Program("ssh", "openssh-client"), testenv.Program("git", "git"), testenv.Program("curl", "curl"),
		testenv.Program("python3", "python3"), testenv.Program("setpriv", "util-linux"))
	needGVisor(t)
	runScripts(t, "testdata/cases", "gvisor")
}
