package vmengine

import (
	"os"

	"github.com/seed46cd37a8/atoll"
)

// newCard returns an error: Windows has no sockets for frames, and its machines take them over a
// stream.
func newCard() (ours, theirs *os.File, err error) {
	return nil, nil, atoll.Errorf("network", "", atoll.ErrUnsupported, "no datagram sockets for the card of a machine here")
}
