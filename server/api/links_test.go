package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// A linkRig is a server with links to ports, and the things that end them.
type linkRig struct {
	*rig
	links   *PortLinks
	now     atomic.Int64 // in seconds
	revoked atomic.Bool  // the key k1
	log     lockedBuffer
}

// A lockedBuffer is a buffer for a log that a test reads while the server runs.
type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

func newLinkRig(t *testing.T, opts LinkOptions) *linkRig {
	r := &linkRig{}
	r.now.Store(1_700_000_000)
	opts.Secret = func(context.Context) (string, error) { return "of the servers", nil }
	opts.now = func() time.Time { return time.Unix(r.now.Load(), 0) }
	opts.KeyAccount = func(_ context.Context, id string) (auth.Account, error) {
		if id != "k1" || r.revoked.Load() {
			return auth.Account{}, atoll.Errorf("", "", atoll.ErrDenied, "the token is not known here")
		}
		return auth.Account{Name: "ali", Key: "k1"}, nil
	}
	r.links = NewPortLinks(opts)
	r.rig = newRig(t, Options{
		Tokens: map[string]auth.Account{"secret": {}}, Links: r.links, Origins: newPolicy(t), verifyEvery: time.Millisecond,
		Log: slog.New(slog.NewTextHandler(&r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	r.servePorts(t, http.HandlerFunc(servePort))
	return r
}

// servePort echoes WebSockets, redirects to its own address, sets a cookie, or describes the request.
func servePort(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/ws":
		if ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true}); err == nil {
			kind, data, err := ws.Read(r.Context())
			for ; err == nil; kind, data, err = ws.Read(r.Context()) {
				_ = ws.Write(r.Context(), kind, data)
			}
		}
		return
	case "/redirect":
		w.Header().Set("Location", "http://"+r.Host+"/there")
		w.WriteHeader(http.StatusFound)
		return
	case "/redirect-out":
		w.Header().Set("Location", "http://"+r.Host+"//evil.example/x")
		w.WriteHeader(http.StatusFound)
		return
	case "/early":
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
	case "/cookie":
		http.SetCookie(w, &http.Cookie{Name: "own", Value: "1", Path: "/", Domain: "ports.example.com"})
	}
	fmt.Fprintf(w, "%s host=%s cookie=%q auth=%q all=%v", r.RequestURI, r.Host, r.Header.Get("Cookie"), r.Header.Get("Authorization"), r.Header)
}

// makeLink returns a link to a port for the account.
func (r *linkRig) makeLink(t *testing.T, a auth.Account, port int) string {
	t.Helper()
	link, err := r.links.URL(auth.WithAccount(t.Context(), a), r.server.URL, r.box, port)
	if err != nil {
		t.Fatal(err)
	}
	return link
}

// openLink requests an absolute URL, or one whose host leads to the server of the rig.
func (r *linkRig) openLink(t *testing.T, method, link string, header ...string) (*http.Response, string) {
	t.Helper()
	u, err := url.Parse(link)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, r.server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	to := req.URL.Host
	req.Host, req.URL = u.Host, u
	req.URL.Scheme, req.URL.Host = "http", to
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	return resp, string(body)
}

// A link opens everything on its port, without a token, and nothing else.
func TestPortLink(t *testing.T) {
	r := newLinkRig(t, LinkOptions{})
	link := r.makeLink(t, auth.Account{}, 8000)
	signed := strings.TrimSuffix(link[strings.Index(link, linkMark)+1:], "/")
	if want := r.server.URL + "/v1/sandboxes/" + fakeID + "/ports/8000~" + signed + "/"; link != want {
		t.Fatalf("the link is %s, want %s", link, want)
	}
	resp, body := r.openLink(t, "GET", link+"a/b%2Fc?x=1", "Authorization", "Basic own", "Origin", "null")
	if resp.StatusCode != 200 || !strings.HasPrefix(body, "/a/b%2Fc?x=1 host=localhost:8000 ") || !strings.Contains(body, `auth="Basic own"`) {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	if _, body := r.openLink(t, "GET", link, "Authorization", "Bearer secret"); !strings.Contains(body, `auth=""`) {
		t.Errorf("the program gets the token of the server: %s", body)
	}
	if _, body := r.openLink(t, "GET", link, "Authorization", "Bearer of the program"); !strings.Contains(body, `auth="Bearer of the program"`) {
		t.Errorf("the program does not get its own token: %s", body)
	}
	// Pages below it have an origin of their own, and can load what is on the port.
	if h := resp.Header; h.Get("Access-Control-Allow-Origin") != "*" || !strings.Contains(h.Get("Content-Security-Policy"), "sandbox") {
		t.Errorf("the headers of a page are %v", h)
	}
	if resp, _ := r.openLink(t, "OPTIONS", link+"x", "Origin", "null", "Access-Control-Request-Method", "PUT"); resp.StatusCode != 204 || resp.Header.Get("Access-Control-Allow-Methods") != "PUT" {
		t.Errorf("a preflight: %d %v", resp.StatusCode, resp.Header)
	}
	if resp, _ := r.openLink(t, "GET", link+"redirect"); resp.Header.Get("Location") != strings.TrimPrefix(link, r.server.URL)+"there" {
		t.Errorf("redirected to %s", resp.Header.Get("Location"))
	}
	if resp, body := r.openLink(t, "GET", strings.Replace(link, "~", "%7E", 1)); resp.StatusCode != 200 {
		t.Errorf("with an escaped mark: %d %s", resp.StatusCode, body)
	}
	if resp, _ := r.openLink(t, "GET", strings.TrimSuffix(link, "/")+"?x=1"); resp.StatusCode != 303 || resp.Header.Get("Location") != strings.TrimPrefix(link, r.server.URL)+"?x=1" {
		t.Errorf("without the slash at the end: %d %v", resp.StatusCode, resp.Header)
	}
	base := r.server.URL + "/v1/sandboxes/"
	other := strings.Repeat("a", 32)
	for _, path := range []string{
		base + fakeID + "/ports/8001~" + signed + "/", base + other + "/ports/8000~" + signed + "/", base + fakeID + "/ports/8000~/", base + fakeID + "/ports/8000/",
		base + fakeID + "/ports/8000~" + signed[:len(signed)-4] + "/", base + fakeID + "/ports/8000~_" + signed + "/", base + fakeID + "/ports/8000~x/",
	} {
		if resp, body := r.openLink(t, "GET", path); resp.StatusCode != 401 {
			t.Errorf("%s: %d %s", path, resp.StatusCode, body)
		}
	}
	if resp, _ := r.openLink(t, "GET", base+"?x", "Authorization", "Bearer "+signed); resp.StatusCode != 401 {
		t.Errorf("the link as a token: %d", resp.StatusCode)
	}
	if strings.Contains(r.log.String(), signed) {
		t.Errorf("the log has the link:\n%s", &r.log)
	}
	for _, path := range []string{base + fakeID + "~" + signed, base + fakeID + "/files~" + signed + "?path=/", base + fakeID + "/dial~" + signed + "?port=8000"} {
		if resp, body := r.openLink(t, "GET", path); resp.StatusCode != 401 {
			t.Errorf("%s: %d %s", path, resp.StatusCode, body)
		}
	}
}

// A link ends at its time, with its key, its account and its sandbox.
func TestPortLinkEnds(t *testing.T) {
	r := newLinkRig(t, LinkOptions{TTL: time.Hour})
	byKey, byToken := r.makeLink(t, auth.Account{Name: "ali", Key: "k1"}, 80), r.makeLink(t, auth.Account{}, 80)
	want := func(link string, status int, text string) {
		t.Helper()
		if resp, body := r.openLink(t, "GET", link); resp.StatusCode != status || !strings.Contains(body, text) {
			t.Errorf("%d %s, want %d %s", resp.StatusCode, body, status, text)
		}
	}
	want(byKey, 200, "host=")
	want(byToken, 200, "host=")
	want(r.makeLink(t, auth.Account{Name: "ali", Key: "k2"}, 80), 401, "key was removed")
	want(r.makeLink(t, auth.Account{Name: "gone"}, 80), 401, "account was removed")

	ws, _, err := websocket.Dial(t.Context(), byKey+"ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	if err := ws.Write(t.Context(), websocket.MessageText, []byte("echo")); err != nil {
		t.Fatal(err)
	}
	if _, data, err := ws.Read(t.Context()); err != nil || string(data) != "echo" {
		t.Fatalf("Read = %q, %v", data, err)
	}
	r.revoked.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(10*time.Second))
	defer cancel()
	if _, _, err := ws.Read(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("the WebSocket outlives its key: %v", err)
	}
	want(byKey, 401, "key was removed")

	r.box.setCreated(time.Unix(1_699_999_999, 0))
	want(byToken, 404, "removed")
	r.box.setCreated(time.Time{})
	want(byToken, 200, "host=")
	r.now.Add(3600)
	want(byToken, 401, "expired")
}

// A host of a port's own has the link in a cookie after the first request, and no path before that of the program.
func TestPortHost(t *testing.T) {
	r := newLinkRig(t, LinkOptions{Domain: "ports.example.com", PublicURL: "https://atoll.example.com:8443"})
	link := r.makeLink(t, auth.Account{}, 5173)
	host := "https://5173-" + fakeID + ".ports.example.com:8443"
	signed, ok := strings.CutPrefix(link, host+"/?"+linkParam+"=")
	if !ok {
		t.Fatalf("the link is %s", link)
	}
	// A browser shows the page at an address without the link.
	resp, body := r.openLink(t, "GET", host+"/a//b%2Fc?x=1&"+linkParam+"="+signed+"&y", "Accept", "text/html,*/*")
	cookie := resp.Header.Get("Set-Cookie")
	if resp.StatusCode != 303 || resp.Header.Get("Location") != "/a//b%2Fc?x=1&y" || body != "" {
		t.Errorf("%d %v %s", resp.StatusCode, resp.Header, body)
	}
	for _, want := range []string{linkCookie + "=" + signed + "; ", "Path=/;", "HttpOnly", "Secure", "SameSite=Lax", "Expires="} {
		if !strings.Contains(cookie, want) {
			t.Errorf("the cookie %s lacks %s", cookie, want)
		}
	}
	if resp, _ := r.openLink(t, "GET", host+"//evil.example/?"+linkParam+"="+signed, "Accept", "text/html"); strings.HasPrefix(resp.Header.Get("Location"), "//") {
		t.Errorf("redirected to %s", resp.Header.Get("Location"))
	}
	// Other programs get the page at once.
	if resp, body := r.openLink(t, "GET", link); resp.StatusCode != 200 || !strings.HasPrefix(body, `/ host=localhost:5173 cookie="" `) || resp.Header.Get("Set-Cookie") == "" || strings.Contains(body, signed) {
		t.Errorf("%d %v %s", resp.StatusCode, resp.Header, body)
	}
	with := []string{"Cookie", "own=1; " + linkCookie + "=junk; " + linkCookie + "=" + signed + "; b=2", "Authorization", "Basic own"}
	resp, body = r.openLink(t, "GET", host+"/main.js?a;b=%zz", with...)
	if resp.StatusCode != 200 || !strings.HasPrefix(body, `/main.js?a;b=%zz host=localhost:5173 cookie="own=1; b=2" auth="Basic own"`) || strings.Contains(body, "X-Forwarded-Prefix") || strings.Contains(body, signed) {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	if h := resp.Header; h.Get("Content-Security-Policy") != "" || h.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("the headers of a page are %v", h)
	}
	if resp, _ := r.openLink(t, "GET", host+"/redirect", with...); resp.Header.Get("Location") != "/there" {
		t.Errorf("redirected to %s", resp.Header.Get("Location"))
	}
	if resp, _ := r.openLink(t, "GET", host+"/redirect-out", with...); resp.Header.Get("Location") != "/evil.example/x" {
		t.Errorf("redirected to %s", resp.Header.Get("Location"))
	}
	if resp, body := r.openLink(t, "GET", link+"&"+linkParam+"="+signed); resp.StatusCode != 200 || strings.Contains(body, signed) {
		t.Errorf("two links: %d %s", resp.StatusCode, body)
	}
	if resp, _ := r.openLink(t, "GET", host+"/early", with...); resp.StatusCode != 200 || resp.Header.Get("X-Request-Id") == "" {
		t.Errorf("after a first response: %d %v", resp.StatusCode, resp.Header)
	}
	if resp, _ := r.openLink(t, "GET", host+"/cookie", with...); resp.Header.Get("Set-Cookie") != "own=1; Path=/" {
		t.Errorf("the cookie is %s", resp.Header.Get("Set-Cookie"))
	}
	// Pages of other ports must not use the cookie, nor can it open another port.
	for _, tt := range []struct {
		link   string
		header []string
		status int
	}{
		{host + "/", nil, 401},
		{host + "/health", nil, 401},
		{host + "/v1/info", with, 200}, // of the program
		{host + "/", append(with, "Origin", host), 200},
		{strings.TrimSuffix(host, ":8443") + "/", append(with, "Origin", host), 200}, // nginx leaves out the port of $host
		{host + "/", append(with, "Origin", "https://8000-"+fakeID+".ports.example.com:8443"), 401},
		{host + "/", append(with, "Origin", "https://app.example.com"), 401},
		{host + "/", append(with, "Origin", "null"), 401},
		{host + "/", append(with, "Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors"), 401},
		{host + "/", append(with, "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"), 200},
		{host + "/", append(with, "Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"), 401},
		{host + "/", []string{"Authorization", "Bearer secret"}, 200},
		{strings.Replace(host, "5173", "5174", 1) + "/", with, 401},
		{strings.Replace(host, "5173", "99999", 1) + "/", with, 401},
		{strings.Replace(host, fakeID, strings.Repeat("a", 32), 1) + "/", with, 401},
		{"https://x.5173-" + fakeID + ".ports.example.com/v1/info", with, 401}, // the API
		{"https://ports.example.com/v1/info", with, 401},
		{"https://atoll.example.com:8443/v1/info", with, 401},
		{"https://atoll.example.com:8443/health", nil, 200},
		{"https://5173-" + strings.ToUpper(fakeID) + ".Ports.Example.Com/", with, 200},
	} {
		if resp, body := r.openLink(t, "GET", tt.link, tt.header...); resp.StatusCode != tt.status {
			t.Errorf("%s %v: %d %s, want %d", tt.link, tt.header, resp.StatusCode, body, tt.status)
		}
	}
	if strings.Contains(r.log.String(), signed) {
		t.Errorf("the log has the link:\n%s", &r.log)
	}
}

// A link is not made, and not accepted, while the store of its secret does not answer.
func TestPortLinkWithoutStore(t *testing.T) {
	var fails atomic.Bool
	fails.Store(true)
	links := NewPortLinks(LinkOptions{Secret: func(context.Context) (string, error) {
		if fails.Load() {
			return "", errors.New("no connection")
		}
		return "s", nil
	}})
	if link, err := links.URL(t.Context(), "http://h", newFake().box, 80); atoll.KindOf(err) != atoll.ErrUnavailable {
		t.Errorf("URL = %q, %v", link, err)
	}
	fails.Store(false)
	if link, err := links.URL(t.Context(), "http://h", newFake().box, 80); err != nil {
		t.Errorf("URL = %q, %v", link, err)
	}
}
