package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

func writePolicy(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestLoadPolicy(t *testing.T) {
	got, err := LoadPolicy(writePolicy(t, `
allow: [npm, "GET api.github.com/repos/*"]
deny: ["*.example.com"]
rules:
  - match: api.github.com
    set_headers: {X-Team: a}
    requests_per_minute: 60
    bytes_per_minute: 10m
secrets:
  - name: TOKEN
    source: env:TOKEN
    hosts: [api.github.com]
    body: true
`))
	want := Policy{
		Allow: []string{"npm", "GET api.github.com/repos/*"}, Deny: []string{"*.example.com"},
		Rules:   []atoll.NetworkRule{{Match: "api.github.com", SetHeaders: map[string]string{"X-Team": "a"}, RequestsPerMinute: 60, BytesPerMinute: 10 << 20}},
		Secrets: []atoll.Secret{{Name: "TOKEN", Source: "env:TOKEN", Hosts: []string{"api.github.com"}, Body: true}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if got, err := LoadPolicy(writePolicy(t, "")); err != nil || !reflect.DeepEqual(got, Policy{}) {
		t.Errorf("an empty file: got %+v, %v", got, err)
	}
}

func TestLoadPolicyErrors(t *testing.T) {
	for text, hint := range map[string]string{
		"alow: [npm]":                          `unknown field "alow"`,
		"secrets: [{name: A, value: x}]":       `unknown field "value"`,
		"rules: [{bytes_per_minute: 3x}]":      "bytes_per_minute",
		"allow: npm":                           "allow",
		"rules: [{match: a, requests: 1}]":     `unknown field "requests"`,
		"allow: [":                             "yaml",
		"1: 2\n":                               "the names of fields must be text",
		"- npm":                                "cannot unmarshal array",
		"rules: [{match: a, redact: \"yes\"}]": "redact",
	} {
		if _, err := LoadPolicy(writePolicy(t, text)); err == nil || !strings.Contains(err.Error(), hint) {
			t.Errorf("%q: got %v, want an error with %q", text, err, hint)
		}
	}
	if _, err := LoadPolicy(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("a file that is not there is a policy")
	}
}
