// Package atoll defines the types and interfaces of isolated sandboxes for AI agents.
//
// Every provider of sandboxes, every layer around a provider, the HTTP server and its client
// implement the same small interfaces. The package imports only the standard library.
//
// A [Provider] creates sandboxes (gVisor, Docker, a microVM, ...). A [Sandbox] is one isolated
// environment with an id. A [Process] is one command that runs in a sandbox, with or without a
// terminal.
//
// Some providers can do more than others. Each optional ability is a small interface ([Filer],
// [Dialer], [Pauser], ...) with a helper function ([Files], [Dial], [Pause], ...). Call the
// helper instead of asserting the interface: it finds the ability behind layers, and returns an
// error of kind [ErrUnsupported] if the provider lacks it.
//
//	sb, err := provider.Create(ctx, &atoll.Spec{Name: "web"})
//	if err != nil {
//		return err
//	}
//	defer sb.Remove(ctx, atoll.RemoveVolumes())
//	out, err := atoll.Output(ctx, sb, &atoll.Command{Args: []string{"uname", "-a"}})
package atoll

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// ValidName reports whether s is a valid name of a sandbox, project, provider, volume or scope: a
// letter or digit, then up to 64 letters, digits, '-' or '_'.
func ValidName(s string) bool {
	for i, c := range []byte(s) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && (i == 0 || c != '-' && c != '_') {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= 65
}

// validID reports whether s is an id in canonical form.
func validID(s string) bool {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return len(s) == 32
}

// NewID returns a random (version 4) UUID as 32 lower-case hex digits. IsNewID recognizes it: the
// last four bytes are a checksum of the others.
func NewID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	copy(b[12:], idChecksum(b[:12]))
	return hex.EncodeToString(b[:])
}

// IsNewID reports whether NewID has made an id, so that no caller chose it. One in four billion
// other ids matches, too.
func IsNewID(id string) bool {
	b, err := hex.DecodeString(id)
	return err == nil && len(b) == 16 && bytes.Equal(b[12:], idChecksum(b[:12]))
}

// idChecksum returns the last four bytes of an id of NewID, computed from the others.
func idChecksum(b []byte) []byte {
	sum := sha256.Sum256(append([]byte("atoll id "), b...))
	return sum[:4]
}

// TempName returns a random name for a temporary file, which the writer renames to its final name
// when it is complete. A killed writer may leave such a file behind. IsTempName recognizes these
// names, so that a cleanup can delete old ones.
func TempName() string { return tempPrefix + strings.ToLower(rand.Text()[:tempRandom]) }

// IsTempName reports whether name, without a directory, has the form of the names that TempName
// returns.
func IsTempName(name string) bool {
	text, ok := strings.CutPrefix(name, tempPrefix)
	return ok && len(text) == tempRandom && strings.Trim(text, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

const (
	tempPrefix = ".atoll-tmp-"
	tempRandom = 16 // letters and digits
)

// NormalizeID returns the canonical form of a sandbox id, which is a UUID with or without
// hyphens. It returns the empty id unchanged.
func NormalizeID(id string) (string, error) {
	n := strings.ToLower(id)
	if len(n) == 36 && n[8] == '-' && n[13] == '-' && n[18] == '-' && n[23] == '-' {
		n = strings.ReplaceAll(n, "-", "")
	}
	if n != "" && !validID(n) {
		return "", fmt.Errorf("id %q: must be a UUID (32 hex digits, hyphens allowed)", id)
	}
	return n, nil
}
