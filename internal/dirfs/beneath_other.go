//go:build !linux

package dirfs

// openBeneath opens a directory, and follows links.
func openBeneath(name string) (tree, error) { return openRooted(name) }
