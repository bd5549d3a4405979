package egress

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/time/rate"

	"github.com/seed46cd37a8/atoll"
)

// NotAllowed ends the reason for what is refused only because no entry of Allow opens it.
const NotAllowed = "not in --allow"

// Rules are a network policy that has been compiled. Their methods may be called at once from many goroutines.
type Rules struct {
	allow, deny []Entry
	rules       []Rule
	secrets     []atoll.Secret
	secretHosts [][]Entry // by the index of secrets
	implied     []Entry   // what secrets open
}

// A Rule is a compiled rule.
type Rule struct {
	*atoll.NetworkRule
	Target   *url.URL      // of Redirect; nil for none
	Requests *rate.Limiter // nil for no limit
	Bytes    *rate.Limiter // nil for no limit; its burst is the largest number of bytes to wait for

	entries []Entry
	headers map[string]*regexp.Regexp
}

// New compiles the policy of a sandbox. Its errors say which part is wrong, and how to write it.
func New(nw atoll.Network, secrets []atoll.Secret) (_ *Rules, err error) {
	r := &Rules{secrets: secrets}
	if r.allow, err = parseList("allow", nw.Allow); err != nil {
		return nil, err
	}
	for _, e := range r.allow {
		if e.ForRequests() && nw.Mode == atoll.NetworkOn {
			return nil, fmt.Errorf("allow %q: all requests are open with mode on: use mode egress, or deny", e.Text)
		}
	}
	if r.deny, err = parseList("deny", nw.Deny); err != nil {
		return nil, err
	}
	for _, s := range secrets {
		if err := r.addSecret(s); err != nil {
			return nil, fmt.Errorf("secret %s: %w", s.Name, err)
		}
	}
	for _, rule := range nw.Rules {
		if err := r.addRule(rule); err != nil {
			return nil, fmt.Errorf("rule %q: %w", rule.Match, err)
		}
	}
	return r, nil
}

func parseList(what string, list []string) (all []Entry, err error) {
	for _, s := range list {
		entries, err := Parse(s)
		if err != nil {
			return nil, fmt.Errorf("%s %q: %w", what, s, err)
		}
		all = append(all, entries...)
	}
	return all, nil
}

// addSecret adds the hosts of a secret.
func (r *Rules) addSecret(s atoll.Secret) error {
	hosts, err := parseList("host", s.Hosts)
	if err != nil {
		return err
	}
	for _, e := range hosts {
		switch {
		case e.Host == "":
			return fmt.Errorf("host %q: use a name: the gateway checks the certificate of the host", e.Text)
		case e.ForRequests():
			return fmt.Errorf("host %q: leave out methods and paths: --allow has them", e.Text)
		}
		// An entry for the same host says what is open.
		if !slices.ContainsFunc(r.allow, func(a Entry) bool { return a.Host == e.Host && a.Wildcard == e.Wildcard }) {
			r.implied = append(r.implied, e)
		}
	}
	r.secretHosts = append(r.secretHosts, hosts)
	return nil
}

// addRule compiles a rule.
func (r *Rules) addRule(nr atoll.NetworkRule) (err error) {
	c := Rule{NetworkRule: &nr, headers: map[string]*regexp.Regexp{}}
	if c.entries, err = Parse(nr.Match); err != nil {
		return err
	}
	for _, e := range c.entries {
		if e.Host == "" {
			return fmt.Errorf("use the name of a host: Atoll does not look at requests to an address")
		}
		if nr.Pass && (e.ForRequests() || len(nr.Headers) > 0) {
			return fmt.Errorf("pass is for a whole host: leave out methods, paths and headers")
		}
		if name := r.secretOf(e); nr.Pass && name != "" {
			return fmt.Errorf("pass leaves TLS as it is, so secret %s could not get in: leave out one of them", name)
		}
		if text := r.entryForRequests(e); nr.Pass && text != "" {
			return fmt.Errorf("pass leaves TLS as it is, so %q could not hold: leave out one of them", text)
		}
	}
	for name, pattern := range nr.Headers {
		if !httpguts.ValidHeaderFieldName(name) {
			return fmt.Errorf("%q is not the name of a header", name)
		}
		parts := strings.Split(pattern, "*")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		c.headers[http.CanonicalHeaderKey(name)] = regexp.MustCompile("^(?is:" + strings.Join(parts, ".*") + ")$")
	}
	if err := c.setEffects(); err != nil {
		return err
	}
	for _, other := range r.rules {
		if (c.Pass && other.Deny || c.Deny && other.Pass) && c.sharesHosts(&other) {
			return fmt.Errorf("one rule denies requests, and another passes TLS to the same host as it is: leave out one of them")
		}
	}
	for _, name := range secretNames(&nr) {
		if !r.mayGet(name, c.entries) {
			return fmt.Errorf("${%s}: there is no secret of this name with this host", name)
		}
	}
	r.rules = append(r.rules, c)
	return nil
}

