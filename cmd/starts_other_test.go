//go:build !linux

package cmd_test

import "testing"

// checkStarts does nothing: only Linux has gVisor.
func checkStarts(*testing.T, string) {}
