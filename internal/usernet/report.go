package usernet

import (
	"errors"
	"net"
	"net/netip"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// reportEvent reports an event, whose host and method are as a client wrote them.
func (n *Network) reportEvent(e atoll.NetworkEvent) {
	const maxMethod, maxText = 20, 300 // bytes
	e.Host, e.Method = printableHost(e.Host), e.Method[:min(len(e.Method), maxMethod)]
	e.Reason = strings.ToValidUTF8(e.Reason[:min(len(e.Reason), maxText)], "")
	if e.Verdict == atoll.NetworkRefused {
		n.opts.Log.Debug("refused", "network", e.Protocol, "host", e.Host, "address", e.Address, "reason", e.Reason)
	}
	n.opts.Report(e)
}

// reportRefusal reports that a connection to dst for a host, "" if that is not known, is refused.
func (n *Network) reportRefusal(protocol, host string, dst netip.AddrPort, v verdict) {
	e := newEvent(protocol, host, dst)
	e.Verdict, e.Rule, e.Reason, e.Opens = atoll.NetworkRefused, v.rule, v.reason, v.opens
	n.reportEvent(e)
}

// reportFailure reports that a connection to dst, which a verdict opens, cannot be made.
func (n *Network) reportFailure(protocol string, dst netip.AddrPort, v verdict, err error) {
	e := newEvent(protocol, n.names.findName(dst.Addr()), dst)
	e.Verdict, e.Rule, e.Reason = atoll.NetworkFailed, v.rule, explainDial(err)
	n.reportEvent(e)
}

// newEvent returns an event of a connection to dst that is allowed.
func newEvent(protocol, host string, dst netip.AddrPort) atoll.NetworkEvent {
	return atoll.NetworkEvent{
		Protocol: protocol, Host: host, Address: dst.Addr().Unmap().String(), Port: int(dst.Port()), Verdict: atoll.NetworkAllowed,
	}
}

// explainDial returns why a connection cannot be made, without its address.
func explainDial(err error) string {
	if op := (*net.OpError)(nil); errors.As(err, &op) && op.Err != nil {
		err = op.Err
	}
	return err.Error()
}

// printableHost returns a host as a client wrote it with a question mark for each character that no host has, and not longer than a host.
func printableHost(host string) string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r >= 0x7f {
			return '?'
		}
		return r
	}, host[:min(len(host), 253)])
}
