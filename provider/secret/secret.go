// Package secret authenticates callers to programs inside a sandbox.
//
// Each sandbox has its own secret, which atoll.SecretOf reads. Inside the sandbox there is only a salted
// hash of it, in the environment variable atoll.SecretVar. A program that reads the hash cannot
// compute the secret from it, and so cannot act as a caller from outside, in this sandbox or another.
// A server inside wraps its handler:
//
//	http.ListenAndServe(":3002", secret.Require(os.Getenv(atoll.SecretVar), handler))
//
// A secret is the text of 64 lower-case hex digits, for 32 random bytes. A hash is SALT:SUM, both in
// lower-case hex: a salt of 16 bytes, and the SHA-256 of the salt's 16 bytes followed by the secret's
// 64 characters as they are written, without decoding.
package secret

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"strings"
)

const (
	rawSize  = 32
	saltSize = 16
)

// New returns a random secret.
func New() string {
	var b [rawSize]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Hash returns the hash of a secret, with a random salt.
func Hash(raw string) string {
	var salt [saltSize]byte
	rand.Read(salt[:]) // never fails
	return HashWith(salt, raw)
}

// HashWith is Hash with a given salt.
func HashWith(salt [saltSize]byte, raw string) string {
	sum := sha256.Sum256(append(salt[:], raw...))
	return hex.EncodeToString(salt[:]) + ":" + hex.EncodeToString(sum[:])
}

// Check reports whether hash is the hash of raw. Its time does not depend on raw. It returns false if
// hash is not a hash.
func Check(hash, raw string) bool {
	text, _, _ := strings.Cut(hash, ":")
	salt, err := hex.DecodeString(text)
	if err != nil || len(salt) != saltSize {
		return false
	}
	return subtle.ConstantTimeCompare([]byte(HashWith([saltSize]byte(salt), raw)), []byte(hash)) == 1
}

// Require returns a handler that calls next if the "Authorization: Bearer" header has the secret that
// hash belongs to, and answers 401 otherwise. If hash is not a hash, nobody has access. GET and HEAD
// of / and /health need no secret, so that others can find and monitor the server.
func Require(hash string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isPublic(r) && !Check(hash, bearerToken(r)) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, http.StatusText(http.StatusUnauthorized), http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isPublic reports whether a request needs no secret.
func isPublic(r *http.Request) bool {
	read := r.Method == http.MethodGet || r.Method == http.MethodHead
	return read && (r.URL.Path == "/" || r.URL.Path == "/health")
}

// bearerToken returns the bearer token of a request, or "".
func bearerToken(r *http.Request) string {
	scheme, raw, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return raw
}
