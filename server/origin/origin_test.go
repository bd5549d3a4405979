package origin

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"https://app.example.com":           "https://app.example.com",
		"HTTPS://App.Example.COM:443":       "https://app.example.com",
		"http://127.0.0.1:7080":             "http://127.0.0.1:7080",
		"http://localhost:80":               "http://localhost",
		"http://localhost:443":              "http://localhost:443",
		"http://[::1]:3000":                 "http://[::1]:3000",
		"https://xn--bcher-kva.example":     "https://xn--bcher-kva.example",
		"chrome-extension://abcdefghijklmn": "chrome-extension://abcdefghijklmn",
	} {
		if got, err := Parse(text); got != want || err != nil {
			t.Errorf("Parse(%q) = %q, %v, want %q", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"*":                             "strangers",
		"https://*.example.com":         "strangers",
		"null":                          "any site",
		"":                              "write it like",
		"app.example.com":               "write it like",
		"localhost:3000":                "write it like",
		"//app.example.com":             "write it like",
		"https://":                      "write it like",
		"file:///etc/passwd":            "write it like",
		"https://app.example.com/":      "only the scheme",
		"https://app.example.com/path":  "only the scheme",
		"https://app.example.com?a":     "only the scheme",
		"https://app.example.com?":      "only the scheme",
		"https://app.example.com#":      "only the scheme",
		"https://u:p@app.example.com":   "only the scheme",
		"wss://app.example.com":         "http or https",
		"https://app.example.com:":      "port",
		"https://app.example.com:0":     "port",
		"https://app.example.com:x":     "write it like",
		"https://app.example.com:99999": "port",
		"https://bücher.example":        "xn--",
		"https://a b":                   "write it like",
		"https://a.example,https://b":   "only the scheme",
	} {
		if got, err := Parse(text); atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse(%q) = %q, %v, want an error with %q", text, got, err, want)
		}
	}
}

func TestPolicy(t *testing.T) {
	p, err := NewPolicy([]string{"https://atoll.example.com"}, []string{"https://app.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		origin, site string
		admitted     bool // by p
		withNil      bool
	}{
		{"", "", true, true},
		{"", "same-origin", true, true},
		{"", "none", true, true},
		{"", "cross-site", false, false},
		{"", "same-site", false, false},
		{"http://127.0.0.1:7070", "", true, true},
		{"https://127.0.0.1:7070", "", true, true}, // a proxy ends TLS
		{"http://127.0.0.1:7071", "", false, false},
		{"http://127.0.0.1", "", false, false},
		{"https://app.example.com", "cross-site", true, false},
		{"https://atoll.example.com", "same-origin", true, false},
		{"https://app.example.com.evil.example", "", false, false},
		{"http://app.example.com", "", false, false},
		{"https://app.example.com:8443", "", false, false},
		{"null", "", false, false},
		{"*", "", false, false},
	} {
		r := httptest.NewRequest("GET", "http://127.0.0.1:7070/", nil)
		for name, value := range map[string]string{"Origin": tt.origin, "Sec-Fetch-Site": tt.site} {
			if value != "" {
				r.Header.Set(name, value)
			}
		}
		r.Header.Set("X-Forwarded-Host", "app.example.com.evil.example")
		if got := p.Admits(r); got != tt.admitted {
			t.Errorf("%q %q: admitted %v", tt.origin, tt.site, got)
		}
		if got := (*Policy)(nil).Admits(r); got != tt.withNil {
			t.Errorf("%q %q: admitted without a policy %v", tt.origin, tt.site, got)
		}
	}
	var none http.Header = map[string][]string{}
	(*Policy)(nil).AllowReading(none, httptest.NewRequest("GET", "/", nil))
	if len(none) > 0 {
		t.Errorf("without a policy: %v", none)
	}
	if _, err := NewPolicy(nil, []string{"*"}); atoll.KindOf(err) != atoll.ErrInvalid {
		t.Errorf("NewPolicy with a pattern: %v", err)
	}
}
