//go:build !linux

package secretsource

import "syscall"

// outsideUser returns nil: only Linux has user namespaces.
func outsideUser() *syscall.SysProcAttr { return nil }
