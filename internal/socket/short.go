// Package socket is what the standard library lacks of Unix sockets.
package socket

// maxAddressLen is what fits in a socket's address on every system, besides its final zero.
const maxAddressLen = 103

// Short calls use with a path of the socket that fits in an address, however long
// path is.
func Short(path string, use func(short string) error) error {
	if len(path) <= maxAddressLen {
		return use(path)
	}
	return useShortPath(path, use)
}
