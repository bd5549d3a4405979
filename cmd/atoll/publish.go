package main

import (
	"cmp"
	"context"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/seed46cd37a8/atoll"
)

// A forwarder listens on local ports and forwards their connections to ports inside a sandbox.
type forwarder struct {
	app       *app
	listeners []net.Listener
	ports     []forwarding

	cancel  context.CancelFunc // nil before serveSandbox
	serving sync.WaitGroup
}

// listenLocally listens on the local ports. Close ends that.
func (a *app) listenLocally(ctx context.Context, address string, ports []forwarding) (*forwarder, error) {
	f := &forwarder{app: a, ports: ports}
	for _, p := range ports {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(p.local)))
		if err != nil {
			f.Close()
			return nil, atoll.E("listen", "", atoll.ErrUnavailable, err)
		}
		f.listeners = append(f.listeners, l)
	}
	return f, nil
}

// serveSandbox forwards connections to the sandbox until ctx ends or the forwarder is closed.
func (f *forwarder) serveSandbox(ctx context.Context, sb atoll.Sandbox) {
	ctx, f.cancel = context.WithCancel(ctx)
	for i, l := range f.listeners {
		f.serving.Go(func() { f.app.acceptConns(ctx, l, sb, f.ports[i].inside) })
	}
}

// Close closes the ports and all connections.
func (f *forwarder) Close() {
	if f.cancel != nil {
		f.cancel()
	}
	for _, l := range f.listeners {
		l.Close()
	}
	f.serving.Wait()
}

// takeForwards returns the ports of -p that run forwards itself and removes them from the flag: all, unless the sandbox
// has a network of the engine, which publishes them.
func (f *specFlags) takeForwards() ([]forwarding, error) {
	if strings.HasPrefix(f.network, string(atoll.NetworkNamed)) {
		return nil, nil
	}
	var ports []forwarding
	for _, s := range f.publish {
		p, err := parsePublish(s)
		if err != nil {
			return nil, err
		}
		ports = append(ports, forwarding{local: p.HostPort, inside: p.Port})
	}
	f.publish = nil
	return ports, nil
}

// refusePublish returns an error for -p without a network, which only a run in the foreground can have.
func (f *specFlags) refusePublish(n atoll.Network) error {
	if len(f.publish) == 0 || n.Mode != atoll.NetworkNone && n.Mode != "" {
		return nil
	}
	return usageErrorf("-p %s: only atoll run in the foreground publishes ports without a network: use atoll port-forward SANDBOX %[1]s", f.publish[0])
}

// publishPorts opens the ports of -p: on this machine, unless the provider publishes ports of sandboxes with a network.
// It returns nil if there is nothing to forward.
func (f *runFlags) publishPorts(ctx context.Context, a *app, c *connection, spec *atoll.Spec) (*forwarder, error) {
	if len(f.forwards) == 0 {
		return nil, nil
	}
	if spec.Network.Mode == atoll.NetworkOn {
		maker, _, err := findMember(ctx, c.Provider, cmp.Or(c.maker, c.Info().Name))
		if err != nil {
			return nil, err
		}
		if maker.Caps.Publish {
			for _, p := range f.forwards {
				spec.Ports = append(spec.Ports, atoll.Port{Port: p.inside, HostPort: p.local, Publish: true})
			}
			return nil, nil
		}
	}
	fwd, err := a.listenLocally(ctx, "127.0.0.1", f.forwards)
	if err != nil {
		return nil, err
	}
	if !f.quiet {
		for i, l := range fwd.listeners {
			a.printMessage("%s leads to port %d of the sandbox", l.Addr(), fwd.ports[i].inside)
		}
	}
	return fwd, nil
}
