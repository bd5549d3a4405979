package atoll

import (
	"fmt"
	"slices"
)

// NetworkMode says how far a sandbox can reach.
type NetworkMode string

// The modes of network.
const (
	NetworkNone   NetworkMode = "none"   // loopback only; the default
	NetworkOn     NetworkMode = "on"     // outwards, never to the host, its networks or metadata services
	NetworkEgress NetworkMode = "egress" // only to what Allow lists
	NetworkNamed  NetworkMode = "named"  // whatever the backend's network Name reaches
)

// Network is a sandbox's network policy.
type Network struct {
	// Mode is NetworkNone when empty.
	Mode NetworkMode `json:"mode,omitempty"`
	// Name is that of a network which the backend has already, for NetworkNamed:
	// one of docker's, for instance. The sandbox reaches what that network
	// reaches, which may be the host and all around it: what NetworkOn promises
	// does not hold. The host's own network is refused.
	Name string `json:"name,omitempty"`
	// Allow lists host names ("example.com", "*.example.com") and networks
	// ("10.1.0.0/16", "192.0.2.7"). With NetworkEgress nothing else can be
	// reached; with NetworkOn it opens what is refused by default.
	Allow []string `json:"allow,omitempty"`
}

// A Port of a sandbox that its maker declares. Declared or not, every TCP port
// can be reached with Dial.
type Port struct {
	Name string `json:"name,omitempty"`
	Port int    `json:"port"` // 1..65535
	// Publish makes the port reachable on 127.0.0.1 of the backend's machine, and
	// on no other address, for those who cannot Dial. The sandbox needs a network.
	Publish bool `json:"publish,omitempty"`
	// HostPort is the port's number there. 0 means any that is free, which may be
	// another one after each start: Status.Ports tells.
	HostPort int `json:"host_port,omitempty"`
}

// A PublishedPort is where a port of a running sandbox is published.
type PublishedPort struct {
	Port    int    `json:"port"`    // inside
	Address string `json:"address"` // on the backend's machine: "127.0.0.1:49153"
}

// AgentPort is the port that the agent in a sandbox listens on, which
// Status.Address is about.
const AgentPort = 3002

// Publishes reports whether a port of s is to be published.
func (s *Spec) Publishes() bool {
	return slices.ContainsFunc(s.Ports, func(p Port) bool { return p.Publish })
}

func (s *Spec) validNetwork() error {
	n := s.Network
	switch n.Mode {
	case "", NetworkNone, NetworkNamed:
		if len(n.Allow) > 0 {
			return fmt.Errorf("network: allow needs mode on or egress")
		}
	case NetworkOn, NetworkEgress:
	default:
		return fmt.Errorf("network mode %q: use none, on, egress or named", n.Mode)
	}
	if n.Mode != NetworkNamed && n.Name != "" {
		return fmt.Errorf("network name %q: needs mode named", n.Name)
	}
	if n.Mode == NetworkNamed && !validNetworkName(n.Name) {
		return fmt.Errorf("network name %q: use that of a network which the backend has, and not the host's own", n.Name)
	}
	return s.validPorts()
}

// validNetworkName reports whether s can name a network. Words that stand for
// something else with the backends are none.
func validNetworkName(s string) bool {
	for i, c := range []byte(s) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && (i == 0 || c != '-' && c != '_' && c != '.') {
			return false
		}
	}
	return s != "" && !slices.Contains([]string{"host", "none", "default", "container"}, s)
}

func (s *Spec) validPorts() error {
	taken := map[int]bool{}
	for _, p := range s.Ports {
		switch {
		case p.Port < 1 || p.Port > 65535:
			return fmt.Errorf("port %d: must be within 1..65535", p.Port)
		case p.HostPort < 0 || p.HostPort > 65535:
			return fmt.Errorf("host port %d: must be within 1..65535, or 0 for any", p.HostPort)
		case p.HostPort != 0 && !p.Publish:
			return fmt.Errorf("host port %d: needs publish", p.HostPort)
		case p.Publish && (s.Network.Mode == "" || s.Network.Mode == NetworkNone):
			return fmt.Errorf("port %d: what is published needs a network: use mode on or named", p.Port)
		case taken[p.HostPort]:
			return fmt.Errorf("host port %d: given twice", p.HostPort)
		}
		taken[p.HostPort] = p.HostPort != 0
	}
	return nil
}
