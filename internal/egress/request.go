package egress

import (
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// A Request has the parts of a request of HTTP that rules match. A server may read a method and a path in more than one way; an entry of Deny
// counts if one reading matches, and one of Allow if all do.
type Request struct {
	Host    string // in lower case, without port
	Port    int
	Header  http.Header
	Target  string // method and path, for people
	methods []string
	paths   []string
	odd     bool // its path leads somewhere else, if a server follows dots in it, decodes it once more, or takes another one
}

// NewRequest returns what rules match of r, which is for host at port.
func NewRequest(r *http.Request, host string, port int) *Request {
	q := &Request{Host: host, Port: port, Header: r.Header, methods: []string{r.Method}}
	q.addMethod(r.Method)
	if strings.Contains(r.URL.RawQuery, "_method") {
		for _, method := range r.URL.Query()["_method"] {
			q.addMethod(method)
		}
	}
	for name, values := range r.Header {
		if strings.Contains(name, "_") { // many servers take it for a hyphen
			name = http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))
		}
		switch name {
		case "X-Http-Method-Override", "X-Http-Method", "X-Method-Override":
			for _, method := range values {
				q.addMethod(method)
			}
		case "X-Original-Url", "X-Rewrite-Url", "X-Original-Uri":
			q.odd = true
		}
	}
	full := "/" + strings.TrimLeft(r.URL.Path, "/") // %2f has become a slash
	q.odd = q.odd || isEncoded(full) ||
		slices.ContainsFunc(strings.FieldsFunc(full, func(c rune) bool { return c == '/' || c == '\\' }), isDots)
	clean := path.Clean(full)
	q.paths = []string{clean}
	if strings.ContainsAny(full, ";\\") {
		q.paths = append(q.paths, path.Clean(strings.ReplaceAll(withoutParameters(full), `\`, "/")))
	}
	q.Target = r.Method + " " + PrintPath(clean)
	return q
}

// Entry returns the entry of Allow that opens the request; "" if there is none, because servers could read its path in several ways.
func (q *Request) Entry() string {
	entry := q.methods[0] + " " + q.Host
	if q.Port != 80 && q.Port != 443 {
		entry += fmt.Sprintf(":%d", q.Port)
	}
	if p := q.paths[0]; p != "/" {
		entry += p
	}
	if e, err := parseEntry(entry); err != nil || !q.surelyMatches(&e) {
		return ""
	}
	return entry
}

// addMethod adds another reading of the method.
func (q *Request) addMethod(method string) {
	for one := range strings.SplitSeq(method, ",") {
		if one = strings.ToUpper(strings.TrimSpace(one)); !slices.Contains(q.methods, one) {
			q.methods = append(q.methods, one)
		}
	}
}

// isEncoded reports whether a server that decodes a path once more, or reads other bytes than UTF-8 in it, may get another path.
func isEncoded(p string) bool {
	lower := strings.ToLower(p)
	return strings.Contains(lower, "%2e") || strings.Contains(lower, "%2f") || strings.Contains(lower, "%5c") || strings.Contains(p, "\x00") || !utf8.ValidString(p)
}

// IsOdd reports whether the path may lead somewhere else for some servers.
func (q *Request) IsOdd() bool { return q.odd }

// isDots reports whether a server may take a segment of a path for "." or "..".
func isDots(segment string) bool {
	segment, _, _ = strings.Cut(segment, ";")
	return segment == "." || segment == ".."
}

// withoutParameters removes the parameters of the segments of a path, as in "/a;v=1/b".
func withoutParameters(p string) string {
	segments := strings.Split(p, "/")
	for i, s := range segments {
		segments[i], _, _ = strings.Cut(s, ";")
	}
	return strings.Join(segments, "/")
}

// maxPrinted is the length in bytes of the longest path in a message.
const maxPrinted = 200

// PrintPath returns a path for people, on one line.
func PrintPath(p string) string {
	p = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, p)
	if len(p) > maxPrinted {
		return strings.ToValidUTF8(p[:maxPrinted], "") + "..."
	}
	return strings.ToValidUTF8(p, "?")
}

// surelyMatches reports whether e matches each reading of the request.
func (q *Request) surelyMatches(e *Entry) bool {
	if !e.MatchesHost(q.Host, q.Port) || q.odd && e.path != nil {
		return false
	}
	for _, method := range q.methods {
		if !e.matchesMethod(method) {
			return false
		}
	}
	for _, p := range q.paths {
		if !e.matchesPath(p) {
			return false
		}
	}
	return true
}

// mayMatch reports whether e matches one reading of the request.
func (q *Request) mayMatch(e *Entry) bool {
	return e.MatchesHost(q.Host, q.Port) &&
		slices.ContainsFunc(q.methods, e.matchesMethod) && (q.odd && e.path != nil || slices.ContainsFunc(q.paths, e.matchesPath))
}
