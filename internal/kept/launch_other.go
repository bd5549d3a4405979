//go:build unix && !linux

package kept

import (
	"os"
	"syscall"
)

// keeperAttr are the session of a keeper; here are no namespaces and no cgroups.
func keeperAttr(*os.File) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
