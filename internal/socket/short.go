// Package socket adds to the standard library's Unix sockets: pairs, long paths, and the
// PID of a peer.
package socket

// maxAddressLen is the length of a path that fits into a socket's address on every system,
// without its final zero.
const maxAddressLen = 103

// Short calls use with a path of the socket that fits into an address, even if path does
// not.
func Short(path string, use func(short string) error) error {
	if len(path) <= maxAddressLen {
		return use(path)
	}
	return useShortPath(path, use)
}
