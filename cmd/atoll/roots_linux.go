package main

import (
	"crypto/x509"
	"os"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// rootPlaces are the files and directories in which package crypto/x509 looks for the
// system's roots of trust.
var rootPlaces = []string{
	"/etc/ssl/certs/ca-certificates.crt",
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem",
	"/etc/pki/tls/cacert.pem",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"/etc/ssl/cert.pem",
	"/etc/ssl/certs",
	"/etc/pki/tls/certs",
}

// trustFallbackRoots trusts Mozilla's roots if the system has none, as in an image from
// scratch. It parses them only then, because that takes a third of the time of a start.
func trustFallbackRoots() {
	if !hasSystemRoots() {
		x509.SetFallbackRoots(fallbackRoots())
	}
}

// fallbackRoots parses Mozilla's roots.
func fallbackRoots() *x509.CertPool {
	roots := x509.NewCertPool()
	for c := range bundle.Roots() {
		cert, err := x509.ParseCertificate(c.Certificate)
		if err != nil {
			continue // a root that this version of Go refuses
		}
		if c.Constraint == nil {
			roots.AddCert(cert)
		} else {
			roots.AddCertWithConstraint(cert, c.Constraint)
		}
	}
	return roots
}

// hasSystemRoots reports whether the system, or a variable of the environment, names roots of
// trust. An empty directory has none.
func hasSystemRoots() bool {
	if os.Getenv("SSL_CERT_FILE") != "" || os.Getenv("SSL_CERT_DIR") != "" {
		return true
	}
	for _, place := range rootPlaces {
		info, err := os.Stat(place)
		if err != nil {
			continue
		}
		if !info.IsDir() {
			return true
		}
		if entries, err := os.ReadDir(place); err == nil && len(entries) > 0 {
			return true
		}
	}
	return false
}
