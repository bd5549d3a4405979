package supervised

import (
	"os"
	"syscall"
)

// Self returns a path by which this program can be executed as supervisor, as long as its
// file stays where it was.
func Self() (string, error) { return os.Executable() }

// supervisorAttr gives a supervisor a session of its own; macOS has no namespaces and no
// cgroups.
func supervisorAttr(*os.File, *SubIDs) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true}
}
