package socket

import "fmt"

// useShortPath fails: there is no other way to what is at path.
func useShortPath(path string, _ func(short string) error) error {
	return fmt.Errorf("%s: the path of a socket has %d bytes at most: choose a shorter --state-dir", path, maxAddressLen)
}
