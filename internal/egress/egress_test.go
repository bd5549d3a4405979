package egress

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

func TestParse(t *testing.T) {
	for s, want := range map[string]Entry{
		"example.com":                   {Host: "example.com"},
		"EXAMPLE.com.":                  {Host: "example.com"},
		"*.example.com":                 {Host: "example.com", Wildcard: true},
		"example.com:443":               {Host: "example.com", Port: 443},
		"bücher.example":                {Host: "xn--bcher-kva.example"},
		"localhost":                     {Host: "localhost"},
		"go.":                           {Host: "go"},
		"192.0.2.7":                     {Network: netip.MustParsePrefix("192.0.2.7/32")},
		"192.0.2.7:5432":                {Network: netip.MustParsePrefix("192.0.2.7/32"), Port: 5432},
		"10.0.0.0/8":                    {Network: netip.MustParsePrefix("10.0.0.0/8")},
		"10.0.0.0/8:22":                 {Network: netip.MustParsePrefix("10.0.0.0/8"), Port: 22},
		"2001:db8::1":                   {Network: netip.MustParsePrefix("2001:db8::1/128")},
		"[2001:db8::1]":                 {Network: netip.MustParsePrefix("2001:db8::1/128")},
		"[2001:db8::1]:443":             {Network: netip.MustParsePrefix("2001:db8::1/128"), Port: 443},
		"[fd00::/8]:443":                {Network: netip.MustParsePrefix("fd00::/8"), Port: 443},
		"example.com/api":               {Host: "example.com", Path: "/api"},
		"example.com:8443/api/*":        {Host: "example.com", Port: 8443, Path: "/api/*"},
		"example.com/":                  {Host: "example.com"},
		"example.com/*":                 {Host: "example.com"},
		"GET example.com":               {Host: "example.com", Methods: []string{"GET"}},
		"get,Post  *.example.com/a_b-c": {Host: "example.com", Wildcard: true, Methods: []string{"GET", "POST"}, Path: "/a_b-c"},
	} {
		all, err := Parse(s)
		if err != nil || len(all) != 1 {
			t.Errorf("%q: got %d entries, %v", s, len(all), err)
			continue
		}
		e := all[0]
		if e.Text != s || e.Host != want.Host || e.Wildcard != want.Wildcard || e.Network != want.Network || e.Port != want.Port ||
			strings.Join(e.Methods, ",") != strings.Join(want.Methods, ",") || e.Path != want.Path {
			t.Errorf("%q: got %+v, want %+v", s, e, want)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for s, hint := range map[string]string{
		"":                        "neither a host",
		"https://example.com/a":   "leave out the scheme",
		"user@example.com":        "without a user",
		"a.*.com":                 "wildcard",
		"example.com:":            "port",
		"example.com:70000":       "port",
		"example.com:+80":         "port",
		"example.com:http":        "port",
		"10.0.0.0/8/path":         "a path needs a host name",
		"192.0.2.7/api":           "a path needs a host name",
		"10.1":                    "neither a host",
		"[2001:db8::1":            "write an IPv6 address with a port",
		"[2001:db8::1]443":        "write an IPv6 address with a port",
		"[example.com]:443":       "not an IPv6 address",
		"GET 10.0.0.1":            "methods need a host name",
		"GET, POST example.com":   "list of methods",
		"example.com/a?b=c":       "without a query",
		"example.com/a%20b":       "write the path as it is read",
		"example.com/a b":         "list of methods",
		"GET example.com/a b":     "leave out spaces",
		"example.com/\xc0":        "bytes that are no text",
		"example.com/a/../b":      "did you mean /b",
		"example.com//a":          "did you mean /a",
		"npm pypi":                "list of methods",
		"exa_mple.com\n":          "neither a host",
		"GET https://example.com": "leave out the scheme",
	} {
		all, err := Parse(s)
		if err == nil || !strings.Contains(err.Error(), hint) {
			t.Errorf("%q: got %+v, %v, want an error with %q", s, all, err, hint)
		}
	}
}

// Each set has hosts that are valid entries, and is no entry otherwise.
func TestSets(t *testing.T) {
	names := SetNames()
	for _, name := range []string{"anthropic", "openai", "github", "npm", "pypi", "go", "debian", "crates"} {
		if len(SetHosts(name)) == 0 {
			t.Errorf("there is no set %s among %v", name, names)
		}
	}
	for _, name := range names {
		all, err := Parse(name)
		if err != nil || len(all) != len(SetHosts(name)) {
			t.Errorf("%s: got %d entries, %v, want %d", name, len(all), err, len(SetHosts(name)))
		}
		for _, e := range all {
			if e.Host == "" || e.ForRequests() || e.Text != name {
				t.Errorf("%s: got %+v, want a host", name, e)
			}
		}
	}
}

// newRequest returns what rules see of a request like "GET /path" to example.com.
func newRequest(t *testing.T, target string, header http.Header) *Request {
	t.Helper()
	method, path, _ := strings.Cut(target, " ")
	r, err := http.NewRequest(method, "http://example.com"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		r.Header = header
	}
	return NewRequest(r, "example.com", 443)
}

func mustRules(t *testing.T, nw atoll.Network, secrets ...atoll.Secret) *Rules {
	t.Helper()
	r, err := New(nw, secrets)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// An entry of Allow counts if every server reads the request so, and one of Deny if any does.
func TestRequests(t *testing.T) {
	for _, tt := range []struct {
		entry, request string
		allowed        bool // by Allow
		denied         bool // by Deny
	}{
		{"GET example.com", "GET /", true, true},
		{"GET example.com", "HEAD /", true, true},
		{"GET example.com", "POST /", false, false},
		{"example.com/a", "GET /a", true, true},
		{"example.com/a", "GET /a/", true, true},
		{"example.com/a", "GET /a/b/c", true, true},
		{"example.com/a", "GET /ab", false, false},
		{"example.com/a", "GET /A", false, false},
		{"example.com/a", "GET /b/a", false, false},
		{"example.com/a/", "GET /a", true, true},
		{"example.com/a*", "GET /ab/c", true, true},
		{"example.com/*/x", "GET /a/b/x/y", true, true},
		{"example.com/a.b", "GET /axb", false, false},
		{"example.com/a", "GET /%61", true, true},
		{"example.com/a", "GET //a", true, true},
		{"example.com/@scope/name", "GET /@scope%2fname", true, true},
		{"example.com/a", "GET /a/../b", false, true},
		{"example.com/a", "GET /a/%2e%2e/b", false, true},
		{"example.com/a", "GET /a%2f..%2fb", false, true},
		{"example.com/a", "GET /a/..%5cb", false, true},
		{"example.com/a", "GET /a/..;x=1/b", false, true},
		{"example.com/b", "GET /x;/../b", false, true},
		{"example.com/a/b", "GET /a;v=1/b", false, true},
		{"example.com/a/b", `GET /a\b`, false, true},
		{"example.com:443/a", "GET /a", true, true},
		{"example.com:8443/a", "GET /a", false, false},
		{"*.example.com/a", "GET /a", false, false},
		{"GET,DELETE example.com/a", "DELETE /a", true, true},
	} {
		other := "POST example.com/never" // so that the host is listed for some requests
		q := newRequest(t, tt.request, nil)
		allow := mustRules(t, atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{tt.entry, other}})
		if _, reason := allow.CheckRequest(q); (reason == "") != tt.allowed {
			t.Errorf("allow %q: %s: got %q", tt.entry, tt.request, reason)
		}
		deny := mustRules(t, atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"example.com"}, Deny: []string{tt.entry}})
		if _, reason := deny.CheckRequest(q); (reason != "") != tt.denied {
			t.Errorf("deny %q: %s: got %q", tt.entry, tt.request, reason)
		}
	}
}

