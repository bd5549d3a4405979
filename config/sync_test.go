package config

import (
	"strings"
	"testing"
	"time"
)

// An invalid threshold is an error, except in the variable that other programs share, which ignore it.
func TestStaleThreshold(t *testing.T) {
	for _, tt := range []struct {
		file, env, flag string // values; "" for none
		want            time.Duration
		from            string // suffix of the source
		warned          bool
	}{
		{"", "", "", time.Hour, "default", false},
		{"", "3600", "", time.Hour, "SANDBOX_SYNC_STALE_THRESHOLD", false},
		{"", "90", "", 90 * time.Second, "SANDBOX_SYNC_STALE_THRESHOLD", false},
		{"", "5m", "", 5 * time.Minute, "SANDBOX_SYNC_STALE_THRESHOLD", false},
		{"", "0", "", 0, "SANDBOX_SYNC_STALE_THRESHOLD", false},
		{"", "abc", "", time.Hour, "default", true},
		{"", "-5", "", time.Hour, "default", true},
		{"", "never", "", time.Hour, "default", true},
		{"", "1h,2h", "", time.Hour, "default", true},
		{"2h", "abc", "", 2 * time.Hour, "config.yaml:2", true},
		{"2h", "-5", "", 2 * time.Hour, "config.yaml:2", true},
		{"2h", "90", "3h", 3 * time.Hour, "--sync-stale-threshold", false},
		{"", "-5", "3h", 3 * time.Hour, "--sync-stale-threshold", false},
		{"", "abc", "3h", 3 * time.Hour, "--sync-stale-threshold", true},
	} {
		var file string
		var env []string
		flags := map[string]string{}
		if tt.file != "" {
			file = "sync:\n  stale_threshold: " + tt.file + "\n"
		}
		if tt.env != "" {
			env = append(env, "SANDBOX_SYNC_STALE_THRESHOLD="+tt.env)
		}
		if tt.flag != "" {
			flags["sync.stale_threshold"] = tt.flag
		}
		cfg, err := load(t, file, env, flags)
		if err != nil {
			t.Errorf("%+v: %v", tt, err)
			continue
		}
		if got, from := time.Duration(cfg.Sync.Stale), cfg.Origin("sync.stale_threshold"); got != tt.want || !strings.HasSuffix(from, tt.from) {
			t.Errorf("%+v: %s from %s", tt, got, from)
		}
		warnings := cfg.Warnings()
		if got := len(warnings) == 1 && strings.HasPrefix(warnings[0], "SANDBOX_SYNC_STALE_THRESHOLD: "); got != tt.warned || !got && len(warnings) > 0 {
			t.Errorf("%+v: warnings %q", tt, warnings)
		}
	}
	for _, bad := range []string{"abc", "-5", "never"} {
		for what, load := range map[string]func() (*Config, error){
			"file":     func() (*Config, error) { return load(t, "sync: {stale_threshold: "+bad+"}\n", nil, nil) },
			"variable": func() (*Config, error) { return load(t, "", []string{"ATOLL_SYNC_STALE_THRESHOLD=" + bad}, nil) },
			"flag":     func() (*Config, error) { return load(t, "", nil, map[string]string{"sync.stale_threshold": bad}) },
		} {
			if _, err := load(); err == nil || !strings.Contains(err.Error(), "stale") && !strings.Contains(err.Error(), "STALE") {
				t.Errorf("%s with %s: %v, want an error with the name", what, bad, err)
			}
		}
	}
}

func TestInvalidSync(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"store: ftp://x/y", "write s3://bucket/prefix or file:///directory"},
		{"store: file://host/dir", "write s3://bucket/prefix"},
		{"store: s3://bucket/p?x=1", "must not have a user, a query or a fragment"},
		{"access_key: env:KEY", "requires sync.secret_key"},
		{"max_files: 0", "must be positive"},
		{"max_bytes: -1", "must be positive"},
	} {
		_, err := load(t, "sync:\n  "+tt.text+"\n", nil, nil)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.text, err, tt.want)
		}
	}
}
