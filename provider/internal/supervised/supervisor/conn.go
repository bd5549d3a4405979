package supervisor

import "io"

// A Line is what a provider and the supervisor that it starts have in common: the job
// comes on it, and the reply goes.
type Conn interface {
	io.ReadWriteCloser
	// CloseWrite says that no more is to be said, and leaves what is to be heard.
	CloseWrite() error
	// HungUp reports whether the other end, whose turn it is not to say anything, is
	// not just silent: most likely it has died.
	HungUp() bool
}
