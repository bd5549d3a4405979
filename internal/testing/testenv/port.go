package testenv

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// FreePort returns a TCP port on which nobody listens on the loopback interface. Systems choose the ports
// of outgoing connections, and of listeners without a fixed port, from higher ones. So neither takes the
// port before the caller's program listens on it.
func FreePort() (int, error) {
	const first, end, tries = 20000, 32768, 100 // Linux chooses from 32768
	var failed error
	for range tries {
		port := first + rand.IntN(end-first)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			return port, l.Close()
		}
		failed = err
	}
	return 0, failed
}
