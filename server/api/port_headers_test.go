package api

import (
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// What a program answers stays on its port: redirects, cookies, and settings of the browser.
func TestProxyResponseHeaders(t *testing.T) {
	const prefix = "/v1/sandboxes/" + fakeID + "/ports/8000"
	r := newRig(t, Options{})
	r.servePorts(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		for name, values := range q {
			for _, v := range values {
				w.Header().Add(name, strings.ReplaceAll(v, "HOST", r.Host))
			}
		}
		w.WriteHeader(http.StatusFound)
	}))
	public := strings.TrimPrefix(r.server.URL, "http://")
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	get := func(header, value string) []string {
		t.Helper()
		resp, err := client.Get(r.server.URL + prefix + "/?" + url.Values{header: {value}}.Encode())
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := resp.Header["Content-Security-Policy"]; !slices.Contains(got, pagePolicy) {
			t.Errorf("%s: the policies of the page are %q", value, got)
		}
		return resp.Header[header]
	}
	for location, want := range map[string]string{
		"/next":                              prefix + "/next",
		"/next?a=b#c":                        prefix + "/next?a=b#c",
		"/":                                  prefix + "/",
		"http://HOST/next":                   prefix + "/next",
		"http://HOST":                        prefix + "/",
		"http://HOST?a":                      prefix + "/?a",
		"https://HOST/a//b/../c?x=http:/":    prefix + "/a//b/../c?x=http:/",
		"//HOST/next":                        prefix + "/next",
		"http://127.0.0.1:8000/x":            prefix + "/x",
		"http://" + public + "/next":         prefix + "/next",
		"http://" + public + prefix + "/y":   prefix + "/y",
		"next":                               "next",
		"../x":                               "../x",
		"?a":                                 "?a",
		"#a":                                 "#a",
		"http://example.com/next":            "http://example.com/next",
		"//example.com/next":                 "//example.com/next",
		"http://localhost.example.com:8000/": "http://localhost.example.com:8000/",
		"http://localhost:80/":               "http://localhost:80/",
		"mailto:a@example.com":               "mailto:a@example.com",
		"vscode://file/x":                    "vscode://file/x",
	} {
		if got := get("Location", location); len(got) != 1 || got[0] != want {
			t.Errorf("Location %s: %q, want %q", location, got, want)
		}
	}
	for cookie, want := range map[string]string{
		"a=b; Path=/":                       "a=b; Path=" + prefix + "/",
		"a=b":                               "a=b",
		"a=b; Secure; path = /x ; HttpOnly": "a=b; Secure; HttpOnly; Path=" + prefix + "/x",
		"a=b; Domain=example.com; Path=/; Max-Age=10": "a=b; Max-Age=10; Path=" + prefix + "/",
		"a=b;PATH=" + prefix + "/x;SameSite=Lax":      "a=b;SameSite=Lax; Path=" + prefix + "/x",
		"a=b; Path=" + prefix + "1":                   "a=b; Path=" + prefix + prefix + "1",
		"a=b; Path=x":                                 "a=b",
		"a=b; Path=/x; Path=/":                        "a=b; Path=" + prefix + "/",
		"":                                            "",
	} {
		if got := get("Set-Cookie", cookie); len(got) != 1 || got[0] != want {
			t.Errorf("Set-Cookie %q: %q, want %q", cookie, got, want)
		}
	}
	for _, name := range originHeaders {
		if got := get(name, "x"); got != nil {
			t.Errorf("%s: %q comes through", name, got)
		}
	}
	if got := get("Content-Security-Policy", "default-src 'self'"); len(got) != 2 {
		t.Errorf("with a policy of its own the page has %q", got)
	}
}

// A program is asked as if it was on the machine of the browser.
func TestProxyRequestHeaders(t *testing.T) {
	const prefix = "/v1/sandboxes/" + fakeID + "/ports/5173"
	r := newRig(t, Options{})
	r.servePorts(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, strings.Join([]string{r.Host, r.Header.Get("X-Forwarded-Host"), r.Header.Get("Origin"), r.Header.Get("Referer")}, " "))
	}))
	for _, tt := range []struct{ origin, referer, want string }{
		{"", "", "localhost:5173 public.example.com  "},
		{"https://public.example.com", "https://public.example.com" + prefix + "/a?b", "localhost:5173 public.example.com http://localhost:5173 http://localhost:5173/a?b"},
		{"https://other.example.com", "https://other.example.com/a", "localhost:5173 public.example.com https://other.example.com https://other.example.com/a"},
		{"null", "", "localhost:5173 public.example.com null "},
	} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", r.server.URL+prefix+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "public.example.com"
		for name, value := range map[string]string{"Origin": tt.origin, "Referer": tt.referer} {
			if value != "" {
				req.Header.Set(name, value)
			}
		}
		resp, err := r.server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(got) != tt.want {
			t.Errorf("Origin %q: %q, %v, want %q", tt.origin, got, err, tt.want)
		}
	}
}
