//go:build !windows

package usernet

// systemResolver asks the servers that this machine's programs do.
func systemResolver() Resolver { return NewSystemResolver("/etc/resolv.conf") }
