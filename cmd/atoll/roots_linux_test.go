package main

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
)

func TestHasSystemRoots(t *testing.T) {
	t.Setenv("SSL_CERT_FILE", "")
	t.Setenv("SSL_CERT_DIR", "")
	old := rootPlaces
	defer func() { rootPlaces = old }()
	dir := t.TempDir()
	check := func(what string, want bool) {
		t.Helper()
		if got := hasSystemRoots(); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	rootPlaces = []string{filepath.Join(dir, "missing"), dir}
	check("an empty directory", false)
	if err := os.WriteFile(filepath.Join(dir, "root.pem"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	check("a directory with a file", true)
	rootPlaces = []string{filepath.Join(dir, "root.pem")}
	check("a file", true)
	rootPlaces = nil
	check("nothing", false)
	t.Setenv("SSL_CERT_FILE", "/roots.pem")
	check("SSL_CERT_FILE", true)
}

func TestFallbackRoots(t *testing.T) {
	if fallbackRoots().Equal(x509.NewCertPool()) {
		t.Error("there are no fallback roots")
	}
}
