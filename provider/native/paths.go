//go:build linux || darwin

// Package native provides sandboxes with the walls of this machine's kernel. On Linux these are namespaces, a filter of system calls,
// Landlock and cgroups; on macOS they are profiles of Seatbelt, which the authors have built and not run. There is nothing to install,
// and neither root nor a daemon is needed. Programs inside run at the machine's own speed, and what separates them from the host is
// the host's kernel: use gVisor or a virtual machine for code that may attack that. So atoll.Open never chooses this provider: call
// New.
package native

import (
	"path/filepath"

	"github.com/seed46cd37a8/atoll"
)

// checkHostPaths returns an error for the first of Options.HostPaths that is not valid. Kinds: ErrInvalid.
func checkHostPaths(paths []string) error {
	for _, path := range paths {
		if !filepath.IsAbs(path) || filepath.Clean(path) == "/" {
			return atoll.Errorf("native", "", atoll.ErrInvalid, "host path %q: must be an absolute path other than /", path)
		}
	}
	return nil
}
