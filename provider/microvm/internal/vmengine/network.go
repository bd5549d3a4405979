package vmengine

import (
	"context"
	"errors"
	"io"
	"net"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/usernet"
	"github.com/seed46cd37a8/atoll/machine/vm"
)

// online reports whether the machine has a network.
func (e *engine) online() bool { return e.job.Spec.Network.Mode != atoll.NetworkNone }

// newNetwork makes the network that the spec asks for, with the machine's card at the
// other end.
func (e *engine) newNetwork(h *vm.Hardware) (*usernet.Network, error) {
	ours, theirs, err := card()
	if err != nil {
		return nil, err
	}
	n, err := e.serveNetwork(ours)
	if err != nil {
		theirs.Close()
		return nil, err
	}
	h.Network, h.MAC, h.MTU = theirs, net.HardwareAddr(usernet.GuestMAC), e.mtu()
	return n, nil
}

// dialNetwork makes that network where frames come over a port of the guest, which has
// been told of it.
func (e *engine) dialNetwork(ctx context.Context) (err error) {
	conn, err := e.machine.Dial(ctx, vm.PortNetwork)
	if err != nil {
		return e.whatFor("network", err)
	}
	e.network, err = e.serveNetwork(vm.Frames(conn))
	return err
}

// serveNetwork serves the network that the spec asks for to a link, which it owns.
func (e *engine) serveNetwork(link io.ReadWriteCloser) (*usernet.Network, error) {
	policy, err := usernet.NewPolicy(e.job.Spec.Network)
	if err != nil {
		return nil, errors.Join(err, link.Close())
	}
	return usernet.New(link, usernet.Options{Policy: policy, MTU: e.mtu(), Log: e.box.Log})
}

// mtu is the network's: as large as the machine's card takes.
func (e *engine) mtu() int { return min(usernet.DefaultMTU, max(e.caps.MTU, vm.DefaultMTU)) }
