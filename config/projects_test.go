package config

import (
	"strings"
	"testing"
)

func TestProjectSettings(t *testing.T) {
	for setting, want := range map[string]string{
		"cpus: -2":                      "must be positive, or -1 for no limit",
		"images: [https://example.com]": "write it like public, registry.example.com",
		"images: ['example.com/a:1']":   "without a tag",
		"images: [example.com/]":        "write it like",
	} {
		if _, err := load(t, "projects:\n  "+setting+"\n", nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", setting, err, want)
		}
	}
}
