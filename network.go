package atoll

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
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
	// Allow lists host names ("example.com", "*.example.com"), networks ("10.1.0.0/16", "192.0.2.7") and ready-made sets of hosts
	// ("npm"). With NetworkEgress, the sandbox reaches nothing else. With NetworkOn, it reaches these destinations although the
	// default policy denies them. With Caps.Gateway, an entry can have a port ("example.com:443"), and the name of a host methods
	// and a path ("GET,POST example.com/api"): then it opens these requests of HTTP only. A path stands for all paths below it,
	// too, and "*" in it for any characters.
	Allow []string `json:"allow,omitempty"`
	// Deny lists the same for what the sandbox must not reach, although Allow or Mode opens it. It needs Caps.Gateway.
	Deny []string `json:"deny,omitempty"`
	// Rules change and limit requests of HTTP. They open nothing. They need Caps.Gateway.
	Rules []NetworkRule `json:"rules,omitempty"`
}

// A NetworkRule applies to the requests of HTTP that Match and Headers match. All rules that match a request apply.
type NetworkRule struct {
	Match   string            `json:"match"`             // like an entry of Network.Allow with the name of a host
	Headers map[string]string `json:"headers,omitempty"` // patterns of headers that the request must have; "*" stands for any characters

	// Deny refuses the request.
	Deny bool `json:"deny,omitempty"`
	// SetHeaders are headers of the request that replace those that it has. In a value, ${NAME} stands for the value of that
	// secret of the sandbox, which must have the host of the request.
	SetHeaders map[string]string `json:"set_headers,omitempty"`
	// SetQuery are parameters of the query that replace those that the request has. Values are like those of SetHeaders.
	SetQuery map[string]string `json:"set_query,omitempty"`
	// BasicAuth is "USER:PASSWORD" for the Authorization header, like a value of SetHeaders.
	BasicAuth string `json:"basic_auth,omitempty"`
	// RequestsPerMinute limits the requests; 0 means no limit. One more gets status 429.
	RequestsPerMinute int `json:"requests_per_minute,omitempty"`
	// BytesPerMinute limits the bodies of requests and responses together; 0 means no limit. More of them wait.
	BytesPerMinute Bytes `json:"bytes_per_minute,omitzero"`
	// Redirect is the URL ("https://mirror.example.com/npm") to which the gateway sends the request instead of its host, with the
	// path of the request after that of the URL.
	Redirect string `json:"redirect,omitempty"`
	// Redact puts the placeholders back where the body of a response has the values of secrets.
	Redact bool `json:"redact,omitempty"`
	// Pass leaves TLS to the host as it is, although other rules name the host. Match must be the name of a host then. No secret
	// can have the host.
	Pass bool `json:"pass,omitempty"`
}

// A Secret is a value that the programs in a sandbox use without having it: they have a placeholder, in an environment variable, and
// the gateway puts the value into requests to some hosts only. The gateway replaces placeholders in headers, also in the password
// of basic authentication. A request with a placeholder in a header to another host, or in its URL, is refused.
type Secret struct {
	Name string `json:"name"` // of the environment variable
	// Hosts are the hosts that get the value, by TLS: "api.example.com", "*.example.com" or "api.example.com:8443". The sandbox
	// reaches their public addresses, unless Network.Allow has an entry for requests to the same host.
	Hosts []string `json:"hosts"`
	// Source says where the value is: "env:VARIABLE", "file:/path" for a file that only its owner can read, "vault:MOUNT/PATH#FIELD" for
	// HashiCorp Vault and OpenBao, "aws:SECRET" or "aws:SECRET#FIELD" for AWS Secrets Manager, or "keyring:SERVICE/ACCOUNT" for the
	// keyring of the user. The provider reads it on its own machine: a file again for each request, and a store after a minute. For a
	// store it runs the program atoll-server, with its own environment.
	Source string `json:"source,omitempty"`
	// Value is the value. Then the provider does not read Source. Atoll stores it nowhere and returns it never; a sandbox that starts
	// again needs it again, or a Source.
	Value SecretValue `json:"-"`
	// Placeholder is the text in the variable. Empty means a random one that looks like the value.
	Placeholder string `json:"placeholder,omitempty"`
	// Body replaces placeholders in the bodies of requests, too, up to MaxSecretBody. A longer body with one is refused, and so is
	// a body with one to another host.
	Body bool `json:"body,omitempty"`
}

// MaxSecretBody is the size in bytes of the longest body in which the gateway replaces placeholders.
const MaxSecretBody = 1 << 20

// A SecretValue is the value of a secret. It does not appear in messages and in JSON.
type SecretValue string

// String returns text without the value.
func (v SecretValue) String() string {
	if v == "" {
		return ""
	}
	return "(secret)"
}

