//go:build !linux

package workspace

import "os/exec"

// killWithParent does nothing on this platform.
func killWithParent(*exec.Cmd) (release func()) { return func() {} }
