package vmengine

import (
	"context"
	"errors"
	"io"
	"net"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/usernet"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/sandboxnet"
)

// hasNetwork reports whether the machine has a network.
func (e *engine) hasNetwork() bool { return e.job.Spec.Network.Mode != atoll.NetworkNone }

// newNetwork creates the network of the spec, and gives the other end to the machine's card.
func (e *engine) newNetwork(h *vm.Hardware) (*usernet.Network, error) {
	ours, theirs, err := newCard()
	if err != nil {
		return nil, err
	}
	n, err := e.serveNetwork(ours)
	if err != nil {
		theirs.Close()
		return nil, err
	}
	h.Network, h.MAC, h.MTU = theirs, net.HardwareAddr(usernet.GuestMAC), e.networkMTU()
	return n, nil
}

// dialNetwork creates that network for a guest with Caps.Frames, over a port of the guest, whose
// setup has the network.
func (e *engine) dialNetwork(ctx context.Context) (err error) {
	conn, err := e.machine.Dial(ctx, vm.PortNetwork)
	if err != nil {
		return e.noAnswerError("network", err)
	}
	e.network, err = e.serveNetwork(vm.Frames(conn))
	return err
}

// serveNetwork serves the network of the spec to a link, which it owns.
func (e *engine) serveNetwork(link io.ReadWriteCloser) (*usernet.Network, error) {
	opts, err := sandboxnet.Options(e.box)
	if err != nil {
		return nil, errors.Join(err, link.Close())
	}
	opts.MTU = e.networkMTU()
	return sandboxnet.New(e.box, opts, link)
}

// networkMTU returns the largest MTU that the machine's card takes.
func (e *engine) networkMTU() int { return min(usernet.DefaultMTU, max(e.caps.MTU, vm.DefaultMTU)) }
