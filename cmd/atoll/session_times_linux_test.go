package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/session"
)

// The times of sessions in the environment of a client apply to its sessions at a server; flags win.
func TestSessionTimesAtServer(t *testing.T) {
	env := mcpEnv(t, "ATOLL_SESSION_IDLE_TIMEOUT=20m")
	startServer(t, env)
	times := func(key string) string {
		t.Helper()
		var all []session.Session
		if err := json.Unmarshal([]byte(atollOut(t, env, "session", "ls", "--json")), &all); err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			if s.Key == key {
				lifetime := time.Duration(0)
				if !s.Expires.IsZero() {
					lifetime = s.Expires.Sub(s.Created).Round(time.Hour) // the lifetime begins when the sandbox exists
				}
				return fmt.Sprint(time.Duration(s.IdleTimeout), " ", lifetime)
			}
		}
		t.Fatalf("there is no %s in %+v", key, all)
		return ""
	}
	for i, tt := range []struct {
		env  []string
		args []string
		want string
	}{
		{nil, nil, "20m0s 4h0m0s"},
		{[]string{"ATOLL_SESSION_IDLE_TIMEOUT=", "SANDBOX_SESSION_IDLE_TIMEOUT=45m", "SANDBOX_SESSION_MAX_LIFETIME=2h"}, nil, "45m0s 2h0m0s"},
		{[]string{"ATOLL_SESSION_IDLE_TIMEOUT=", "SANDBOX_SESSION_MAX_LIFETIME=2h"}, []string{"--max-lifetime", "1h"}, "20m0s 1h0m0s"},
		{[]string{"ATOLL_SESSION_IDLE_TIMEOUT=0", "SANDBOX_SESSION_MAX_LIFETIME=0"}, nil, fmt.Sprint(time.Duration(atoll.Never), " 0s")},
	} {
		with, workflow := append(slices.Clone(env), tt.env...), fmt.Sprintf("wf%d", i)
		c := startMCP(t, with, append([]string{"--workflow", workflow}, tt.args...)...)
		c.call("sandbox_open", nil)
		c.hangUp()
		if got := times("workflow_" + workflow + "_sandbox"); got != tt.want {
			t.Errorf("atoll mcp %q with %q: %s, want %s", tt.args, tt.env, got, tt.want)
		}
		atollOut(t, with, append([]string{"session", "open", "conversation/" + workflow, "-q"}, tt.args...)...)
		if got := times("conversation_" + workflow + "_sandbox"); got != tt.want {
			t.Errorf("atoll session open %q with %q: %s, want %s", tt.args, tt.env, got, tt.want)
		}
	}
}