// sharesHosts reports whether both rules are for the same host.
func (c *Rule) sharesHosts(other *Rule) bool {
	for _, a := range c.entries {
		if slices.ContainsFunc(other.entries, func(b Entry) bool { return a.includesHosts(&b) || b.includesHosts(&a) }) {
			return true
		}
	}
	return false
}

// setEffects checks and compiles what a rule does.
func (c *Rule) setEffects() error {
	for name, value := range c.SetHeaders {
		if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return fmt.Errorf("%q is not a header with a value of one line", name)
		}
		if slices.Contains(fixedHeaders, http.CanonicalHeaderKey(name)) {
			return fmt.Errorf("header %s belongs to the connection: no rule sets it", name)
		}
	}
	switch {
	case c.BasicAuth != "" && !strings.Contains(c.BasicAuth, ":"):
		return fmt.Errorf(`basic_auth: write it like "USER:PASSWORD"`)
	case c.RequestsPerMinute < 0 || c.BytesPerMinute < 0:
		return fmt.Errorf("a limit must not be negative; 0 means none")
	}
	if n := c.RequestsPerMinute; n > 0 {
		c.Requests = rate.NewLimiter(perMinute(float64(n)), n)
	}
	if n := int(c.BytesPerMinute); n > 0 {
		c.Bytes = rate.NewLimiter(perMinute(float64(n)), min(max(n/60, 1), 64<<10))
	}
	if c.Redirect == "" {
		return nil
	}
	u, err := url.Parse(c.Redirect)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf(`redirect %q: write it like "https://mirror.example.com/path"`, c.Redirect)
	}
	c.Target = u
	return nil
}

func perMinute(n float64) rate.Limit { return rate.Limit(n / time.Minute.Seconds()) }

// fixedHeaders are the headers that no rule sets.
var fixedHeaders = []string{"Host", "Connection", "Content-Length", "Transfer-Encoding", "Upgrade", "Te", "Trailer", "Expect", "Keep-Alive", "Proxy-Connection"}

// secretNames returns the names of the secrets that a rule uses.
func secretNames(r *atoll.NetworkRule) (names []string) {
	texts := []string{r.BasicAuth}
	for _, values := range []map[string]string{r.SetHeaders, r.SetQuery} {
		for _, value := range values {
			texts = append(texts, value)
		}
	}
	for _, text := range texts {
		for _, m := range reference.FindAllStringSubmatch(text, -1) {
			names = append(names, m[1])
		}
	}
	return names
}

// A reference stands for the value of a secret in a rule.
var reference = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// Expand replaces the references in the text of a rule by what value returns for the name of a secret. It fails if value does.
func Expand(text string, value func(name string) (string, error)) (expanded string, err error) {
	expanded = reference.ReplaceAllStringFunc(text, func(ref string) string {
		v, problem := value(ref[2 : len(ref)-1])
		if problem != nil {
			err = problem
		}
		return v
	})
	return expanded, err
}

// mayGet reports whether the hosts of all entries are hosts of the secret with that name.
func (r *Rules) mayGet(name string, entries []Entry) bool {
	i := slices.IndexFunc(r.secrets, func(s atoll.Secret) bool { return s.Name == name })
	return i >= 0 && !slices.ContainsFunc(entries, func(e Entry) bool {
		return !slices.ContainsFunc(r.secretHosts[i], func(h Entry) bool { return h.includesHosts(&e) })
	})
}

