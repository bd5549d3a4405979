package supervised

import (
	"os"
	"syscall"
)

// Self is a path by which this program can be executed as supervisor, as long as its file
// is where it was.
func Self() (string, error) { return os.Executable() }

// supervisorAttr are the session of a supervisor; here are no namespaces and no cgroups.
func supervisorAttr(*os.File) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
