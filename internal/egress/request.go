package egress

import (
	"net/http"
	"path"
	"slices"
	"strings"
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
	odd     bool // its path leads somewhere else, if a server follows the dots in it
}

// NewRequest returns what rules match of r, which is for host at port.
func NewRequest(r *http.Request, host string, port int) *Request {
	q := &Request{Host: host, Port: port, Header: r.Header, methods: []string{r.Method}}
	for _, name := range []string{"X-Http-Method-Override", "X-Http-Method", "X-Method-Override"} {
		for _, method := range r.Header[name] {
			q.methods = append(q.methods, strings.ToUpper(strings.TrimSpace(method)))
		}
	}
	full := "/" + strings.TrimLeft(r.URL.Path, "/") // %2f has become a slash
	q.odd = slices.ContainsFunc(strings.FieldsFunc(full, func(c rune) bool { return c == '/' || c == '\\' }), isDots)
	clean := path.Clean(full)
	q.paths = []string{clean}
	if strings.ContainsAny(full, ";\\") {
		q.paths = append(q.paths, path.Clean(strings.ReplaceAll(withoutParameters(full), `\`, "/")))
	}
	q.Target = r.Method + " " + printPath(clean)
	return q
}

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

// printPath returns a path for people, on one line.
func printPath(p string) string {
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