// A method that a header hides counts, too.
func TestMethodOverride(t *testing.T) {
	for _, name := range []string{"X-Http-Method-Override", "X-Http-Method", "X-Method-Override"} {
		q := newRequest(t, "POST /a", http.Header{name: {"delete"}})
		if _, reason := mustRules(t, atoll.Network{Allow: []string{"POST example.com"}}).CheckRequest(q); reason == "" {
			t.Errorf("%s passes with --allow POST", name)
		}
		if _, reason := mustRules(t, atoll.Network{Allow: []string{"example.com"}, Deny: []string{"DELETE example.com"}}).CheckRequest(q); reason == "" {
			t.Errorf("%s passes with --deny DELETE", name)
		}
	}
}

func TestHosts(t *testing.T) {
	r := mustRules(t, atoll.Network{
		Allow: []string{"a.example", "*.b.example", "c.example:443", "GET d.example", "GET e.example/x", "e.example:80", "10.0.0.0/8:5432", "npm"},
		Deny:  []string{"x.b.example", "y.b.example:25", "DELETE a.example", "10.1.0.0/16", "10.2.0.0/16:5432"},
		Rules: []atoll.NetworkRule{{Match: "z.b.example", RequestsPerMinute: 3}, {Match: "p.b.example", Pass: true}, {Match: "*.b.example:99", Redact: true}},
	}, atoll.Secret{Name: "A", Hosts: []string{"s.example", "*.t.example:8443", "d.example"}})
	for _, tt := range []struct {
		host    string
		port    int
		trust   Trust
		partly  bool
		denied  bool
		inspect bool
	}{
		{"a.example", 443, ByName, false, false, true},
		{"b.example", 443, Unlisted, false, false, false},
		{"w.b.example", 443, ByWildcard, false, false, false},
		{"w.b.example", 99, ByWildcard, false, false, true},
		{"p.b.example", 99, ByWildcard, false, false, false},
		{"x.b.example", 443, ByWildcard, false, true, false},
		{"y.b.example", 25, ByWildcard, false, true, false},
		{"z.b.example", 1, ByWildcard, false, false, true},
		{"c.example", 443, ByName, false, false, false},
		{"c.example", 80, Unlisted, false, false, false},
		{"d.example", 443, ByName, true, false, true},
		{"e.example", 443, ByName, true, false, true},
		{"e.example", 80, ByName, false, false, true},
		{"s.example", 443, ByOthers, false, false, true},
		{"u.t.example", 8443, ByOthers, false, false, true},
		{"u.t.example", 443, Unlisted, false, false, false},
		{"registry.npmjs.org", 443, ByOthers, false, false, false},
	} {
		trust, partly := r.Allowed(tt.host, tt.port)
		if denied := r.DeniedHost(tt.host, tt.port) != ""; trust != tt.trust || partly != tt.partly || denied != tt.denied {
			t.Errorf("%s:%d: got trust %d, partly %t, denied %t; want %+v", tt.host, tt.port, trust, partly, denied, tt)
		}
		if got := r.Inspects(tt.host, tt.port); got != tt.inspect {
			t.Errorf("%s:%d: inspects %t", tt.host, tt.port, got)
		}
	}
	if trust, _ := r.Allowed("c.example", 0); trust != ByName || r.DeniedHost("y.b.example", 0) != "" {
		t.Error("port 0 does not stand for any port")
	}
	for address, denied := range map[string]bool{"10.1.2.3:1": true, "10.2.0.1:5432": true, "10.2.0.1:5433": false, "10.3.0.1:5432": false} {
		a := netip.MustParseAddrPort(address)
		if got := r.DeniedAddress(a.Addr(), int(a.Port())) != ""; got != denied {
			t.Errorf("%s: denied %t", address, got)
		}
	}
	if list := r.AllowedNetworks(5432); len(list) != 1 || len(r.AllowedNetworks(80)) != 0 {
		t.Errorf("allowed networks at port 5432: %v", list)
	}
	if !r.MayGet(0, "s.example", 1) || !r.MayGet(0, "u.t.example", 8443) || r.MayGet(0, "u.t.example", 443) || r.MayGet(0, "a.example", 443) {
		t.Error("a secret goes to other hosts than its own")
	}
}

