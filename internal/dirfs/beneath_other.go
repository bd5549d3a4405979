//go:build !linux

package dirfs

// openBeneath opens a directory, by following links.
func openBeneath(name string) (tree, error) { return openRooted(name) }
