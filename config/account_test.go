package config

import (
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

func TestAccounts(t *testing.T) {
	t.Setenv("TOKEN_OF_ALICE", "sesame")
	t.Setenv("TOKEN_OF_CI", "mellon")
	cfg, err := load(t, "accounts:\n- alice=env:TOKEN_OF_ALICE\n- ci:user=env:TOKEN_OF_CI\n", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := cfg.Tokens()
	if err != nil {
		t.Fatal(err)
	}
	if a, ci := tokens["sesame"], tokens["mellon"]; len(tokens) != 2 || a.Name != "alice" || a.Role != "" || ci.Name != "ci" || ci.Role != "user" {
		t.Errorf("tokens are %v", tokens)
	}
	t.Setenv("TOKEN_OF_CI", "sesame")
	if _, err := cfg.Tokens(); atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(err.Error(), "the same token") || strings.Contains(err.Error(), "sesame") {
		t.Errorf("one token for two: %v", err)
	}
	t.Setenv("TOKEN_OF_CI", "")
	if _, err := cfg.Tokens(); atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(err.Error(), "TOKEN_OF_CI") {
		t.Errorf("no token: %v", err)
	}
}

func TestAccountsThatAreWrong(t *testing.T) {
	for text, want := range map[string]string{
		"alice":                "write it like",
		"=env:X":               "write it like",
		"al ice=env:X":         "write it like",
		"alice:=env:X":         "write it like",
		"alice=sesame":         "not the secret itself",
		"alice:user=file:near": "absolute path",
	} {
		_, err := load(t, "accounts: ['"+text+"']\n", nil, nil)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "accounts") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