// includesHosts reports whether all hosts of other are hosts of e, at the same ports.
func (e *Entry) includesHosts(other *Entry) bool {
	if e.Port != 0 && e.Port != other.Port {
		return false
	}
	if other.Wildcard {
		return e.Wildcard && (other.Host == e.Host || strings.HasSuffix(other.Host, "."+e.Host))
	}
	return e.MatchesHost(other.Host, other.Port)
}

// secretOf returns the name of a secret that has a host of e, "" if there is none.
func (r *Rules) secretOf(e Entry) string {
	for i, hosts := range r.secretHosts {
		if slices.ContainsFunc(hosts, func(h Entry) bool { return h.includesHosts(&e) || e.includesHosts(&h) }) {
			return r.secrets[i].Name
		}
	}
	return ""
}

// entryForRequests returns an entry of Allow or Deny for some requests to a host of e, "" if there is none.
func (r *Rules) entryForRequests(e Entry) string {
	for _, a := range slices.Concat(r.allow, r.deny) {
		if a.ForRequests() && (a.includesHosts(&e) || e.includesHosts(&a)) {
			return a.Text
		}
	}
	return ""
}

// MayGet reports whether the secret with that index may go to a host, whose name is in lower case.
func (r *Rules) MayGet(secret int, host string, port int) bool {
	return slices.ContainsFunc(r.secretHosts[secret], func(e Entry) bool { return e.MatchesHost(host, port) })
}

// Secrets returns the secrets of the policy, which the caller must not change.
func (r *Rules) Secrets() []atoll.Secret { return r.secrets }

// A Trust says how a policy lists a host, and how far an address that was the answer for it is trusted. A higher value includes the
// lower ones.
type Trust int

// The kinds of trust.
const (
	Unlisted   Trust = iota
	ByOthers         // by a set or a secret: public addresses
	ByWildcard       // public addresses; with mode on private ones, too
	ByName           // private addresses, too
)

// Allowed says how Allow lists a host, whose name is in lower case, at a port; port 0 means at any. partly reports that it is listed for
// some requests of HTTP only.
func (r *Rules) Allowed(host string, port int) (t Trust, partly bool) {
	partly = true
	for i, list := range [][]Entry{r.allow, r.implied} {
		for _, e := range list {
			if !e.MatchesHost(host, port) {
				continue
			}
			switch {
			case i > 0 || e.InSet:
				t = max(t, ByOthers)
			case e.Wildcard:
				t = max(t, ByWildcard)
			default:
				t = ByName
			}
			partly = partly && e.ForRequests()
		}
	}
	return t, partly && t != Unlisted
}

// AllowedNetworks returns the networks and addresses that Allow lists for a port.
func (r *Rules) AllowedNetworks(port int) (list []netip.Prefix) {
	for _, e := range r.allow {
		if e.Host == "" && (e.Port == 0 || e.Port == port) {
			list = append(list, e.Network)
		}
	}
	return list
}

// FindNetwork returns the entry of Allow that has the address at that port, "" if there is none.
func (r *Rules) FindNetwork(addr netip.Addr, port int) string {
	return findNetwork(r.allow, addr, port)
}

// DeniedAddress returns the entry of Deny that has the address at that port, "" if there is none.
func (r *Rules) DeniedAddress(addr netip.Addr, port int) string {
	return findNetwork(r.deny, addr, port)
}

func findNetwork(list []Entry, addr netip.Addr, port int) string {
	for _, e := range list {
		if e.Host == "" && e.Network.Contains(addr) && (e.Port == 0 || e.Port == port) {
			return e.Text
		}
	}
	return ""
}

// DeniedHost returns the entry of Deny that has all of a host, whose name is in lower case, at that port, "" if there is none. Port 0
// means at all ports.
func (r *Rules) DeniedHost(host string, port int) string {
	for _, e := range r.deny {
		if !e.ForRequests() && e.MatchesHost(host, port) && (port != 0 || e.Port == 0) {
			return e.Text
		}
	}
	return ""
}

// NamesHosts reports whether what a connection may do depends on the host that it names, also at an open address.
func (r *Rules) NamesHosts() bool {
	return len(r.rules) > 0 || len(r.secrets) > 0 || slices.ContainsFunc(r.deny, func(e Entry) bool { return e.Host != "" }) ||
		slices.ContainsFunc(r.allow, func(e Entry) bool { return e.ForRequests() })
}

