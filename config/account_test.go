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
		t.Errorf("Tokens with one token for two accounts: %v", err)
	}
	t.Setenv("TOKEN_OF_CI", "")
	if _, err := cfg.Tokens(); atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(err.Error(), "TOKEN_OF_CI") {
		t.Errorf("Tokens without a token: %v", err)
	}
}

func TestInvalidAccounts(t *testing.T) {
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

// All accounts with one name must have the same rights, since they share conversations.
func TestAccountsOfOneName(t *testing.T) {
	for text, valid := range map[string]bool{
		"['ann:project:web=env:A', 'ann:project:web=env:B']":         true,
		"['ann:project:web+api=env:A', 'ann:project:api+web=env:B']": true,
		"['ann=env:A', 'ann:user=env:B', 'default:admin=env:C']":     true,
		"['ann:project:web=env:A', 'ann:project:api=env:B']":         false,
		"['ann:project:web=env:A', 'bob=env:B', 'ann=env:C']":        false,
		"['default:project:web=env:A']":                              false,
	} {
		_, err := load(t, "accounts: "+text+"\n", nil, nil)
		if valid && err != nil || !valid && (err == nil || !strings.Contains(err.Error(), "share its conversations")) {
			t.Errorf("%s: %v, want it to be valid: %v", text, err, valid)
		}
	}
}

// An account with the role project can only use its projects.
func TestAccountOfProjects(t *testing.T) {
	t.Setenv("TOKEN_OF_ALICE", "sesame")
	cfg, err := load(t, "provider: local\naccounts: ['alice:project:web+api=env:TOKEN_OF_ALICE']\n", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := cfg.Tokens()
	if err != nil {
		t.Fatal(err)
	}
	alice := tokens["sesame"].Account
	if !alice.IsRestricted() || !alice.CanUse("api") || alice.CanUse("default") {
		t.Errorf("alice is %+v", alice)
	}
	if _, err := load(t, "accounts: ['alice:project=env:TOKEN_OF_ALICE']\n", nil, nil); err == nil {
		t.Error("an account with the role project but without projects is valid")
	}
}

func TestInvalidQuotas(t *testing.T) {
	for text, want := range map[string]string{
		"quota: {cpus: -1}\n":             "quota.cpus",
		"quotas:\n  web: {memory: -1g}\n": "quotas.web.memory",
		"quotas:\n  web: {colour: red}\n": "colour",
		"audit: {keep: -1h}\n":            "audit.keep",
	} {
		if _, err := load(t, text, nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}
