// Package secret is how programs inside a sandbox know who may talk to them.
//
// Each sandbox has a secret of its own, which atoll.Secret reads. Inside there
// is only a salted hash of it, in the environment variable atoll.SecretVar: who
// has read that cannot make the secret from it, and so cannot pass for those
// outside, in this sandbox or another. A server inside wraps its handler:
//
//	http.ListenAndServe(":3002", secret.Require(os.Getenv(atoll.SecretVar), handler))
//
// A secret is the text of 64 lower-case hex digits, for 32 random bytes. A hash
// is SALT:SUM, both in lower-case hex: a salt of 16 bytes, and the SHA-256 of
// the salt's 16 bytes followed by the secret's 64 characters as they are
// written, which are not decoded.
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

// New draws a secret.
func New() string {
	var b [rawSize]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Hash is the hash of a secret, with a salt that is drawn for it.
func Hash(raw string) string {
	var salt [saltSize]byte
	rand.Read(salt[:]) // never fails
	return HashWith(salt, raw)
}

// HashWith is Hash with a salt that the caller has.
func HashWith(salt [saltSize]byte, raw string) string {
	sum := sha256.Sum256(append(salt[:], raw...))
	return hex.EncodeToString(salt[:]) + ":" + hex.EncodeToString(sum[:])
}

// Check reports whether hash is that of raw. It takes the same time whatever
// raw is. Nothing fits what is no hash.
func Check(hash, raw string) bool {
	text, _, _ := strings.Cut(hash, ":")
	salt, err := hex.DecodeString(text)
	if err != nil || len(salt) != saltSize {
		return false
	}
	return subtle.ConstantTimeCompare([]byte(HashWith([saltSize]byte(salt), raw)), []byte(hash)) == 1
}

// Require lets through to next whose "Authorization: Bearer" is the secret that
// hash is of, and answers 401 to all others: to everybody, if it is no hash. To
// GET and HEAD of / and /health nobody needs one, so that the server can be
// found and watched.
func Require(hash string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !open(r) && !Check(hash, bearer(r)) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, http.StatusText(http.StatusUnauthorized), http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func open(r *http.Request) bool {
	read := r.Method == http.MethodGet || r.Method == http.MethodHead
	return read && (r.URL.Path == "/" || r.URL.Path == "/health")
}

func bearer(r *http.Request) string {
	scheme, raw, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return raw
}
