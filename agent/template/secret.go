package template

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// A Secret is where a secret is: env:NAME, a variable of the program that runs Atoll, or
// file:/path, a file of its machine. It never holds the secret itself, and prints as •••
// whatever the verb. The zero Secret is none.
type Secret struct {
	ref      string
	optional bool
}

// maxSecret is far more than any key has, and less than a variable may.
const maxSecret = 64 << 10

// NewSecret reads a reference. An optional one may refer to what is not there. Kinds:
// ErrInvalid (it is none; it is not repeated, since it may be the secret).
func NewSecret(ref string, optional bool) (Secret, error) {
	scheme, rest, _ := strings.Cut(ref, ":")
	switch {
	case scheme == "env" && validVariable(rest):
	case scheme == "file" && filepath.IsAbs(rest):
	default:
		return Secret{}, atoll.Errorf("", "", atoll.ErrInvalid, "write a reference, env:NAME or file:/path, not the secret itself")
	}
	return Secret{ref, optional}, nil
}

// validVariable reports whether s can name an environment variable.
func validVariable(s string) bool {
	for i, c := range []byte(s) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

// IsZero reports whether there is no secret.
func (s Secret) IsZero() bool { return s.ref == "" }

// Reveal reads the secret; a file's last newline does not belong to it. It is "" if it
// is optional and not there. Kinds: ErrUnavailable (it is not there, or cannot be used;
// the reference is named).
func (s Secret) Reveal() (string, error) {
	value, err := s.read()
	if err != nil && (!s.optional || !errors.Is(err, errNoSecret)) {
		return "", atoll.Errorf("secret", s.ref, atoll.ErrUnavailable, "%w", err)
	}
	return value, nil
}

var errNoSecret = errors.New("it is empty or not there: it belongs to where atoll runs")

func (s Secret) read() (string, error) {
	scheme, rest, _ := strings.Cut(s.ref, ":")
	value := ""
	switch scheme {
	case "env":
		value = os.Getenv(rest)
	case "file":
		f, err := os.Open(rest)
		if errors.Is(err, os.ErrNotExist) {
			return "", errNoSecret
		}
		if err != nil {
			return "", err
		}
		defer f.Close()
		data, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
		if err != nil {
			return "", err
		}
		value = strings.TrimRight(string(data), "\r\n")
	}
	switch {
	case value == "":
		return "", errNoSecret
	case len(value) > maxSecret:
		return "", fmt.Errorf("it is larger than %d bytes", maxSecret)
	case strings.ContainsRune(value, 0):
		return "", errors.New("it has a NUL byte, which no variable can hold")
	}
	return value, nil
}

// masked is what a Secret prints as.
const masked = "•••"

// String masks the secret.
func (s Secret) String() string {
	if s.IsZero() {
		return ""
	}
	return masked
}

// Format masks the secret, whatever the verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.String())) }

// MarshalText masks the secret.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue masks the secret.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
