package main

import (
	"runtime/debug"
	"testing"
)

func TestVersionOfBuild(t *testing.T) {
	commit := debug.BuildSetting{Key: "vcs.revision", Value: "0123abcd"}
	date := debug.BuildSetting{Key: "vcs.time", Value: "2026-01-02T03:04:05Z"}
	changed := debug.BuildSetting{Key: "vcs.modified", Value: "true"}
	tests := []struct {
		module   string
		settings []debug.BuildSetting
		want     string
	}{
		{"", nil, "atoll devel"},
		{"(devel)", nil, "atoll devel"},
		{"v1.2.3", nil, "atoll v1.2.3"},
		{"v1.2.3", []debug.BuildSetting{commit, date}, "atoll v1.2.3 (commit 0123abcd of 2026-01-02T03:04:05Z)"},
		{"(devel)", []debug.BuildSetting{commit, changed}, "atoll devel (commit 0123abcd+)"},
	}
	for _, tt := range tests {
		v := version{Version: "devel"}
		v.readBuild(&debug.BuildInfo{Main: debug.Module{Version: tt.module}, Settings: tt.settings})
		if got := v.firstLine(); got != tt.want {
			t.Errorf("module %q, %v: got %q, want %q", tt.module, tt.settings, got, tt.want)
		}
	}
}
