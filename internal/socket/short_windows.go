package socket

import "fmt"

// useShortPath returns an error: Windows has no shorter way to path.
func useShortPath(path string, _ func(short string) error) error {
	return fmt.Errorf("socket path %s is longer than %d bytes; choose a shorter --state-dir", path, maxAddressLen)
}
