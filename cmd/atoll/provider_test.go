//go:build linux

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// The suite passes a good plugin, and names the broken promise of another one.
func TestProviderTest(t *testing.T) {
	testenv.Plugins(t, "provider-test")
	env := append(os.Environ(), "HOME="+t.TempDir(), "XDG_STATE_HOME="+t.TempDir(), "XDG_CONFIG_HOME="+t.TempDir())
	atoll := func(want int, args ...string) string {
		t.Helper()
		out, err := atollCmd(env, "atoll", append([]string{"provider", "test"}, args...)...).CombinedOutput()
		if code := codeOf(t, err); code != want {
			t.Errorf("%q: exit code %d, want %d:\n%s", args, code, want, out)
		}
		return string(out)
	}
	if out := atoll(0, "sample", "--group", "exec", "-v"); !strings.Contains(out, "--- PASS: sample/exec/exit_codes_come_back") {
		t.Errorf("it says\n%s", out)
	}
	if out := atoll(0, "sample", "--run", "exec/exit_codes", "-v"); strings.Count(out, "--- PASS") != 3 {
		t.Errorf("one promise is tested as\n%s", out)
	}
	config := t.TempDir() + "/config.yaml"
	if err := os.WriteFile(config, []byte("plugin: {sample: {settings: [forgetful=yes]}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env = append(env, "ATOLL_CONFIG="+config)
	if out := atoll(1, "sample", "--group", "create"); !strings.Contains(out, "--- FAIL: sample/create/") {
		t.Errorf("the broken promises are\n%s", out)
	}
	for name, want := range map[string]string{
		"docker": "the provider is built into atoll, and tested with it",
		"moon":   "install the program atoll-moon beside atoll or in PATH",
	} {
		if out := atoll(1, name); !strings.Contains(out, want) {
			t.Errorf("%s: %s, want %q", name, out, want)
		}
	}
}
