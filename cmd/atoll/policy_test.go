package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// The client reads what the server cannot read, and a server on another machine learns no sources.
func TestAddSecrets(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a@b")
	if err := os.WriteFile(file, []byte("in the file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	vault := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/secret/ci" {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = io.WriteString(w, `{"data": {"token": "in the store"}}`)
	}))
	defer vault.Close()
	t.Setenv("VAULT_ADDR", vault.URL)
	t.Setenv("VAULT_TOKEN", "the-token")
	const remote = "https://atoll.example"
	for _, tt := range []struct{ flag, url, source, value string }{
		{"KEY@a.example", "", "env:KEY", "from env"},
		{"KEY@a.example", "unix:/run/atoll.sock", "env:KEY", "from env"},
		{"KEY@a.example", remote, "", "from env"},
		{"TOKEN=env:KEY@a.example", "", "env:KEY", "from env"},
		{"TOKEN=file:" + file + "@a.example", "", "file:" + file, ""},
		{"TOKEN=file:" + file + "@a.example", remote, "", "in the file"},
		{"TOKEN=vault:secret/ci@prod#token@a.example", "", "vault:secret/ci@prod#token", ""},
		{"TOKEN=aws:ci@a.example", "unix:/run/atoll.sock", "aws:ci", ""},
		{"TOKEN=keyring:svc/me@b.example@a.example", "", "keyring:svc/me@b.example", ""},
		{"TOKEN=vault:secret/ci#token@a.example", remote, "", "in the store"},
	} {
		var s atoll.Spec
		f := specFlags{secrets: []string{tt.flag}}
		if err := f.addSecrets(t.Context(), &s, []string{"OTHER=x", "KEY=from env"}, tt.url); err != nil || len(s.Secrets) != 1 {
			t.Errorf("%s: %v", tt.flag, err)
			continue
		}
		if one := s.Secrets[0]; one.Source != tt.source || string(one.Value) != tt.value || strings.Join(one.Hosts, ",") != "a.example" {
			t.Errorf("%s at %q: got source %q, value %q, hosts %q", tt.flag, tt.url, one.Source, string(one.Value), one.Hosts)
		}
	}
	for flag, hint := range map[string]string{
		"KEY":                        "name the hosts",
		"KEY=env:KEY":                "name the hosts",
		"KEY=sk-live-0123@a.example": "not the value itself",
		"MISSING@a.example":          "the variable MISSING is not set here",
		"KEY=env:@a.example":         "is not set here",
		"KEY=file:/nowhere@a":        "/nowhere",
		"KEY=safe:x@a.example":       "not the value itself",
	} {
		err := (&specFlags{secrets: []string{flag}}).addSecrets(t.Context(), &atoll.Spec{}, []string{"KEY=x"}, "")
		if err == nil || !strings.Contains(err.Error(), hint) || strings.Contains(err.Error(), "sk-live-0123") {
			t.Errorf("%s: got %v, want an error with %q", flag, err, hint)
		}
	}
}
