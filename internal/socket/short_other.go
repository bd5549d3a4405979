//go:build unix && !linux

package socket

func shorten(path string, use func(short string) error) error { return byLink(path, use) }
