// Package socket is what the standard library lacks of Unix sockets.
package socket

// longest is what fits in a socket's address on every system, besides its final zero.
const longest = 103

// Short calls use with a path of the socket that fits in an address, however long
// path is.
func Short(path string, use func(short string) error) error {
	if len(path) <= longest {
		return use(path)
	}
	return shorten(path, use)
}
