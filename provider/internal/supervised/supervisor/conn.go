package supervisor

import "io"

// A Conn connects a provider with the supervisor that it starts: the job comes on it, and
// the reply goes back.
type Conn interface {
	io.ReadWriteCloser
	// CloseWrite ends the sent data and leaves received data readable.
	CloseWrite() error
	// HungUp reports whether the other end, whose turn it is not to send anything, is more
	// than just silent: most likely it has died.
	HungUp() bool
}
