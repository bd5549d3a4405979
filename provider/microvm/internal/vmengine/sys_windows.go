package vmengine

import (
	"os"

	"github.com/seed46cd37a8/atoll"
)

// card would be the ends of a network: here there are no sockets for frames, and the
// machines take them over a stream.
func card() (ours, theirs *os.File, err error) {
	return nil, nil, atoll.Errorf("network", "", atoll.ErrUnsupported, "there are no datagram sockets for the card of a machine here")
}
