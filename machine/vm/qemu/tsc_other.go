//go:build !amd64

package qemu

// clockParams returns nothing: emulated kernels of this architecture need no parameters for their
// clock.
func clockParams() []string { return nil }
