package config

import (
	"net/http/httptest"
	"strings"
	"testing"
)

func TestWeb(t *testing.T) {
	cfg, err := load(t, "public_url: https://Atoll.example.com/\norigins: [https://app.example.com, 'http://localhost:3000']\nports: {domain: ports.example.com, link_ttl: 1h}\n", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	policy, err := cfg.OriginPolicy()
	if err != nil {
		t.Fatal(err)
	}
	for origin, want := range map[string]bool{
		"https://atoll.example.com": true, "https://app.example.com": true, "http://localhost:3000": true,
		"http://localhost:3001": false, "https://ports.example.com": false,
	} {
		r := httptest.NewRequest("GET", "http://127.0.0.1:7070/", nil)
		r.Header.Set("Origin", origin)
		if got := policy.Admits(r); got != want {
			t.Errorf("%s: admitted %v, want %v", origin, got, want)
		}
	}
}

func TestWebErrors(t *testing.T) {
	for _, tt := range []struct{ env, want string }{
		{"ATOLL_ORIGINS=*", `ATOLL_ORIGINS: "*": a pattern would let in pages of strangers`},
		{"ATOLL_ORIGINS=https://a.example,https://*.b.example", `"https://*.b.example": a pattern`},
		{"ATOLL_ORIGINS=app.example.com", "write it like https://app.example.com"},
		{"ATOLL_ORIGINS=https://app.example.com/", "write only the scheme"},
		{"ATOLL_PUBLIC_URL=https://atoll.example.com/base", `ATOLL_PUBLIC_URL: "https://atoll.example.com/base": write only the scheme`},
		{"ATOLL_PUBLIC_URL=ftp://atoll.example.com", "must begin with http:// or https://"},
		{"ATOLL_PUBLIC_URL=/", "write it like"},
		{"ATOLL_PORTS_DOMAIN=https://example.com", "write only the name of a domain"},
		{"ATOLL_PORTS_DOMAIN=*.example.com", "write only the name of a domain"},
		{"ATOLL_PORTS_DOMAIN=.example.com", "write only the name of a domain"},
		{"ATOLL_PORTS_DOMAIN=example.com:7070", "write only the name of a domain"},
		{"ATOLL_PORTS_DOMAIN=127.0.0.1", "write only the name of a domain"},
		{"ATOLL_PORTS_DOMAIN=Example.com", "in lower case"},
		{"ATOLL_PORTS_DOMAIN=" + strings.Repeat("a.", 120) + "com", "write only the name of a domain"},
		{"ATOLL_PORTS_LINK_TTL=0", "ATOLL_PORTS_LINK_TTL: 0s: must be within"},
		{"ATOLL_PORTS_LINK_TTL=-1h", "must be within"},
		{"ATOLL_PORTS_LINK_TTL=9999h", "must be within"},
	} {
		if _, err := load(t, "", []string{tt.env}, nil); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", tt.env, err, tt.want)
		}
	}
}
