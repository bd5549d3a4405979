//go:build !linux

package supervisor

// OwnMounts does nothing: there are no mount namespaces, and nothing is mounted.
func OwnMounts() error { return nil }

func detachMounts() error { return nil }
