package docker

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
)

// prepareNetwork checks that the sandbox may use the network of the spec, which must be the name
// of an engine's network and not one of the host's. For network mode on, it creates the network.
func (c *creation) prepareNetwork(ctx context.Context) error {
	switch c.spec.Network.Mode {
	case atoll.NetworkOn:
		return c.p.ensureOnlineNetwork(ctx)
	case atoll.NetworkNamed:
	default:
		return nil
	}
	name := c.spec.Network.Name
	// NetworkInspect would also find ids, and prefixes of ids
	like, err := c.p.engine.NetworkList(ctx, client.NetworkListOptions{Filters: make(client.Filters).Add("name", name)})
	if err != nil {
		return err
	}
	found := slices.DeleteFunc(like.Items, func(n network.Summary) bool { return n.Name != name })
	if len(found) == 0 {
		return atoll.Errorf("create", c.spec.Name, atoll.ErrNotExist, "the engine has no network %q: create it with docker network create %[1]s", name)
	}
	switch n := found[0]; {
	case n.Driver == "host" || n.Driver == "null":
		return atoll.Errorf("create", c.spec.Name, atoll.ErrInvalid, "network %q not allowed: use network mode none, or another network of the engine", name)
	case c.spec.Publishes() && (n.Internal || n.Driver != "bridge" && n.Driver != "overlay"):
		return atoll.Errorf("create", c.spec.Name, atoll.ErrInvalid,
			"network %q: the engine cannot publish ports on it: use a bridge network that is not internal", name)
	}
	return nil
}

func (p *Provider) networkMode(s *atoll.Spec) container.NetworkMode {
	switch s.Network.Mode {
	case atoll.NetworkNamed:
		return container.NetworkMode(s.Network.Name)
	case atoll.NetworkOn:
		return container.NetworkMode(p.names.onlineNetworkName())
	}
	return "none"
}

// ensureOnlineNetwork creates the network of online sandboxes unless it exists. Sandboxes on it
// cannot reach each other.
func (p *Provider) ensureOnlineNetwork(ctx context.Context) error {
	lock, err := p.acquireLock(ctx, "create", p.names.onlineNetworkName())
	if err != nil {
		return err
	}
	defer lock.Release()
	_, err = p.engine.NetworkInspect(ctx, p.names.onlineNetworkName(), client.NetworkInspectOptions{})
	if !cerrdefs.IsNotFound(err) {
		return err
	}
	_, err = p.engine.NetworkCreate(ctx, p.names.onlineNetworkName(), client.NetworkCreateOptions{
		Driver: "bridge", Options: map[string]string{"com.docker.network.bridge.enable_icc": "false"},
		Labels: map[string]string{labelAtoll: "true", labelOwner: string(p.names)},
	})
	return err
}

// loopback is the address that ports are published on.
var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// portBindings returns the ports to publish.
func portBindings(s *atoll.Spec) network.PortMap {
	all := network.PortMap{}
	for _, p := range s.Ports {
		if p.Publish {
			port := tcpPort(p.Port)
			all[port] = append(all[port], network.PortBinding{HostIP: loopback, HostPort: strconv.Itoa(p.HostPort)})
		}
	}
	return all
}

// exposedPorts returns the ports to publish as a set, which the engine also needs.
func exposedPorts(s *atoll.Spec) network.PortSet {
	all := network.PortSet{}
	for port := range portBindings(s) {
		all[port] = struct{}{}
	}
	return all
}

// tcpPort returns a valid port in the engine's type.
func tcpPort(port int) network.Port {
	p, _ := network.PortFrom(uint16(port), network.TCP)
	return p
}

// publishedPorts returns the ports that the engine has published, and the URL of the agent's
// port; "" if that is not among them.
func publishedPorts(bound network.PortMap) (ports []atoll.PublishedPort, agent string) {
	for port, hosts := range bound {
		for _, b := range hosts {
			address := net.JoinHostPort(b.HostIP.String(), b.HostPort)
			ports = append(ports, atoll.PublishedPort{Port: int(port.Num()), Address: address})
		}
	}
	slices.SortFunc(ports, func(a, b atoll.PublishedPort) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Address, b.Address))
	})
	if i := slices.IndexFunc(ports, func(p atoll.PublishedPort) bool { return p.Port == atoll.AgentPort }); i >= 0 {
		agent = "http://" + ports[i].Address
	}
	return ports, agent
}
