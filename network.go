package atoll

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"
)

// NetworkMode is the reach of a sandbox's network.
type NetworkMode string

// The network modes.
const (
	NetworkNone   NetworkMode = "none"   // loopback only; the default
	NetworkOn     NetworkMode = "on"     // the internet, but not the host, its networks or metadata services
	NetworkEgress NetworkMode = "egress" // only the destinations in Allow
	NetworkNamed  NetworkMode = "named"  // everything that the backend's network Name reaches
)

// Network is a sandbox's network policy.
type Network struct {
	// Mode is the reach of the network. Empty means NetworkNone.
	Mode NetworkMode `json:"mode,omitempty"`
	// Name is the name of an existing network of the backend, such as a Docker network, for
	// NetworkNamed. The sandbox reaches everything that this network reaches, which may include
	// the host and its networks; the guarantees of NetworkOn do not apply. Validate rejects the
	// host's own network.
	Name string `json:"name,omitempty"`
	// Allow lists host names ("example.com", "*.example.com") and networks ("10.1.0.0/16",
	// "192.0.2.7"). With NetworkEgress, the sandbox reaches nothing else. With NetworkOn, it
	// reaches these destinations although the default policy denies them.
	Allow []string `json:"allow,omitempty"`
}

// A Port is a declared TCP port of a sandbox. Dial reaches every TCP port, declared or not.
type Port struct {
	Name string `json:"name,omitempty"` // for people
	Port int    `json:"port"`           // 1..65535
	// Publish makes the port reachable on 127.0.0.1 of the backend's machine, and on no other
	// address, for clients that cannot use Dial. The sandbox needs a network.
	Publish bool `json:"publish,omitempty"`
	// HostPort is the number of the published port on the backend's machine. 0 means any free
	// port, which may change with each start; Status.Ports has the current one.
	HostPort int `json:"host_port,omitempty"`
}

// A PublishedPort is the address of a published port of a running sandbox.
type PublishedPort struct {
	Port    int    `json:"port"`    // inside the sandbox
	Address string `json:"address"` // on the backend's machine: "127.0.0.1:49153"
}

// AgentPort is the port on which the agent in a sandbox listens. Status.Address is its published
// address.
const AgentPort = 3002

// Publishes reports whether s publishes a port.
func (s *Spec) Publishes() bool {
	return slices.ContainsFunc(s.Ports, func(p Port) bool { return p.Publish })
}

func (s *Spec) validateNetwork() error {
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
		return fmt.Errorf("network name %q: use the name of an existing network of the backend other than the host's own", n.Name)
	}
	return s.validatePorts()
}

// validNetworkName reports whether s is a valid name of a network. It rejects names with a
// special meaning for the backends.
func validNetworkName(s string) bool {
	for i, c := range []byte(s) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && (i == 0 || c != '-' && c != '_' && c != '.') {
			return false
		}
	}
	return s != "" && !slices.Contains([]string{"host", "none", "default", "container"}, s)
}

func (s *Spec) validatePorts() error {
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
			return fmt.Errorf("port %d: a published port needs a network; use mode on or named", p.Port)
		case taken[p.HostPort]:
			return fmt.Errorf("host port %d: given twice", p.HostPort)
		}
		taken[p.HostPort] = p.HostPort != 0
	}
	return nil
}

// A Refuser is a Sandbox with Caps.Refusals.
type Refuser interface {
	Refusals(ctx context.Context) (Refusals, error)
}

// Refusals are the requests that the network of a sandbox has refused since the creation of the
// sandbox, also before a stop.
type Refusals struct {
	// NoNetwork reports that the sandbox has no network. Then its own kernel refuses each request,
	// and nothing counts them.
	NoNetwork bool      `json:"no_network,omitempty"`
	Total     int64     `json:"total"` // number of refused requests, also of those that List no longer has
	List      []Refusal `json:"list"`  // the MaxRefusals latest different ones, the latest last
	Time      time.Time `json:"time"`  // of this answer, by the clock of the times in List
}

// MaxRefusals is the maximum length of Refusals.List.
const MaxRefusals = 64

// A Refusal is a request that the network refused, once or several times.
type Refusal struct {
	// Host is the name that the sandbox asked for, without the dot at the end; "" if the address
	// belongs to no name for which the sandbox asked before, or if a connection of TLS or HTTP names none. It has no control characters.
	Host     string    `json:"host,omitempty"`
	Address  string    `json:"address,omitempty"` // the IP address; "" if the name was refused
	Port     int       `json:"port,omitempty"`    // 0 if the name was refused
	Protocol string    `json:"protocol"`          // "tcp", "udp", "dns" if the name was refused, or "tls" or "http" if Host was refused at an open address
	Reason   string    `json:"reason"`            // a phrase, with the way to allow it if there is one
	Count    int64     `json:"count"`             // how often
	First    time.Time `json:"first"`             // when it was refused for the first time
	Last     time.Time `json:"last"`              // when it was refused for the last time
}

// Target returns the name or else the address, with the port if there is one, and "/udp" after a port
// of UDP.
func (r Refusal) Target() string {
	host := cmp.Or(r.Host, r.Address)
	if r.Port == 0 {
		return host
	}
	target := net.JoinHostPort(host, strconv.Itoa(r.Port))
	if r.Protocol == "udp" {
		target += "/udp"
	}
	return target
}

// String returns the target and the reason: "example.com: not in --allow".
func (r Refusal) String() string { return r.Target() + ": " + r.Reason }

// Within returns the refusals of r with a request in the time d before r was read, oldest first.
func (r Refusals) Within(d time.Duration) []Refusal {
	return slices.DeleteFunc(slices.Clone(r.List), func(one Refusal) bool { return one.Last.Before(r.Time.Add(-d)) })
}

// Same reports whether r and other differ at most in their counts and times.
func (r Refusal) Same(other Refusal) bool {
	other.Count, other.First, other.Last = r.Count, r.First, r.Last
	return r == other
}

// RefusalsOf returns what the network of the sandbox refused. It works for stopped sandboxes, too.
// Refusals of the last seconds are lost if the sandbox is killed. Kinds: ErrUnsupported, ErrNotFound.
func RefusalsOf(ctx context.Context, sb Sandbox) (Refusals, error) {
	if r, ok := As[Refuser](sb); ok {
		return r.Refusals(ctx)
	}
	return Refusals{}, E("refusals", sb.ID(), ErrUnsupported, nil)
}
