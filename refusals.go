package atoll

import (
	"cmp"
	"context"
	"net"
	"slices"
	"strconv"
	"time"
)

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
	// belongs to no name for which the sandbox asked before. It has no control characters.
	Host     string    `json:"host,omitempty"`
	Address  string    `json:"address,omitempty"` // the IP address; "" if the name was refused
	Port     int       `json:"port,omitempty"`    // 0 if the name was refused
	Protocol string    `json:"protocol"`          // "tcp", "udp", or "dns" if the name was refused
	Reason   string    `json:"reason"`            // a phrase, with the way to allow it if there is one
	Count    int64     `json:"count"`
	First    time.Time `json:"first"`
	Last     time.Time `json:"last"`
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
