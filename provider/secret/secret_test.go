package secret

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestHash(t *testing.T) {
	raw := New()
	if b, err := hex.DecodeString(raw); err != nil || len(b) != 32 || New() == raw {
		t.Errorf("New() = %q, %v; want 32 random bytes in hex", raw, err)
	}
	hash := Hash(raw)
	salt, sum, _ := strings.Cut(hash, ":")
	s, err := hex.DecodeString(salt)
	if err != nil || len(s) != 16 {
		t.Errorf("the salt is %q, %v; want 16 bytes in hex", salt, err)
	}
	if want := sha256.Sum256([]byte(string(s) + raw)); sum != hex.EncodeToString(want[:]) {
		t.Errorf("the sum is %q, want that of the salt's bytes and the secret's text", sum)
	}
	if strings.Contains(hash, raw) || Hash(raw) == hash {
		t.Errorf("the hash %q holds the secret, or is the same each time", hash)
	}
	// A fixed value, for implementations in other languages.
	if got, want := HashWith([16]byte{15: 1}, strings.Repeat("ab", 32)),
		"00000000000000000000000000000001:"+sumOf("\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01"+strings.Repeat("ab", 32)); got != want {
		t.Errorf("HashWith = %q, want %q", got, want)
	}
}

func sumOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func TestCheck(t *testing.T) {
	raw := New()
	hash := Hash(raw)
	for _, tt := range []struct {
		hash, raw string
		want      bool
	}{
		{hash, raw, true},
		{hash, New(), false},
		{hash, "", false},
		{hash, raw[:63], false},
		{hash, raw + "0", false},
		{hash, strings.ToUpper(raw), false},
		{"", raw, false},
		{"", "", false},
		{":", "", false},
		{raw, raw, false},
		{hash[:40], raw, false},
		{hash + "0", raw, false},
		{"zz" + hash[2:], raw, false},
		{hash[2:], raw, false},
	} {
		if got := Check(tt.hash, tt.raw); got != tt.want {
			t.Errorf("Check(%q, %q) = %v, want %v", tt.hash, tt.raw, got, tt.want)
		}
	}
}

func TestRequire(t *testing.T) {
	raw := New()
	hash := Hash(raw)
	for _, tt := range []struct {
		method, path, auth, hash string
		want                     int
	}{
		{"GET", "/work", "Bearer " + raw, hash, 200},
		{"POST", "/work", "bearer " + raw, hash, 200},
		{"GET", "/work", "", hash, 401},
		{"GET", "/work", "Bearer " + New(), hash, 401},
		{"GET", "/work", "Bearer " + hash, hash, 401},
		{"GET", "/work", "Basic " + raw, hash, 401},
		{"GET", "/work", raw, hash, 401},
		{"GET", "/work", "Bearer ", "", 401},
		{"GET", "/work", "Bearer " + raw, "", 401},
		{"GET", "/", "", hash, 200},
		{"HEAD", "/health", "", hash, 200},
		{"GET", "/health", "", "", 200},
		{"POST", "/", "", hash, 401},
		{"GET", "/health/", "", hash, 401},
		{"GET", "//", "", hash, 401},
		{"GET", "/health/../work", "", hash, 401},
	} {
		h := Require(tt.hash, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		r := httptest.NewRequest(tt.method, tt.path, nil)
		if tt.auth != "" {
			r.Header.Set("Authorization", tt.auth)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != tt.want || strings.Contains(w.Body.String(), raw) {
			t.Errorf("%s %s with %q: %d %q, want %d", tt.method, tt.path, tt.auth, w.Code, w.Body, tt.want)
		}
		if (w.Code == 401) != (w.Header().Get("WWW-Authenticate") == "Bearer") {
			t.Errorf("%s %s: %d with WWW-Authenticate %q", tt.method, tt.path, w.Code, w.Header().Get("WWW-Authenticate"))
		}
	}
}
