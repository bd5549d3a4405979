package secretsource

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// The test binary is a program that reads stores.
func init() {
	TakeOver(func(_ context.Context, source string) (string, error) {
		switch _, name, _ := strings.Cut(source, ":"); name {
		case "address":
			return os.Getenv("VAULT_ADDR"), nil
		case "other":
			return os.Getenv("ATOLL_TEST_OTHER") + "unset", nil
		case "lines":
			return "hidden\nlines", nil
		case "long":
			return strings.Repeat("hidden", maxAnswer), nil
		case "denied":
			return "hidden", atoll.Errorf("secret", source, atoll.ErrDenied, "log in")
		case "dies":
			os.Exit(3)
		}
		return "", os.ErrNotExist
	})
}

// A program gets the variables of stores only, and its answer is a value or an error.
func TestProgram(t *testing.T) {
	t.Setenv("VAULT_ADDR", "https://vault.example")
	t.Setenv("ATOLL_TEST_OTHER", "set, and ")
	p, err := FindProgram()
	if err != nil || slices.ContainsFunc(p.Env, func(kv string) bool { return strings.HasPrefix(kv, "ATOLL_") }) {
		t.Fatalf("got %+v, %v", p, err)
	}
	for source, want := range map[string]string{"vault:address": "https://vault.example", "aws:other": "unset"} {
		if got, err := p.Read(t.Context(), source); string(got) != want || err != nil {
			t.Errorf("%s: got %q, %v", source, string(got), err)
		}
	}
	for source, want := range map[string]struct {
		kind atoll.Kind
		text string
	}{
		"vault:lines":   {atoll.ErrInvalid, "must be one line"},
		"vault:long":    {atoll.ErrUnavailable, "did not answer"},
		"vault:denied":  {atoll.ErrDenied, "secret vault:denied: log in"},
		"vault:none":    {atoll.ErrNotExist, "does not exist"},
		"keyring:dies":  {atoll.ErrUnavailable, "did not answer (exit status 3)"},
		"aws:with\x00z": {atoll.ErrUnavailable, "invalid argument"},
	} {
		got, err := Read(t.Context(), source)
		if got != "" || atoll.KindOf(err) != want.kind || !strings.Contains(err.Error(), want.text) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: got %q, %v (%s)", source, string(got), err, atoll.KindOf(err))
		}
	}
	gone := Program{Path: filepath.Join(t.TempDir(), "gone")}
	if _, err := gone.Read(t.Context(), "aws:x"); atoll.KindOf(err) != atoll.ErrUnavailable || !strings.Contains(err.Error(), "install Atoll there again") {
		t.Errorf("without the program: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := p.Read(ctx, "vault:address"); err == nil {
		t.Errorf("with a context that has ended: got %q", string(got))
	}
}

// A program that links no stores needs atoll-server.
func TestFindProgram(t *testing.T) {
	readsStores = false
	defer func() { readsStores = true }()
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	if p, err := FindProgram(); atoll.KindOf(err) != atoll.ErrUnavailable || !strings.Contains(err.Error(), "only atoll-server reads") {
		t.Errorf("got %+v, %v", p, err)
	}
	for _, name := range []string{"atoll-server", "atoll-server.exe"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if p, err := FindProgram(); err != nil || filepath.Dir(p.Path) != dir || p.Env == nil {
		t.Errorf("got %+v, %v", p, err)
	}
}
