//go:build !linux

package supervisor

// OwnMounts returns nil: this system has no mount namespaces, and supervisors mount
// nothing.
func OwnMounts() error { return nil }

// AwaitIDs does nothing: only Linux has user namespaces.
func AwaitIDs(func() bool) error { return nil }

func detachMounts() error { return nil }
