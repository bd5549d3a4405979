//go:build unix && !linux

package api

// shortPath calls use with a path for the socket that fits in an address;
// only Linux has a way to shorten one.
func shortPath(path string, use func(short string) error) error { return use(path) }
