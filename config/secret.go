package config

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
)

// masked is what a secret prints as.
const masked = "•••"

// A Secret is a reference to a secret, "env:NAME" or "file:/path", or one that
// came from the environment itself. It prints as ••• in every way, so that it
// can be logged by mistake without harm. The zero Secret is none.
type Secret struct {
	ref   string
	value string
}

// NewSecret holds value itself.
func NewSecret(value string) Secret { return Secret{value: value} }

// parse reads a reference. Only an environment variable may hold the secret itself: files
// are copied and shown, and a command line is visible to other users.
func (s *Secret) parse(text string, variable bool, home string) error {
	scheme, rest, _ := strings.Cut(text, ":")
	switch {
	case scheme == "env" && rest != "":
	case scheme == "file" && rest != "":
		path := expandHome(rest, home)
		if !filepath.IsAbs(path) {
			return fmt.Errorf("%q: must be an absolute path", text)
		}
		text = "file:" + path
	case variable:
		*s = Secret{value: text}
		return nil
	default:
		return errors.New("write a reference, env:NAME or file:/path, not the secret itself")
	}
	*s = Secret{ref: text}
	return nil
}

// IsZero reports whether there is no secret.
func (s Secret) IsZero() bool { return s == Secret{} }

// Reveal reads the secret; that of a zero Secret is "". A file's last newline
// does not belong to it.
func (s Secret) Reveal() (string, error) {
	scheme, rest, _ := strings.Cut(s.ref, ":")
	switch scheme {
	case "env":
		v := os.Getenv(rest)
		if v == "" {
			return "", fmt.Errorf("secret %s: the variable is empty or not set", s.ref)
		}
		return v, nil
	case "file":
		data, err := readLimited(rest)
		if err != nil {
			return "", fmt.Errorf("secret %s: %w", s.ref, err)
		}
		v := strings.TrimRight(string(data), "\r\n")
		if v == "" {
			return "", fmt.Errorf("secret %s: the file is empty", s.ref)
		}
		return v, nil
	}
	return s.value, nil
}

// reference is what Values shows: where the secret is, not what it is.
func (s Secret) reference() string {
	if s.ref != "" {
		return s.ref
	}
	return s.String()
}

// String masks the secret.
func (s Secret) String() string {
	if s.IsZero() {
		return ""
	}
	return masked
}

// GoString masks the secret.
func (s Secret) GoString() string { return s.String() }

// Format masks the secret, whatever the verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.String())) }

// MarshalText masks the secret.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a reference.
func (s *Secret) UnmarshalText(b []byte) error { return s.parse(string(b), false, homeDir(nil)) }

// LogValue masks the secret.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