// EndsTLS reports whether there are hosts that Inspects can be true for.
func (r *Rules) EndsTLS() bool {
	return len(r.secrets) > 0 || slices.ContainsFunc(slices.Concat(r.allow, r.deny), func(e Entry) bool { return e.ForRequests() }) ||
		slices.ContainsFunc(r.rules, func(c Rule) bool { return !c.Pass })
}

// Inspects reports whether a gateway has to read the requests to a host at a port, inside of TLS, too.
func (r *Rules) Inspects(host string, port int) bool {
	pass, inspect := false, false
	for _, list := range [][]Entry{r.allow, r.deny} {
		inspect = inspect || slices.ContainsFunc(list, func(e Entry) bool { return e.ForRequests() && e.MatchesHost(host, port) })
	}
	for _, hosts := range r.secretHosts {
		inspect = inspect || slices.ContainsFunc(hosts, func(e Entry) bool { return e.MatchesHost(host, port) })
	}
	for _, c := range r.rules {
		if slices.ContainsFunc(c.entries, func(e Entry) bool { return e.MatchesHost(host, port) }) {
			pass, inspect = pass || c.Pass, true
		}
	}
	return inspect && !pass
}

// CheckRequest returns why a request to a host that is open must not pass, "" if it may, and the entry or the rule that decided, "" for none.
func (r *Rules) CheckRequest(q *Request) (rule, reason string) {
	for i := range r.deny {
		if e := &r.deny[i]; q.mayMatch(e) {
			return e.Text, fmt.Sprintf("--deny has %q", e.Text)
		}
	}
	for _, c := range r.rules {
		if c.Deny && c.matchesRequest(q, q.mayMatch) {
			return c.Match, fmt.Sprintf("a rule denies %q", c.Match)
		}
	}
	if _, partly := r.Allowed(q.Host, q.Port); !partly {
		return r.FindEntry(q.Host, q.Port), ""
	}
	for i := range r.allow {
		if e := &r.allow[i]; q.surelyMatches(e) {
			return e.Text, ""
		}
	}
	return "", q.Target + " is " + NotAllowed
}

// FindEntry returns the entry of Allow, or the secret, by which a host is open at a port, "" for none. Port 0 means any.
func (r *Rules) FindEntry(host string, port int) string {
	for _, forRequests := range []bool{false, true} {
		for i := range r.allow {
			if e := &r.allow[i]; e.ForRequests() == forRequests && e.MatchesHost(host, port) {
				return e.Text
			}
		}
	}
	for i, hosts := range r.secretHosts {
		if slices.ContainsFunc(hosts, func(e Entry) bool { return e.MatchesHost(host, port) }) {
			return "secret " + r.secrets[i].Name
		}
	}
	return ""
}

// Matching returns the rules that apply to a request, without those that deny or pass, or why that is not certain.
func (r *Rules) Matching(q *Request) (list []*Rule, reason string) {
	for i := range r.rules {
		c := &r.rules[i]
		switch {
		case c.Deny || c.Pass || !c.matchesRequest(q, q.mayMatch):
		case c.matchesRequest(q, q.surelyMatches):
			list = append(list, c)
		default:
			return nil, fmt.Sprintf("servers read %s in several ways, and a rule is for %q", q.Target, c.Match)
		}
	}
	return list, ""
}

// UsesHeaders reports whether rules depend on headers of requests.
func (r *Rules) UsesHeaders() bool {
	return slices.ContainsFunc(r.rules, func(c Rule) bool { return len(c.headers) > 0 })
}

// matchesRequest reports whether match is true for an entry of the rule, and the request has its headers.
func (c *Rule) matchesRequest(q *Request, match func(*Entry) bool) bool {
	for name, pattern := range c.headers {
		if !slices.ContainsFunc(q.Header[name], func(v string) bool { return pattern.MatchString(strings.TrimSpace(v)) }) {
			return false
		}
	}
	for i := range c.entries {
		if match(&c.entries[i]) {
			return true
		}
	}
	return false
}
