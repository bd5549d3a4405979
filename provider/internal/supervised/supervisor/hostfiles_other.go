//go:build !linux

package supervisor

// protectHostFiles does nothing: engines run as an ordinary user here, whose files they make.
func protectHostFiles(bool) error { return nil }
