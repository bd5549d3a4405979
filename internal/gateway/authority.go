package gateway

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"path/filepath"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// An Authority is a certificate authority for the names of hosts: the programs in a sandbox trust it, and nothing else does. Its methods
// may be called at once from many goroutines.
type Authority struct {
	cert *x509.Certificate
	pem  []byte
	key  *ecdsa.PrivateKey

	leafKey *ecdsa.PrivateKey // of all leaves

	mu     sync.Mutex
	leaves map[string]*tls.Certificate // by name; guarded by mu
}

// How long certificates are valid. A clock in a sandbox may be late.
const (
	authorityAge = 10 * 365 * 24 * time.Hour
	leafAge      = 7 * 24 * time.Hour
	clockSlack   = 24 * time.Hour
	maxLeaves    = 1024
)

// The types of PEM blocks.
const (
	pemCertificate = "CERTIFICATE"
	pemKey         = "EC PRIVATE KEY"
)

// OpenAuthority returns the authority in the file "ca.pem" of a directory, and makes it if it is missing. The file has the certificate and
// the private key; only its owner can read it. Kinds: those of fsutil.LoadSecret, ErrInvalid (the file is damaged).
func OpenAuthority(dir string) (*Authority, error) {
	path := filepath.Join(dir, "ca.pem")
	data, _, err := fsutil.LoadSecret("certificate authority", path, 64<<10, newAuthority)
	if err != nil {
		return nil, err
	}
	a := &Authority{leaves: map[string]*tls.Certificate{}}
	if err := a.parsePEM(data); err != nil {
		return nil, fmt.Errorf("certificate authority %s: %w; remove the file, and Atoll makes another", path, err)
	}
	if a.leafKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	return a, nil
}

// newAuthority returns a new certificate and its key as PEM.
func newAuthority() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	public, err := key.PublicKey.Bytes()
	if err != nil {
		return nil, err
	}
	id := sha256.Sum256(public)
	template, err := newTemplate(authorityAge)
	if err != nil {
		return nil, err
	}
	template.Subject = pkix.Name{Organization: []string{"Atoll"}, CommonName: "Atoll gateway " + hex.EncodeToString(id[:4])}
	template.SubjectKeyId = id[:20]
	template.KeyUsage = x509.KeyUsageCertSign
	template.IsCA, template.MaxPathLenZero = true, true
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	_ = pem.Encode(&b, &pem.Block{Type: pemCertificate, Bytes: der})
	_ = pem.Encode(&b, &pem.Block{Type: pemKey, Bytes: keyDER})
	return b.Bytes(), nil
}

// newTemplate returns a certificate with a random serial number that is valid for age from now.
func newTemplate(age time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)), NotBefore: now.Add(-clockSlack), NotAfter: now.Add(age), BasicConstraintsValid: true,
	}, nil
}

// parsePEM reads the certificate and the key from PEM.
func (a *Authority) parsePEM(data []byte) (err error) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case pemCertificate:
			a.pem = pem.EncodeToMemory(block)
			a.cert, err = x509.ParseCertificate(block.Bytes)
		case pemKey:
			a.key, err = x509.ParseECPrivateKey(block.Bytes)
		}
		if err != nil {
			return err
		}
	}
	switch {
	case a.cert == nil || a.key == nil:
		return fmt.Errorf("it lacks a certificate or a key")
	case !a.key.PublicKey.Equal(a.cert.PublicKey):
		return fmt.Errorf("the key is not that of the certificate")
	case time.Now().After(a.cert.NotAfter):
		return fmt.Errorf("the certificate has expired")
	}
	return nil
}

// Certificate returns the certificate of the authority as PEM. The caller must not change it.
func (a *Authority) Certificate() []byte { return a.pem }

// issueLeaf returns a certificate for a host, an earlier one if there is one.
func (a *Authority) issueLeaf(host string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if leaf := a.leaves[host]; leaf != nil && time.Now().Before(leaf.Leaf.NotAfter.Add(-clockSlack)) {
		return leaf, nil
	}
	template, err := newTemplate(leafAge)
	if err != nil {
		return nil, err
	}
	if len(host) <= 64 { // the longest that a common name may be
		template.Subject.CommonName = host
	}
	template.DNSNames = []string{host}
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &a.leafKey.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	leaf := &tls.Certificate{Certificate: [][]byte{der, a.cert.Raw}, PrivateKey: a.leafKey}
	if leaf.Leaf, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	if len(a.leaves) >= maxLeaves {
		clear(a.leaves)
	}
	a.leaves[host] = leaf
	return leaf, nil
}

// GetCertificate returns a certificate for the host that a client asks for, for a tls.Config.
func (a *Authority) GetCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	return a.issueLeaf(hello.ServerName)
}
