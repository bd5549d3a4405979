package config

import (
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// Variables of other programs apply if those of Atoll are not set.
func TestSessionTimes(t *testing.T) {
	for _, tt := range []struct {
		env            []string
		idle, lifetime time.Duration
		from           string // source of the idle timeout
	}{
		{nil, 30 * time.Minute, 4 * time.Hour, "default"},
		{[]string{"SANDBOX_SESSION_IDLE_TIMEOUT=10m", "SANDBOX_SESSION_MAX_LIFETIME=1h"}, 10 * time.Minute, time.Hour, "SANDBOX_SESSION_IDLE_TIMEOUT"},
		{[]string{"SANDBOX_SESSION_IDLE_TIMEOUT=10m", "ATOLL_SESSION_IDLE_TIMEOUT=20m"}, 20 * time.Minute, 4 * time.Hour, "ATOLL_SESSION_IDLE_TIMEOUT"},
		{[]string{"SANDBOX_SESSION_IDLE_TIMEOUT=", "SANDBOX_OTHER=x"}, 30 * time.Minute, 4 * time.Hour, "default"},
	} {
		cfg, err := load(t, "", tt.env, nil)
		if err != nil {
			t.Errorf("%q: %v", tt.env, err)
			continue
		}
		if cfg.Session != (Session{atoll.Duration(tt.idle), atoll.Duration(tt.lifetime)}) || cfg.Origin("session.idle_timeout") != tt.from {
			t.Errorf("%q: %+v from %s, want %s and %s from %s", tt.env, cfg.Session, cfg.Origin("session.idle_timeout"), tt.idle, tt.lifetime, tt.from)
		}
	}
	for _, env := range []string{"SANDBOX_SESSION_IDLE_TIMEOUT=soon", "ATOLL_SESSION_MAX_LIFETIME=-5m"} {
		if _, err := load(t, "", []string{env}, nil); atoll.KindOf(err) == "" || err == nil {
			t.Errorf("%s: %v, want an error", env, err)
		}
	}
}
