package secretsource

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

func TestRead(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return "file:" + path
	}
	t.Setenv("ATOLL_TEST_SET", "from env")
	t.Setenv("ATOLL_TEST_EMPTY", "")
	for source, want := range map[string]string{
		"env:ATOLL_TEST_SET":              "from env",
		write("plain", "a value", 0o600):  "a value",
		write("line", "token\r\n", 0o400): "token",
	} {
		if got, err := Read(t.Context(), source); string(got) != want || err != nil {
			t.Errorf("%s: got %q, %v", source, string(got), err)
		}
	}
	for source, kind := range map[string]atoll.Kind{
		"env:ATOLL_TEST_EMPTY":                                   atoll.ErrNotExist,
		"env:ATOLL_TEST_NOT_SET":                                 atoll.ErrNotExist,
		"file:" + dir + "/missing":                               atoll.ErrNotExist,
		"file:" + dir:                                            atoll.ErrInvalid,
		write("open", "secret-x", 0o644):                         atoll.ErrDenied,
		write("empty", "\n", 0o600):                              atoll.ErrInvalid,
		write("lines", "secret-x\n2", 0o600):                     atoll.ErrInvalid,
		write("long", strings.Repeat("secret-x", 10<<10), 0o600): atoll.ErrInvalid,
		write("binary", "secret-x\xff", 0o600):                   atoll.ErrInvalid,
		"safe:x":                                                 atoll.ErrInvalid,
	} {
		got, err := Read(t.Context(), source)
		if got != "" || atoll.KindOf(err) != kind {
			t.Errorf("%s: got %q, %v, want %v", source, string(got), err, kind)
		}
		if err != nil && strings.Contains(err.Error(), "secret-x") {
			t.Errorf("%s: the error has the value: %v", source, err)
		}
	}
}

func TestNewPlaceholder(t *testing.T) {
	for value, form := range map[string]string{
		"sk-ant-api03-AbC_dEf-123456789012345678901234567890": `^sk-ant-api03-[A-Z][a-z][A-Z]_[a-z][A-Z][a-z]-[0-9]{30}$`,
		"ghp_0123456789abcdefABCDEF0123456789abcd":            `^ghp_[0-9]{10}[a-z]{6}[A-Z]{6}[0-9]{10}[a-z]{4}$`,
		"AKIAIOSFODNN7EXAMPLE":                                `^AKIA[A-Z]{8}[0-9][A-Z]{7}[a-z0-9]{4}$`,
		"123e4567-e89b-42d3-a456-426614174000":                `^[0-9]{3}[a-z][0-9]{4}-[a-z][0-9]{2}[a-z]-[0-9]{2}[a-z][0-9]-[a-z][0-9]{3}-[0-9]{12}$`,
		"short":                                               `^[a-z]{5}[a-z0-9]{15}$`,
		"with spaces & signs: 100% {\"x\"}":                   `^[a-z0-9]+$`,
		"größe":                                               `^[a-z0-9]{20,}$`,
		strings.Repeat("x", 5000):                             `^[a-z]{200}$`,
	} {
		first, second := NewPlaceholder(atoll.SecretValue(value)), NewPlaceholder(atoll.SecretValue(value))
		if first == second || first == value || !regexp.MustCompile(form).MatchString(first) {
			t.Errorf("%q: got %q and %q, want the form %s", value, first, second, form)
		}
	}
}
