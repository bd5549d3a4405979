//go:build !linux

package providertest

// fileHandle returns "": sandboxes share file handles with Linux only.
func fileHandle(string) string { return "" }

// hasCapabilities returns false: only programs of Linux have capabilities.
func hasCapabilities(string) bool { return false }