// GoString returns text without the value.
func (v SecretValue) GoString() string { return v.String() }

// MarshalText fails: what stores or sends a value has to say so.
func (v SecretValue) MarshalText() ([]byte, error) {
	return nil, fmt.Errorf("the value of a secret is not stored")
}

// SecretValues returns the values of the secrets that have one, by their names.
func (s *Spec) SecretValues() map[string]string {
	values := map[string]string{}
	for _, one := range s.Secrets {
		if one.Value != "" {
			values[one.Name] = string(one.Value)
		}
	}
	return values
}

// SetSecretValues sets the values of the secrets with these names, and does not modify a list that s shares with other specs. It fails
// with ErrInvalid if there is no secret of a name.
func (s *Spec) SetSecretValues(values map[string]string) error {
	s.Secrets = slices.Clone(s.Secrets)
	for name, value := range values {
		i := slices.IndexFunc(s.Secrets, func(one Secret) bool { return one.Name == name })
		if i < 0 {
			return Errorf("create", s.Name, ErrInvalid, "a value for secret %s, which the sandbox does not have", name)
		}
		s.Secrets[i].Value = SecretValue(value)
	}
	return nil
}

// NeedsGateway reports whether s asks for more than names and addresses of a network: for Caps.Gateway.
func (s *Spec) NeedsGateway() bool {
	return len(s.Network.Deny) > 0 || len(s.Network.Rules) > 0 || len(s.Secrets) > 0
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
		switch {
		case len(n.Allow) > 0:
			return fmt.Errorf("network: allow needs mode on or egress")
		case len(n.Deny) > 0, len(n.Rules) > 0:
			return fmt.Errorf("network: deny and rules need mode on or egress")
		case len(s.Secrets) > 0:
			return fmt.Errorf("secrets need a network: use mode egress, or on")
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
	if err := s.validateSecrets(); err != nil {
		return err
	}
	return s.validatePorts()
}

// minPlaceholder is the length in bytes of the shortest placeholder: a shorter one could be in a request by chance.
const minPlaceholder = 16

// maxSecretValue is the length in bytes of the longest value of a secret.
const maxSecretValue = 64 << 10

// validateSecrets checks what of the secrets does not depend on the provider.
func (s *Spec) validateSecrets() error {
	taken := map[string]bool{}
	for _, v := range slices.Concat(s.Env, s.System.Env) {
		name, _, _ := strings.Cut(v, "=")
		taken[name] = true
	}
	for _, one := range s.Secrets {
		switch {
		case !validVariable(one.Name):
			return fmt.Errorf("secret %q: the name must be that of an environment variable, like API_KEY", one.Name)
		case taken[one.Name]:
			return fmt.Errorf("secret %s: the variable is set twice", one.Name)
		case len(one.Hosts) == 0:
			return fmt.Errorf("secret %s: no hosts: name those that may get the value", one.Name)
		case one.Source == "" && one.Value == "":
			return fmt.Errorf("secret %s: neither a value nor a source", one.Name)
		case one.Source != "" && describeSource(one.Source) != "":
			return fmt.Errorf("secret %s: source %q: %s", one.Name, one.Source, describeSource(one.Source))
		case strings.ContainsFunc(string(one.Value), func(r rune) bool { return r < ' ' || r == 0x7f || r == utf8.RuneError }):
			return fmt.Errorf("secret %s: the value must be one line of text", one.Name)
		case len(one.Value) > maxSecretValue:
			return fmt.Errorf("secret %s: the value is longer than %d bytes", one.Name, maxSecretValue)
		case one.Placeholder != "" && (len(one.Placeholder) < minPlaceholder || strings.ContainsFunc(one.Placeholder, func(r rune) bool { return r <= ' ' || r >= 0x7f })):
			return fmt.Errorf("secret %s: a placeholder needs at least %d characters of ASCII without spaces", one.Name, minPlaceholder)
		}
		taken[one.Name] = true
	}
	return nil
}

// describeSource describes what is wrong with the source of a secret, or returns "".
func describeSource(source string) string {
	scheme, rest, _ := strings.Cut(source, ":")
	name, field, hasField := strings.Cut(rest, "#")
	switch {
	case rest == "":
		return "name what is to be read, as in env:VARIABLE"
	case strings.ContainsFunc(rest, func(r rune) bool { return r < ' ' || r == 0x7f || r == utf8.RuneError }):
		return "the source must be one line of text"
	}
	switch scheme {
	case "env":
	case "file":
		if !path.IsAbs(rest) {
			return "the path must be absolute"
		}
	case "vault":
		if !strings.Contains(name, "/") || strings.HasSuffix(rest, "#") || !hasField {
			return "use vault:MOUNT/PATH#FIELD"
		}
	case "aws":
		if name == "" || hasField && field == "" {
			return "use aws:SECRET or aws:SECRET#FIELD"
		}
	case "keyring":
		if at := strings.LastIndexByte(rest, '/'); at <= 0 || at == len(rest)-1 {
			return "use keyring:SERVICE/ACCOUNT"
		}
	default:
		return "use env:VARIABLE, file:/path, vault:MOUNT/PATH#FIELD, aws:SECRET or keyring:SERVICE/ACCOUNT"
	}
	return ""
}

// validVariable reports whether s is the name of an environment variable.
func validVariable(s string) bool {
	for i, c := range []byte(s) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
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
	Protocol string    `json:"protocol"`          // "tcp", "udp", "dns" if the name was refused, or "tls", "http" or "https" if Host was refused at an open address
	Reason   string    `json:"reason"`            // a phrase, with the way to allow it if there is one
	Opens    string    `json:"opens,omitempty"`   // the entry of Network.Allow that would open it; "" if none would
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

// OpensOf returns the entries of Network.Allow that would open what was refused, each once.
func OpensOf(list []Refusal) (entries []string) {
	for _, r := range list {
		if r.Opens != "" && !slices.Contains(entries, r.Opens) {
			entries = append(entries, r.Opens)
		}
	}
	return entries
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

// A NetworkVerdict says what a network did with a name, a connection or a request.
type NetworkVerdict string

// The verdicts.
const (
	NetworkAllowed NetworkVerdict = "allowed"
	NetworkRefused NetworkVerdict = "refused" // by the policy of the sandbox, or by a limit
	NetworkFailed  NetworkVerdict = "failed"  // allowed, but the server did not answer
)

// A NetworkEvent is a decision of the network of a sandbox about a name, a connection or a request of HTTP.
type NetworkEvent struct {
	ID   int64     `json:"id"`   // its number in the log, from 1
	Time time.Time `json:"time"` // when it was refused, or had ended
	// Protocol is "dns" for a name, "tcp", "tls" or "udp" for a connection, and "http" or "https" for a request.
	Protocol string         `json:"protocol"`
	Host     string         `json:"host,omitempty"`     // like Refusal.Host
	Address  string         `json:"address,omitempty"`  // the IP address; "" for a name
	Port     int            `json:"port,omitempty"`     // 0 for a name
	Method   string         `json:"method,omitempty"`   // of the request
	Path     string         `json:"path,omitempty"`     // of the request, decoded and cut to 200 bytes, without the query
	Verdict  NetworkVerdict `json:"verdict"`            // "allowed", "refused" or "failed"
	Rule     string         `json:"rule,omitempty"`     // the entry of Allow or Deny, the rule or the secret that decided; "" for the mode
	Reason   string         `json:"reason,omitempty"`   // why it was refused or failed, as a phrase
	Opens    string         `json:"opens,omitempty"`    // like Refusal.Opens
	Status   int            `json:"status,omitempty"`   // of the response
	Sent     Bytes          `json:"sent,omitzero"`      // by the sandbox; of a request, its body
	Received Bytes          `json:"received,omitzero"`  // by the sandbox; of a response, its body
	Duration Duration       `json:"duration,omitempty"` // until its end
}

// Target returns the host or else the address, with the port if there is one.
func (e *NetworkEvent) Target() string {
	host := cmp.Or(e.Host, e.Address)
	if e.Port == 0 {
		return host
	}
	return net.JoinHostPort(host, strconv.Itoa(e.Port))
}

// Refusal returns the event as a Refusal without a count and times, and whether it is one.
func (e *NetworkEvent) Refusal() (r Refusal, ok bool) {
	r = Refusal{Host: e.Host, Address: e.Address, Port: e.Port, Protocol: e.Protocol, Reason: e.Reason, Opens: e.Opens}
	return r, e.Verdict == NetworkRefused
}

// A NetworkLog is a part of what the network of a sandbox decided since the creation of the sandbox, also before a stop.
type NetworkLog struct {
	NoNetwork bool           `json:"no_network,omitempty"` // the sandbox has no network, so there are no decisions
	Events    []NetworkEvent `json:"events"`               // at most MaxNetworkEvents, the oldest first
	First     int64          `json:"first"`                // the number of the oldest event that the log retains, or would be
	Last      int64          `json:"last"`                 // the number of the latest event; 0 if there are none
	Allowed   int64          `json:"allowed"`              // number of all events that were allowed, or failed
	Refused   int64          `json:"refused"`              // number of all events that were refused
	Sent      Bytes          `json:"sent"`                 // by the sandbox, in all events
	Received  Bytes          `json:"received"`             // by the sandbox, in all events
}

// MaxNetworkEvents is the maximum length of NetworkLog.Events.
const MaxNetworkEvents = 1000

// AllowCommand returns the command line that adds entries to Network.Allow of a sandbox.
func AllowCommand(sandbox string, entries ...string) string {
	line := "atoll net allow " + sandbox
	for _, e := range entries {
		if strings.ContainsFunc(e, func(r rune) bool { return r < '+' || strings.ContainsRune(";<>?[\\]^`{|}~", r) }) {
			e = "'" + strings.ReplaceAll(e, "'", `'\''`) + "'"
		}
		line += " " + e
	}
	return line
}

// A NetworkLogger is a Sandbox with Caps.NetworkLog.
type NetworkLogger interface {
	NetworkLog(ctx context.Context, after int64, wait time.Duration) (NetworkLog, error)
}

// NetworkLogOf returns the oldest events of the network after the one with the number after, which is 0 for all that the log retains.
// If there are none yet, it waits for one, for at most wait. It works for stopped sandboxes, too, without waiting. Events of
// the last second are lost if the sandbox is killed. Kinds: ErrUnsupported, ErrNotFound.
func NetworkLogOf(ctx context.Context, sb Sandbox, after int64, wait time.Duration) (NetworkLog, error) {
	if l, ok := As[NetworkLogger](sb); ok {
		return l.NetworkLog(ctx, after, wait)
	}
	return NetworkLog{}, E("network log", sb.ID(), ErrUnsupported, nil)
}

// A NetworkChange changes the network policy of a sandbox.
type NetworkChange struct {
	// Network replaces Spec.Network. The mode can change from on to egress and back, and must otherwise be the same.
	Network Network `json:"network"`
	// Previous is the policy that the sandbox must have before. Nil means any.
	Previous *Network `json:"previous,omitempty"`
}

// A NetworkUpdater is a Sandbox with Caps.NetworkUpdate.
type NetworkUpdater interface {
	UpdateNetwork(ctx context.Context, change NetworkChange) error
}

// UpdateNetwork changes the network policy of the sandbox, at once if it runs, and for later starts. It resets the connections
// that the new policy refuses. The certificate that rules for requests need comes into a sandbox at its start: if it has none,
// UpdateNetwork refuses such rules while the sandbox runs. Kinds: ErrUnsupported, ErrNotFound, ErrInvalid, ErrConflict (the policy is
// not Previous).
func UpdateNetwork(ctx context.Context, sb Sandbox, change NetworkChange) error {
	if u, ok := As[NetworkUpdater](sb); ok {
		return u.UpdateNetwork(ctx, change)
	}
	return E("network", sb.ID(), ErrUnsupported, nil)
}

// WithNetwork returns the status after UpdateNetwork, or why the change is not possible.
func (s Status) WithNetwork(change NetworkChange) (Status, error) {
	before, after := s.Spec.Network, change.Network
	refuse := func(format string, args ...any) (Status, error) {
		return s, Errorf("network", s.ID, ErrInvalid, format, args...)
	}
	isFiltered := func(n *Network) bool { return n.Mode == NetworkOn || n.Mode == NetworkEgress }
	switch {
	case !s.Caps.NetworkUpdate:
		return s, E("network", s.ID, ErrUnsupported, nil)
	case change.Previous != nil && !before.Equal(change.Previous):
		return s, Errorf("network", s.ID, ErrConflict, "the policy has changed since it was read: read it again")
	case !isFiltered(&before):
		return refuse("the sandbox was created with network mode %s, which has no policy: create another with --allow", cmp.Or(before.Mode, NetworkNone))
	case !isFiltered(&after):
		return refuse("network mode %s: a sandbox can change between on and egress only", cmp.Or(after.Mode, NetworkNone))
	case after.Name != "":
		return refuse("network name %q: needs mode named", after.Name)
	}
	wanted := Spec{Name: s.Spec.Name, Network: after, Secrets: s.Spec.Secrets}
	if err := wanted.CheckCaps(s.Provider, s.Caps, nil); err != nil {
		return s, err
	}
	s = s.Clone()
	s.Spec.Network = wanted.Clone().Network
	return s, nil
}

// Equal reports whether two policies are the same. The order of Allow and Deny does not matter.
func (n *Network) Equal(other *Network) bool {
	a, b := *n, *other
	for _, x := range []*Network{&a, &b} {
		x.Allow, x.Deny = slices.Sorted(slices.Values(x.Allow)), slices.Sorted(slices.Values(x.Deny))
		if len(x.Rules) == 0 {
			x.Rules = nil
		}
	}
	return reflect.DeepEqual(a, b)
}
