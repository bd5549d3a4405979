//go:build !windows

package usernet

// systemResolver returns a resolver that asks the servers of this computer's programs.
func systemResolver() Resolver { return NewSystemResolver("/etc/resolv.conf") }
