// Package origin decides which web pages may use a server: pages of the server's own addresses, and of
// origins that its operator lists. A browser names the origin of a page in the header Origin.
//
// A listed origin can do no harm by itself: its pages need a bearer token, which a browser sends only if
// the page has it.
package origin

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// A Policy lists the origins whose pages may use a server besides those of the host that a request names.
// The zero value and nil list none. A Policy does not change.
type Policy struct{ listed []string }

// NewPolicy returns a policy for a server at the public URLs that also lets in pages of the allowed
// origins. Kinds: ErrInvalid, see Parse.
func NewPolicy(public, allowed []string) (*Policy, error) {
	p := &Policy{}
	for _, text := range slices.Concat(public, allowed) {
		one, err := Parse(text)
		if err != nil {
			return nil, err
		}
		p.listed = append(p.listed, one)
	}
	return p, nil
}

// defaultPorts are the ports that browsers leave out of an origin.
var defaultPorts = map[string]string{"http": "80", "https": "443"}

// Parse returns an origin such as "https://app.example.com" as browsers write it: in lower case, without
// the default port. Kinds: ErrInvalid, for anything that is not one exact origin.
func Parse(text string) (string, error) {
	bad := func(format string, args ...any) (string, error) {
		return "", atoll.Errorf("", "", atoll.ErrInvalid, "%q: %w", text, fmt.Errorf(format, args...))
	}
	switch {
	case strings.Contains(text, "*"):
		return bad("a pattern would let in pages of strangers, too: list each origin, like https://app.example.com")
	case text == "null":
		return bad("pages of any site can have this origin: list an origin like https://app.example.com")
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme == "" || u.Hostname() == "" || u.Opaque != "":
		return bad("write it like https://app.example.com or http://localhost:3000")
	case u.User != nil || u.Path != "" || u.RawQuery != "" || u.ForceQuery || strings.Contains(text, "#"):
		return bad("write only the scheme, the host and perhaps a port, like https://app.example.com")
	case u.Scheme == "ws" || u.Scheme == "wss":
		return bad("browsers name the page that opens a WebSocket: write http or https")
	case strings.HasSuffix(u.Host, ":") || u.Port() != "" && !validPort(u.Port()):
		return bad("the port must be from 1 to 65535")
	}
	for _, c := range u.Host {
		if c > '~' || c <= ' ' || c == '%' {
			return bad("write the host in ASCII, as browsers send it (xn--...)")
		}
	}
	return u.Scheme + "://" + strings.TrimSuffix(strings.ToLower(u.Host), ":"+defaultPorts[u.Scheme]), nil
}

func validPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}

// Lists reports whether the policy lists the origin, as a browser wrote it.
func (p *Policy) Lists(origin string) bool {
	return p != nil && slices.Contains(p.listed, origin)
}

// Admits reports whether r comes from a page that may use the server, or from a program that is not a
// browser: only browsers send Origin and Sec-Fetch-Site.
func (p *Policy) Admits(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		site := r.Header.Get("Sec-Fetch-Site")
		return site == "" || site == "same-origin" || site == "none"
	}
	return p.Lists(origin) || IsOwn(r)
}

// IsOwn reports whether the page that sent r is on the host that r names.
func IsOwn(r *http.Request) bool {
	u, err := url.Parse(r.Header.Get("Origin"))
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host)
}

// corsHeaders are the headers by which a server lets pages of other origins read its responses.
var corsHeaders = []string{
	"Access-Control-Allow-Origin", "Access-Control-Allow-Credentials", "Access-Control-Expose-Headers",
	"Access-Control-Allow-Methods", "Access-Control-Allow-Headers", "Access-Control-Max-Age",
}

// AllowReading adds the headers to a response that let the page at a listed origin read it, and tells
// caches that they depend on the origin.
func (p *Policy) AllowReading(response http.Header, r *http.Request) {
	if p == nil || len(p.listed) == 0 {
		return
	}
	response.Add("Vary", "Origin")
	if origin := r.Header.Get("Origin"); p.Lists(origin) {
		allowOrigin(response, origin)
	}
}

// AllowAll adds the headers to a response that let pages of all origins read it.
func AllowAll(response http.Header) { allowOrigin(response, "*") }

// Disallow removes the headers from a response that let pages read it.
func Disallow(response http.Header) {
	for _, name := range corsHeaders {
		response.Del(name)
	}
}

// allowOrigin lets pages read a response with all of its headers. They must not send cookies.
func allowOrigin(response http.Header, origin string) {
	response.Set("Access-Control-Allow-Origin", origin)
	response.Set("Access-Control-Expose-Headers", "*")
}

// IsPreflight reports whether a browser asks with r whether a page may send a request.
func IsPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}

// preflightSeconds is the time for which a browser may remember the answer to a preflight.
const preflightSeconds = "600"

// AnswerPreflight allows the request that a browser asks for. The response must have the headers of
// AllowReading or AllowAll.
func AnswerPreflight(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Add("Vary", "Access-Control-Request-Method, Access-Control-Request-Headers")
	h.Set("Access-Control-Allow-Methods", r.Header.Get("Access-Control-Request-Method"))
	if names := r.Header.Values("Access-Control-Request-Headers"); len(names) > 0 {
		h.Set("Access-Control-Allow-Headers", strings.Join(names, ", "))
	}
	h.Set("Access-Control-Max-Age", preflightSeconds)
	w.WriteHeader(http.StatusNoContent)
}
