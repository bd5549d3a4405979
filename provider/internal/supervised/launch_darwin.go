package supervised

import (
	"os"
	"syscall"
)

// Self is a path by which this program can be executed as keeper, as long as its file
// is where it was.
func Self() (string, error) { return os.Executable() }

// keeperAttr are the session of a keeper; here are no namespaces and no cgroups.
func keeperAttr(*os.File) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
