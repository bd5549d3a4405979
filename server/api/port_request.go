package api

import (
	"context"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
	"github.com/seed46cd37a8/atoll/server/origin"
)

// A portRequest is a request to a port of a sandbox, which its path or its host names.
type portRequest struct {
	id, port string
	path     string   // on the port, still escaped; "" if a link has lost the slash at its end
	links    []string // links in the path or the query; only one must be valid
	cookies  []string // links in cookies
	inPath   string   // the link in the path, or ""
	byHost   bool
}

const (
	linkMark   = "~"          // between the port and the link in a path
	linkParam  = "atoll_link" // the parameter of a link, if a host names the port
	linkCookie = "atoll_port" // the cookie that replaces the parameter
)

type portRequestKey struct{}

// portRequestOf returns the portRequest in ctx, or nil.
func portRequestOf(ctx context.Context) *portRequest {
	p, _ := ctx.Value(portRequestKey{}).(*portRequest)
	return p
}

// findPort reports whether r is for a port of a sandbox. The returned request has the portRequest in its
// context and no link: links must not get into logs, or to the program on the port.
func (h *Handler) findPort(r *http.Request) (*http.Request, bool) {
	p, ok := h.splitPortHost(r)
	if ok {
		r = p.takeLinks(r)
	} else if p, ok = splitPortPath(r.URL, h.opts.Links != nil); ok {
		r = p.hideLink(r)
	} else {
		return r, false
	}
	return r.WithContext(context.WithValue(r.Context(), portRequestKey{}, &p)), true
}

// splitPortPath splits the path of a request to a port of a sandbox, which may have a link. It replaces
// http.ServeMux, which would redirect to a clean path: only the server on the port may interpret the rest
// of the path.
func splitPortPath(u *url.URL, links bool) (p portRequest, ok bool) {
	rest, ok := strings.CutPrefix(u.EscapedPath(), "/v1/sandboxes/")
	if !ok {
		return p, false
	}
	id, rest, _ := strings.Cut(rest, "/")
	word, rest, _ := strings.Cut(rest, "/")
	port, path, hasPath := strings.Cut(rest, "/")
	if hasPath {
		path = "/" + path
	}
	p = portRequest{id: id, port: port, path: path}
	if plain, err := url.PathUnescape(port); err == nil && links { // some clients escape the mark
		p.port, p.inPath, _ = strings.Cut(plain, linkMark)
	}
	if p.inPath != "" {
		p.links = []string{p.inPath}
	}
	return p, word == "ports" && (hasPath || p.inPath != "")
}

// hideLink returns r without the link in its path.
func (p portRequest) hideLink(r *http.Request) *http.Request {
	if p.inPath == "" {
		return r
	}
	escaped := "/v1/sandboxes/" + p.id + "/ports/" + p.port + p.path
	return withURL(r, func(u *url.URL) { u.Path, u.RawPath = unescapePath(escaped), escaped })
}

// withURL returns a copy of r with a changed URL.
func withURL(r *http.Request, change func(u *url.URL)) *http.Request {
	out, u := *r, *r.URL
	change(&u)
	out.URL, out.RequestURI = &u, u.RequestURI()
	return &out
}

// unescapePath returns path unescaped, or as it is if it is not valid.
func unescapePath(path string) string {
	if plain, err := url.PathUnescape(path); err == nil {
		return plain
	}
	return path
}

// portLabel matches the first label of a host that names a port: PORT-ID.
var portLabel = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([0-9]{1,5})-([0-9a-f]{32})$`) })

// splitPortHost splits the host of a request to a port of a sandbox, if Links has a domain for ports.
func (h *Handler) splitPortHost(r *http.Request) (p portRequest, ok bool) {
	if h.opts.Links == nil || h.opts.Links.opts.Domain == "" {
		return p, false
	}
	label, ok := strings.CutSuffix(hostName(r.Host), "."+h.opts.Links.opts.Domain)
	if !ok {
		return p, false
	}
	m := portLabel().FindStringSubmatch(label)
	if m == nil {
		return p, false
	}
	return portRequest{id: m[2], port: m[1], path: r.URL.EscapedPath(), byHost: true}, true
}

// takeLinks moves the links in the query and the cookies of r to p. It returns r without them.
func (p *portRequest) takeLinks(r *http.Request) *http.Request {
	out := withURL(r, func(u *url.URL) {
		u.RawQuery, p.links = cutPairs(u.RawQuery, "&", linkParam)
	})
	out.Header = r.Header.Clone()
	var rest []string
	for _, line := range r.Header.Values("Cookie") {
		line, links := cutPairs(line, ";", linkCookie) // pages of other ports can set cookies of this name, too
		p.cookies = append(p.cookies, links...)
		if line != "" {
			rest = append(rest, line)
		}
	}
	out.Header["Cookie"] = rest
	if len(rest) == 0 {
		out.Header.Del("Cookie")
	}
	return out
}

// maxLinks is the greatest number of links in a cookie header that count.
const maxLinks = 8

// cutPairs returns a list of NAME=VALUE pairs without those of one name, and the first maxLinks of their values.
func cutPairs(list, separator, name string) (rest string, values []string) {
	parts := strings.Split(list, separator)
	others := slices.DeleteFunc(slices.Clone(parts), func(part string) bool {
		v, found := strings.CutPrefix(strings.TrimSpace(part), name+"=")
		if found && v != "" && len(values) < maxLinks {
			values = append(values, v)
		}
		return found
	})
	if len(others) == len(parts) {
		return list, nil
	}
	return strings.TrimSpace(strings.Join(others, separator)), values
}

// allowReading lets pages that Options.Origins lists read the response, whatever it will be, and answers
// preflights, which have no token. It returns true if it has answered. The program on a port that has an
// origin of its own decides by itself.
func (h *Handler) allowReading(w http.ResponseWriter, r *http.Request) bool {
	p := portRequestOf(r.Context())
	listed := h.opts.Origins.Lists(r.Header.Get("Origin"))
	switch {
	case p != nil && p.byHost:
		return false
	case p != nil && p.inPath != "":
		origin.AllowAll(w.Header()) // the page has an opaque origin; the link in the path is what protects
		listed = true
	default:
		h.opts.Origins.AllowReading(w.Header(), r)
	}
	switch {
	case !origin.IsPreflight(r):
		return false
	case listed:
		origin.AnswerPreflight(w, r)
		return true
	case p == nil && !origin.IsOwn(r):
		writeError(w, wire.RequestID(r.Context()), originError(r))
		return true
	}
	return false
}

// originError is the error for a page that Options.Origins does not admit.
func originError(r *http.Request) error {
	return atoll.Errorf("", "", atoll.ErrDenied, "pages of %q may not use this server: the operator of the server has to list their origin (setting origins)", r.Header.Get("Origin"))
}
