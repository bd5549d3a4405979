//go:build !linux

package providertest

// fileHandle returns "": sandboxes share file handles with Linux only.
func fileHandle(string) string { return "" }
