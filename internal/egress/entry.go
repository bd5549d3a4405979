// Package egress has the rules of what a sandbox may reach: the entries of a network policy, their ready-made sets, and which request of
// HTTP each of them matches. It decides on names, ports and requests; which addresses a name may open is for the network to decide.
package egress

import (
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// An Entry is one entry of the list of a network policy: "[METHODS ]HOST[:PORT][/PATH]", where HOST is a name, a wildcard, an address or
// a network. Either Host or Network is set.
type Entry struct {
	Text     string       // as it was written
	InSet    bool         // Text is the name of a set
	Host     string       // in lower case and ASCII
	Wildcard bool         // the names below Host, without Host itself
	Network  netip.Prefix // a single address has all bits
	Port     int          // 0 for all
	Methods  []string     // in upper case; nil for all
	Path     string       // as it was written; "" for all

	path *regexp.Regexp // nil for all
}

// Parse returns the entry that s is, or the entries of the set that it names. Its error says how to write s.
func Parse(s string) ([]Entry, error) {
	if hosts, ok := sets()[s]; ok {
		entries := make([]Entry, len(hosts))
		for i, host := range hosts {
			e, err := parseEntry(host)
			if err != nil {
				return nil, fmt.Errorf("set %s: %q: %w", s, host, err)
			}
			e.Text, e.InSet = s, true
			entries[i] = e
		}
		return entries, nil
	}
	e, err := parseEntry(s)
	if err != nil {
		return nil, err
	}
	return []Entry{e}, nil
}

func parseEntry(s string) (e Entry, err error) {
	e.Text = s
	rest := s
	if methods, target, ok := strings.Cut(s, " "); ok {
		if e.Methods, err = parseMethods(methods); err != nil {
			return e, err
		}
		rest = strings.TrimLeft(target, " ")
	}
	if strings.Contains(rest, "://") {
		return e, fmt.Errorf("leave out the scheme: write example.com or example.com/path")
	}
	if ok, err := e.parseNetwork(rest); ok || err != nil {
		if err == nil && e.Methods != nil {
			err = fmt.Errorf("methods need a host name: Atoll does not look at requests to an address")
		}
		return e, err
	}
	host, urlPath := rest, ""
	if slash := strings.IndexByte(rest, '/'); slash >= 0 {
		host, urlPath = rest[:slash], rest[slash:]
	}
	if host, e.Port, err = splitPort(host); err != nil {
		return e, err
	}
	name, wildcard := strings.CutPrefix(host, "*.")
	if e.Host, err = parseHost(name); err != nil {
		return e, err
	}
	e.Wildcard = wildcard
	return e, e.setPath(urlPath)
}

// knownMethods are the methods of HTTP that an entry can have. Requests with CONNECT and TRACE do not pass.
var knownMethods = []string{
	"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY", "LINK", "UNLINK", "PURGE", // and of WebDAV:
	"PROPFIND", "PROPPATCH", "MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK", "REPORT", "SEARCH", "MERGE", "CHECKOUT", "CHECKIN", "MKACTIVITY",
}

// parseMethods parses a list like "GET,POST".
func parseMethods(s string) (methods []string, err error) {
	for m := range strings.SplitSeq(s, ",") {
		m = strings.ToUpper(m)
		if !slices.Contains(knownMethods, m) {
			return nil, fmt.Errorf(`%q is not a list of methods: write it like "GET,POST example.com/path"`, s)
		}
		methods = append(methods, m)
	}
	return methods, nil
}

// parseNetwork parses an address or a network, with a port or without, and reports whether s looks like one.
func (e *Entry) parseNetwork(s string) (ok bool, err error) {
	address, port := s, ""
	switch {
	case strings.HasPrefix(s, "["):
		inside, after, closed := strings.Cut(s[1:], "]")
		if !closed || after != "" && !strings.HasPrefix(after, ":") {
			return true, fmt.Errorf("write an IPv6 address with a port like [2001:db8::1]:443")
		}
		address, port = inside, strings.TrimPrefix(after, ":")
	case strings.Count(s, ":") == 1:
		address, port, _ = strings.Cut(s, ":")
	}
	if addr, err := netip.ParseAddr(address); err == nil {
		if addr.Zone() != "" {
			return true, fmt.Errorf("leave the zone out")
		}
		e.Network = netip.PrefixFrom(addr, addr.BitLen())
	} else if first, _, ok := strings.Cut(address, "/"); ok && isAddress(first) {
		if e.Network, err = netip.ParsePrefix(address); err != nil {
			return true, fmt.Errorf("not a network: write it like 10.1.0.0/16; a path needs a host name")
		}
	} else if strings.HasPrefix(s, "[") {
		return true, fmt.Errorf("%q is not an IPv6 address", address)
	} else {
		return false, nil
	}
	if port != "" || strings.HasSuffix(s, ":") {
		e.Port, err = parsePort(port)
	}
	if err == nil && e.Network != e.Network.Masked() {
		err = fmt.Errorf("has bits set after its prefix: did you mean %s", e.Network.Masked())
	}
	return true, err
}

func isAddress(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil || strings.Trim(s, "0123456789.") == "" && strings.Contains(s, ".")
}

func splitPort(s string) (host string, port int, err error) {
	host, text, ok := strings.Cut(s, ":")
	if ok {
		port, err = parsePort(text)
	}
	return host, port, err
}

func parsePort(s string) (int, error) {
	port, err := strconv.Atoi(s)
	if err != nil || port < 1 || port > 65535 || s[0] == '+' {
		return 0, fmt.Errorf("port %q: use a number from 1 to 65535", s)
	}
	return port, nil
}

// parseHost returns the name as DNS queries spell it: lower case, ASCII, no dot at the end.
func parseHost(s string) (string, error) {
	if strings.Contains(s, "@") {
		return "", fmt.Errorf("write the host without a user")
	}
	if strings.Contains(s, "*") {
		return "", fmt.Errorf(`a wildcard stands for the first labels only, as in "*.example.com"`)
	}
	host, err := idna.New(idna.MapForLookup(), idna.StrictDomainName(false)).ToASCII(strings.TrimSuffix(s, "."))
	if err != nil || !ValidHost(host) {
		return "", fmt.Errorf(`neither a host ("example.com", "*.example.com", "GET example.com/path") nor a network ("10.1.0.0/16"), nor one of the sets %s`, strings.Join(SetNames(), ", "))
	}
	return host, nil
}

// ValidHost reports whether s is the name of a host in lower case, and no parser takes it for an address.
func ValidHost(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	labels := strings.Split(s, ".")
	for _, label := range labels {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range label {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return false
			}
		}
	}
	// A name that ends in a number is an IPv4 address to some parsers ("10.1", "0x7f.1").
	_, err := strconv.ParseUint(labels[len(labels)-1], 0, 64)
	return err != nil
}