func TestRuleErrors(t *testing.T) {
	secret := atoll.Secret{Name: "KEY", Hosts: []string{"*.example.com"}}
	for hint, rule := range map[string]atoll.NetworkRule{
		"use the name of a host":              {Match: "10.0.0.1"},
		"neither a host":                      {Match: "", Deny: true},
		"not the name of a header":            {Match: "a.example.com", Headers: map[string]string{"a b": "c"}},
		"not a header with a value":           {Match: "a.example.com", SetHeaders: map[string]string{"A": "b\nc"}},
		"belongs to the connection":           {Match: "a.example.com", SetHeaders: map[string]string{"host": "b"}},
		"USER:PASSWORD":                       {Match: "a.example.com", BasicAuth: "x"},
		"must not be negative":                {Match: "a.example.com", RequestsPerMinute: -1},
		"https://mirror.example.com/path":     {Match: "a.example.com", Redirect: "mirror.example.com"},
		"could not get in":                    {Match: "a.example.com", Pass: true},
		`so "GET c.example/a" could not hold`: {Match: "*.example", Pass: true},
		"pass is for a whole host":            {Match: "GET b.example", Pass: true},
		"${OTHER}: there is no secret":        {Match: "a.example.com", SetHeaders: map[string]string{"A": "${OTHER}"}},
		"${KEY}: there is no secret of this":  {Match: "example.org", BasicAuth: "me:${KEY}"},
	} {
		_, err := New(atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"GET c.example/a"}, Rules: []atoll.NetworkRule{rule}}, []atoll.Secret{secret})
		if err == nil || !strings.Contains(err.Error(), hint) {
			t.Errorf("%+v: got %v, want an error with %q", rule, err, hint)
		}
	}
	for _, host := range []string{"10.0.0.1", "GET a.example", "https://a.example", ""} {
		if _, err := New(atoll.Network{}, []atoll.Secret{{Name: "KEY", Hosts: []string{host}}}); err == nil {
			t.Errorf("a secret has the host %q", host)
		}
	}
}

