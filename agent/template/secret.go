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

// A Secret refers to a secret: env:NAME, a variable of the program that runs Atoll, or
// file:/path, a file of its machine. It never holds the secret itself, and every verb
// prints it as •••. The zero Secret refers to none.
type Secret struct {
	ref      string
	optional bool
}

// maxSecret is the most bytes of a secret: more than any key, and less than the limit
// of a variable.
const maxSecret = 64 << 10

// NewSecret parses a reference. An optional one may refer to a missing secret. Kinds:
// ErrInvalid (invalid reference; the error doesn't repeat it, since it may be the
// secret itself).
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

// validVariable reports whether s is a valid name of an environment variable.
func validVariable(s string) bool {
	for i, c := range []byte(s) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

// IsZero reports whether s refers to no secret.
func (s Secret) IsZero() bool { return s.ref == "" }

// Reveal reads the secret, without the last newline of a file. It returns "" if an
// optional secret is missing. Kinds: ErrUnavailable (missing or unusable; the error
// names the reference).
func (s Secret) Reveal() (string, error) {
	value, err := s.readValue()
	if err != nil && (!s.optional || !errors.Is(err, errNoSecret)) {
		return "", atoll.Errorf("secret", s.ref, atoll.ErrUnavailable, "%w", err)
	}
	return value, nil
}

var errNoSecret = errors.New("secret is empty or missing on the machine that runs atoll")

func (s Secret) readValue() (string, error) {
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
		return "", fmt.Errorf("secret is larger than %d bytes", maxSecret)
	case strings.ContainsRune(value, 0):
		return "", errors.New("secret contains a NUL byte, which no variable can hold")
	}
	return value, nil
}

// masked is the printed form of a Secret.
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
