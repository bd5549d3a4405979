package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/seed46cd37a8/atoll/server/auth"
	"github.com/seed46cd37a8/atoll/server/origin"
)

// newPolicy returns a policy that lists app.example.com.
func newPolicy(t *testing.T) *origin.Policy {
	t.Helper()
	p, err := origin.NewPolicy([]string{"https://atoll.example.com"}, []string{"https://app.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Pages of listed origins can read every response, also one without success; those of others can read none.
func TestCORS(t *testing.T) {
	r := newRig(t, Options{Tokens: map[string]auth.Account{"secret": {}}, Origins: newPolicy(t)})
	r.servePorts(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "https://other.example.com")
		w.Header().Set("Access-Control-Allow-Credentials", "true")
	}))
	const port, other = "/v1/sandboxes/" + fakeID + "/ports/80/", "https://other.example.com"
	for _, tt := range []struct {
		method, path, origin, token string
		status                      int
		allowed, credentials        string
	}{
		{"GET", "/v1/info", "https://app.example.com", "secret", 200, "https://app.example.com", ""},
		{"GET", "/v1/info", "https://atoll.example.com", "secret", 200, "https://atoll.example.com", ""},
		{"GET", "/v1/info", "https://app.example.com", "", 401, "https://app.example.com", ""},
		{"GET", "/v1/info?x=1", "https://app.example.com", "secret", 400, "https://app.example.com", ""},
		{"GET", "/none", "https://app.example.com", "secret", 404, "https://app.example.com", ""},
		{"GET", "/health", "https://app.example.com", "", 200, "https://app.example.com", ""},
		{"POST", "/mcp", "https://app.example.com", "secret", 501, "https://app.example.com", ""},
		{"GET", "/v1/info", other, "secret", 200, "", ""},
		{"GET", "/v1/info", other, "", 401, "", ""},
		{"GET", "/v1/info", "null", "secret", 200, "", ""},
		{"GET", "/v1/info", "", "secret", 200, "", ""},
		{"GET", port, "https://app.example.com", "secret", 200, "https://app.example.com", ""},
		{"GET", port, "https://app.example.com", "", 401, "https://app.example.com", ""},
		{"GET", port, other, "secret", 200, other, "true"}, // the program on the port says so
	} {
		header := []string{"Origin", tt.origin}
		if tt.token != "" {
			header = append(header, "Authorization", "Bearer "+tt.token)
		}
		resp, body := r.doRequest(t, tt.method, tt.path, "", header...)
		if got := strings.Join(resp.Header.Values("Access-Control-Allow-Origin"), "|"); resp.StatusCode != tt.status || got != tt.allowed {
			t.Errorf("%s %s from %q: %d, allowed %q, want %d %q: %s", tt.method, tt.path, tt.origin, resp.StatusCode, got, tt.status, tt.allowed, body)
		}
		if got := resp.Header.Get("Access-Control-Allow-Credentials"); got != tt.credentials {
			t.Errorf("%s from %q: credentials %q, want %q", tt.path, tt.origin, got, tt.credentials)
		}
		if !strings.Contains(strings.Join(resp.Header.Values("Vary"), ","), "Origin") {
			t.Errorf("%s from %q: Vary is %q", tt.path, tt.origin, resp.Header.Values("Vary"))
		}
	}
}

// A browser asks without a token whether a page may send a request.
func TestPreflight(t *testing.T) {
	r := newRig(t, Options{Tokens: map[string]auth.Account{"secret": {}}, Origins: newPolicy(t)})
	ask := func(path, origin string) (*http.Response, string) {
		return r.doRequest(t, "OPTIONS", path, "", "Origin", origin, "Access-Control-Request-Method", "DELETE", "Access-Control-Request-Headers", "authorization,x-request-id")
	}
	for _, path := range []string{"/v1/sandboxes", "/v1/sandboxes/" + fakeID + "/files", "/v1/sandboxes/" + fakeID + "/ports/80/x", "/mcp", "/health", "/none"} {
		resp, body := ask(path, "https://app.example.com")
		h := resp.Header
		if resp.StatusCode != 204 || body != "" || h.Get("Access-Control-Allow-Origin") != "https://app.example.com" ||
			h.Get("Access-Control-Allow-Methods") != "DELETE" || h.Get("Access-Control-Allow-Headers") != "authorization,x-request-id" {
			t.Errorf("%s: %d %v %s", path, resp.StatusCode, h, body)
		}
	}
	resp, body := ask("/v1/sandboxes", "https://other.example.com")
	if resp.StatusCode != 403 || resp.Header.Get("Access-Control-Allow-Origin") != "" || !strings.Contains(body, "origins") {
		t.Errorf("another origin: %d %v %s", resp.StatusCode, resp.Header, body)
	}
	if resp, _ := r.doRequest(t, "OPTIONS", "/v1/sandboxes", "", "Origin", "https://app.example.com"); resp.StatusCode != 401 {
		t.Errorf("OPTIONS that is no preflight: %d", resp.StatusCode)
	}
	if resp, _ := ask("/v1/sandboxes/"+fakeID+"/ports/80/x", "https://other.example.com"); resp.StatusCode != 401 {
		t.Errorf("a port, for another origin: %d", resp.StatusCode)
	}
}

// The policy is the same for all WebSockets.
func TestWebSocketOrigins(t *testing.T) {
	r := newRig(t, Options{Tokens: map[string]auth.Account{"secret": {}}, Origins: newPolicy(t)})
	for _, path := range []string{"/exec", "/terminal"} {
		for origin, admitted := range map[string]bool{
			"":                          true,
			r.server.URL:                true,
			"https://app.example.com":   true,
			"https://atoll.example.com": true,
			"https://other.example.com": false,
			"null":                      false,
		} {
			h := http.Header{"Authorization": {"Bearer secret"}}
			if origin != "" {
				h.Set("Origin", origin)
			}
			ws, resp, err := websocket.Dial(t.Context(), r.server.URL+"/v1/sandboxes/"+fakeID+path, &websocket.DialOptions{HTTPHeader: h})
			if err == nil {
				ws.CloseNow()
			}
			if (err == nil) != admitted || !admitted && resp.StatusCode != 403 {
				t.Errorf("%s from %q: %v, want admitted %v", path, origin, err, admitted)
			}
		}
	}
}
