package api

import (
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/seed46cd37a8/atoll/internal/duplex"
	"github.com/seed46cd37a8/atoll/server/origin"
)

// A program on a port sees localhost as its host, as if a browser on its own machine asked: many servers for
// development refuse other names. The name of this server is in X-Forwarded-Host.

// localHost returns the host that the program on the port sees.
func (to portTarget) localHost() string { return "localhost:" + strconv.Itoa(to.port) }

// setHost sets the host of a request to the port, and replaces it where a browser has named this server.
func (to portTarget) setHost(pr *httputil.ProxyRequest) {
	pr.Out.Host = to.localHost()
	for _, name := range []string{"Origin", "Referer"} {
		if u, err := url.Parse(pr.In.Header.Get(name)); err == nil && u.Host != "" && (u.Host == pr.In.Host || to.byHost && isSameHost(u.Host, pr.In.Host)) {
			u.Scheme, u.Host = "http", to.localHost()
			u.Path = strings.TrimPrefix(u.Path, to.pathPrefix())
			u.RawPath = ""
			pr.Out.Header.Set(name, u.String())
		}
	}
}

// originHeaders are the headers of responses that change how a browser treats all pages of this server: its API and
// other sandboxes.
var originHeaders = []string{
	"Accept-Ch", "Alt-Svc", "Clear-Site-Data", "Critical-Ch", "Expect-Ct", "Nel", "Origin-Agent-Cluster", "Public-Key-Pins",
	"Report-To", "Reporting-Endpoints", "Service-Worker-Allowed", "Set-Login", "Strict-Transport-Security",
}

// pagePolicy gives each page of a sandbox an origin of its own in a browser: its scripts can read neither the API nor
// pages of other sandboxes.
const pagePolicy = "sandbox allow-downloads allow-forms allow-modals allow-popups allow-popups-to-escape-sandbox allow-presentation allow-scripts"

// siteHeaders are the headers of responses that change how a browser treats other hosts of the same site.
var siteHeaders = []string{"Alt-Svc", "Clear-Site-Data", "Strict-Transport-Security"}

// rewriteResponse keeps redirects and cookies of a program on its port, and the program away from the rest of this
// server.
func rewriteResponse(resp *http.Response) error {
	ctx := resp.Request.Context()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		duplex.SetHeader(ctx, resp.Header)
	}
	to := ctx.Value(targetKey{}).(portTarget)
	remove := originHeaders
	if to.byHost {
		remove = siteHeaders // pages have an origin of their own
	} else {
		resp.Header.Add("Content-Security-Policy", pagePolicy)
	}
	for _, name := range remove {
		resp.Header.Del(name)
	}
	if to.allowed {
		origin.Disallow(resp.Header)
	}
	for _, name := range []string{"Location", "Content-Location"} {
		if location := resp.Header.Get(name); location != "" {
			resp.Header.Set(name, to.rewriteLocation(location, resp.Request.Header.Get("X-Forwarded-Host")))
		}
	}
	cookies := resp.Header["Set-Cookie"]
	for i, cookie := range cookies {
		cookies[i] = to.rewriteCookie(cookie)
	}
	return nil
}

// rewriteLocation returns a URL in a response so that it leads to the same port if it is on the host of the program,
// which is localHost or public.
func (to portTarget) rewriteLocation(location, public string) string {
	u, err := url.Parse(location)
	if err != nil || u.Opaque != "" {
		return location
	}
	if u.Host != "" && !slices.Contains([]string{to.localHost(), "127.0.0.1:" + strconv.Itoa(to.port), public}, u.Host) || u.Host == "" && u.Scheme != "" {
		return location
	}
	if u.Host == "" && !strings.HasPrefix(location, "/") {
		return location // relative to the page
	}
	if u.Host == "" {
		return to.pathPrefix() + location // unchanged otherwise, even if it is unusual
	}
	rest := location[strings.Index(location, "//")+2:]
	rest = rest[strings.IndexAny(rest+"/", "/?#"):]
	rest = "/" + strings.TrimLeft(rest, `/\`) // two slashes would begin with a host
	if after, done := strings.CutPrefix(rest, to.pathPrefix()); done && (after == "" || after[0] == '/') {
		return rest // the program knows X-Forwarded-Prefix
	}
	return to.pathPrefix() + rest
}

// rewriteCookie returns the value of a Set-Cookie header so that a browser sends the cookie to the same port only.
func (to portTarget) rewriteCookie(cookie string) string {
	parts := strings.Split(cookie, ";")
	out := parts[:1:1]
	path := "" // that of the request
	for _, p := range parts[1:] {
		name, value, _ := strings.Cut(p, "=")
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "domain":
		case "path":
			if value = strings.TrimSpace(value); strings.HasPrefix(value, "/") {
				path = value
			}
		default:
			out = append(out, p)
		}
	}
	if path == "" {
		return strings.Join(out, ";")
	}
	if path != to.pathPrefix() && !strings.HasPrefix(path, to.pathPrefix()+"/") {
		path = to.pathPrefix() + path
	}
	return strings.Join(append(out, " Path="+path), ";")
}
