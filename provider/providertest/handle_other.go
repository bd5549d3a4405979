//go:build !linux

package providertest

// handleOf is "": no sandbox shares file handles with a system that is not Linux.
func handleOf(string) string { return "" }