// setPath compiles the pattern of a path.
func (e *Entry) setPath(pattern string) error {
	if pattern == "" || pattern == "/" || pattern == "/*" {
		return nil
	}
	if i := strings.IndexAny(pattern, "?#%\\;"); i >= 0 {
		return fmt.Errorf("path %q: %q has no meaning here: write the path as it is read, without a query; * stands for any characters", pattern, pattern[i])
	}
	if !utf8.ValidString(pattern) || strings.ContainsFunc(pattern, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return fmt.Errorf("path %q: leave out spaces and bytes that are no text; * stands for any characters", pattern)
	}
	if clean := path.Clean(pattern); clean != strings.TrimSuffix(pattern, "/") {
		return fmt.Errorf("path %q: did you mean %s", pattern, clean)
	}
	e.Path = pattern
	parts := strings.Split(strings.TrimSuffix(pattern, "/"), "*")
	for i, part := range parts {
		parts[i] = regexp.QuoteMeta(part)
	}
	e.path = regexp.MustCompile(`^(?s:` + strings.Join(parts, ".*") + `(?:/.*)?)$`)
	return nil
}

// ForRequests reports whether the entry is for some requests of HTTP only.
func (e *Entry) ForRequests() bool { return e.Methods != nil || e.path != nil }

// MatchesHost reports whether the entry is for a host, whose name is in lower case, at a port; port 0 means at any.
func (e *Entry) MatchesHost(host string, port int) bool {
	if e.Host == "" || e.Port != 0 && port != 0 && e.Port != port {
		return false
	}
	if e.Wildcard {
		return len(host) > len(e.Host)+1 && strings.HasSuffix(host, "."+e.Host)
	}
	return host == e.Host
}

// matchesMethod reports whether the entry is for a method. GET includes HEAD.
func (e *Entry) matchesMethod(method string) bool {
	return e.Methods == nil || slices.Contains(e.Methods, method) || method == "HEAD" && slices.Contains(e.Methods, "GET")
}

// matchesPath reports whether the entry is for a clean path.
func (e *Entry) matchesPath(p string) bool { return e.path == nil || e.path.MatchString(p) }
