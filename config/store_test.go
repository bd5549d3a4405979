package config

import (
	"strings"
	"testing"
)

func TestStoreSettings(t *testing.T) {
	for _, tt := range []struct{ text, says string }{
		{"", ""},
		{"url: postgres://atoll@db.example.com/atoll", ""},
		{"url: postgres://atoll@db.example.com/atoll, password: env:A", ""},
		{"url: \"postgres://atoll@/atoll?host=/run/postgresql&search_path=staging\"", ""},
		{"url: postgres://atoll:hunter2@db.example.com/atoll", "config.yaml:1: store.url: contains a password: use store.password instead"},
		{"url: \"postgres://atoll@db.example.com/atoll?password=hunter2\"", "store.url: contains a password"},
		{"url: mysql://atoll@db.example.com/atoll", "config.yaml:1: store.url: not a URL of the form postgres://"},
		{"url: postgres://atoll@db.example.com:x/atoll", "config.yaml:1: store.url: "},
		{"password: env:A", "config.yaml:1: store.password: requires store.url"},
		{"url: postgres://atoll@db.example.com/atoll, password: hunter2", "store.password: write a reference"},
	} {
		_, err := load(t, "store: {"+tt.text+"}", nil, nil)
		if tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("{%s}: %v, want an error with %q", tt.text, err, tt.says)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("{%s}: the error has the password: %v", tt.text, err)
		}
	}
}

func TestStorePasswordIsNotShown(t *testing.T) {
	t.Setenv("STORE_PASSWORD", "hunter2")
	cfg, err := load(t, "store: {url: postgres://atoll@db.example.com/atoll, password: env:STORE_PASSWORD}", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range cfg.Values() {
		if v.Key == "store.password" && v.Value != "env:STORE_PASSWORD" {
			t.Errorf("the password is shown as %q", v.Value)
		}
	}
}
