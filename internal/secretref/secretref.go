// Package secretref has references to secrets that do not print the secret.
package secretref

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
)

// masked is printed in place of a secret.
const masked = "•••"

// A Ref is a reference to a secret, "env:NAME" or "file:/path", or a secret that
// came from the environment itself. It prints as ••• with every verb and encoder, so
// that a log line by mistake does no harm. The zero Ref refers to no secret.
type Ref struct {
	ref   string
	value string
}

// New returns a Ref that holds value itself.
func New(value string) Ref { return Ref{value: value} }

// Parse sets s to the reference in text. If variable is set, text comes from an environment
// variable and may be the secret itself. No other text may: people copy and show files, and
// a command line is visible to other users. home replaces ~ in paths.
func (s *Ref) Parse(text string, variable bool, home string) error {
	scheme, rest, _ := strings.Cut(text, ":")
	switch {
	case scheme == "env" && rest != "":
	case scheme == "file" && rest != "":
		path := ExpandHome(rest, home)
		if !filepath.IsAbs(path) {
			return fmt.Errorf("%q: must be an absolute path", text)
		}
		text = "file:" + path
	case variable:
		*s = Ref{value: text}
		return nil
	default:
		return errors.New("write a reference, env:NAME or file:/path, not the secret itself")
	}
	*s = Ref{ref: text}
	return nil
}

// IsZero reports whether s refers to no secret.
func (s Ref) IsZero() bool { return s == Ref{} }

// Reveal reads and returns the secret; "" for a zero Ref. It trims newlines at the end of
// a file.
func (s Ref) Reveal() (string, error) {
	scheme, rest, _ := strings.Cut(s.ref, ":")
	switch scheme {
	case "env":
		v := os.Getenv(rest)
		if v == "" {
			return "", fmt.Errorf("secret %s: the variable is empty or not set", s.ref)
		}
		return v, nil
	case "file":
		data, err := ReadFile(rest)
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

// Reference returns the location of the secret, not the secret; ••• for a Ref from New.
func (s Ref) Reference() string {
	if s.ref != "" {
		return s.ref
	}
	return s.String()
}

// String masks the secret.
func (s Ref) String() string {
	if s.IsZero() {
		return ""
	}
	return masked
}

// GoString masks the secret.
func (s Ref) GoString() string { return s.String() }

// Format masks the secret, whatever the verb.
func (s Ref) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.String())) }

// MarshalText masks the secret.
func (s Ref) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses a reference.
func (s *Ref) UnmarshalText(b []byte) error { return s.Parse(string(b), false, homeDir()) }

// LogValue masks the secret.
func (s Ref) LogValue() slog.Value { return slog.StringValue(s.String()) }

// homeDir returns the user's home directory, or "".
func homeDir() string {
	dir, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return dir
}

// ExpandHome replaces the ~ at the beginning of a path.
func ExpandHome(path, home string) string {
	if rest, ok := strings.CutPrefix(path, "~/"); ok && home != "" {
		return filepath.Join(home, rest)
	}
	return path
}

// MaxFile is the size in bytes of the largest file that ReadFile reads.
const MaxFile = 1 << 20

// ReadFile reads a file that a person has written. More than MaxFile bytes are an error.
func ReadFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err == nil && len(data) > MaxFile {
		err = fmt.Errorf("%s: larger than %d bytes", path, MaxFile)
	}
	return data, err
}