func TestMatching(t *testing.T) {
	r := mustRules(t, atoll.Network{Rules: []atoll.NetworkRule{
		{Match: "example.com", RequestsPerMinute: 1},
		{Match: "POST example.com/a", Redact: true},
		{Match: "example.com", Headers: map[string]string{"content-type": "application/*"}, Redact: true},
		{Match: "example.org", Redact: true},
		{Match: "example.com/secret", Headers: map[string]string{"X-Key": "*"}, Deny: true},
	}})
	for target, want := range map[string]int{"GET /a": 1, "POST /a": 2, "POST /b": 1} {
		if got, reason := r.Matching(newRequest(t, target, nil)); len(got) != want || reason != "" {
			t.Errorf("%s: got %d rules, %q, want %d", target, len(got), reason, want)
		}
	}
	for _, value := range []string{"application/json", "Application/ZIP", " application/x"} {
		if got, _ := r.Matching(newRequest(t, "GET /b", http.Header{"Content-Type": {value}})); len(got) != 2 {
			t.Errorf("with the header %q: got %d rules, want 2", value, len(got))
		}
	}
	for _, target := range []string{"POST /a;x=1", "POST /./a", "POST /b/../a", "post /a", "POST /%252e/a", "GET /a?_method=POST"} {
		if _, reason := r.Matching(newRequest(t, target, nil)); !strings.Contains(reason, "several ways") {
			t.Errorf("%s: got %q, want that servers read it in several ways", target, reason)
		}
	}
	q := newRequest(t, "GET /secret/x", http.Header{"X-Key": {"1"}})
	_, denied := r.CheckRequest(q)
	if _, other := r.CheckRequest(newRequest(t, "GET /secret/x", nil)); denied == "" || other != "" {
		t.Error("a rule with headers does not deny just the requests with them")
	}
}
