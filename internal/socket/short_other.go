//go:build unix && !linux

package socket

func useShortPath(path string, use func(short string) error) error { return useLink(path, use) }
